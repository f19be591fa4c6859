"""Host streams: the same contract as a real queue on the CPU."""
