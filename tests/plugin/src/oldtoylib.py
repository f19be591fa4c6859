"""A toy library whose StreamKit adapter speaks another version of the contract."""


class Stream:
    """A queue that nobody can read."""
