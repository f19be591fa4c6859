"""An adapter of a contract that no StreamKit speaks, to show what users then read."""

name = "oldtoylib"
api = 99


def extract(obj):
    """Never called."""
    raise AssertionError(obj)


def borrow(queue):
    """Never called."""
    raise AssertionError(queue)
