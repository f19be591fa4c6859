"""The objects that users hold and call: CUDA and host streams, events, ``wrap``, ``handoff``."""
