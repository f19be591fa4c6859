"""cuda.bindings: what StreamKit knows of it without importing it. Its adapter is in ``adapter``."""

from streamkit._base.library import Library

LIBRARY = Library(
    "cuda.bindings",
    label="cuda.bindings",
    root="cuda",
    module="cuda.bindings",
    extras=("cuda12", "cuda13"),
    distribution="cuda-bindings",
    oldest=(12, 9),
    cuda=r"==(\d+(?:\.\d+)?)",
    switch="CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM",
)
