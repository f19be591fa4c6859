"""Waiting from the host: blocking, in a coroutine, or by a function that is called afterwards."""
