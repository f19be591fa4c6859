"""One CUDA graph from every loaded library: capture, checks, launch, disposal."""
