"""Which accesses to the same memory nothing orders: pure Python, for queues and for graphs."""
