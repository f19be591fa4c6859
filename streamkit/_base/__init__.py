"""What every other folder uses: the adapter contract, the record of a queue, locks, errors."""
