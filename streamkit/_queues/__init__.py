"""Which queue is this, who keeps it alive, its order, scopes and waits."""
