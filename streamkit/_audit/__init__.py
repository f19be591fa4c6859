"""What really ran, and on which queue: recording, report, timeline."""
