"""Which accesses to the same memory have no order, in pure Python, for queues and for graphs."""
