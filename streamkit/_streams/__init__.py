"""What users hold and call: streams, events, ``wrap``, the current stream, ``handoff``."""
