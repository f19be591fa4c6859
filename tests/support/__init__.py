"""What several tiers share; ``gpu`` and ``emulated`` are for those tiers."""
