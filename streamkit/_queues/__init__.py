"""Which queue is this, who keeps it alive, and how two queues are ordered."""
