"""Recorders of work and of its order: calls of the driver, and steps of host streams."""
