"""cuda.core: what StreamKit knows of it without importing it. Its adapter is in ``adapter``."""

from streamkit._base.library import Library

LIBRARY = Library(
    "cuda.core",
    label="cuda.core",
    root="cuda",
    module="cuda.core",
    extras=("cuda12", "cuda13"),
    distribution="cuda-core",
    oldest=(1, 0),
    switch="CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM",
    aliases=("cuda",),
)
