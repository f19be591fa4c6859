"""Work on the same memory that nothing orders, and the call that is missing."""
