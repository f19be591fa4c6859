"""CUDA queues: their identity, owners, order, scopes and waits."""
