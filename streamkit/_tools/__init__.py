"""The command line: bench, demo, matrix, and their tables on the terminal."""
