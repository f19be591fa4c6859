"""Audits: the recorder of all work with the queues that it really ran on, and the report."""
