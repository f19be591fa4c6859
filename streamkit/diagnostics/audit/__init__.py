"""What really ran, and on which queue: the recorders of CUDA streams, and the report."""
