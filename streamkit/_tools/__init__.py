"""The command line: bench, demo, matrix, and their tables on the terminal."""


class CannotRunError(Exception):
    """A tool lacks the device or a library that it needs; the message says what to do."""
