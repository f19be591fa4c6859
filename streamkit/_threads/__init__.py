"""Threads, their locks and futures, and what they or the garbage collector leave."""
