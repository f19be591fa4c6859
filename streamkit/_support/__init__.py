"""Locks, threads, weak tables, messages, classes and tokens: no CUDA, no stream."""
