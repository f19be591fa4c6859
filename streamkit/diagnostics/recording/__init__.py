"""What ran, and what ordered it: the calls of the driver and the steps of host streams."""
