"""cuda.core: what StreamKit knows of it without importing it. Its adapter is in ``adapter``."""

from streamkit._base.library import Library

LIBRARY = Library(
    "cuda.core",
    label="cuda.core",
    module="cuda.core",
    mark="Stream",
    requirements={  # StreamKit needs both
        12: '"cuda-core>=1.0" "cuda-bindings>=12.9.3,<13"',
        13: '"cuda-core>=1.0" "cuda-bindings>=13.1.1,<14"',
    },
    distribution="cuda-core",
    oldest=(1, 0),
    newest=(1, 2),
    switch="CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM",
    aliases=("cuda",),
)
