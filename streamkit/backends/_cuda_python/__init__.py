"""CUDA Python: the facts about cuda.core and cuda.bindings that need no import of them."""

from streamkit.protocols.libraries import Library

CORE = Library(
    "cuda.core",
    label="cuda.core",
    adapter="_cuda_python.core",
    module="cuda.core",
    mark="Stream",
    requirements={  # StreamKit needs both
        12: '"cuda-core>=1.2,<2" "cuda-bindings>=12.9.3,<13"',
        13: '"cuda-core>=1.2,<2" "cuda-bindings>=13.1.1,<14"',
    },
    distribution="cuda-core",
    oldest=(1, 2),
    newest=(1, 2),
    switch="CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM",
    aliases=("cuda",),
)

BINDINGS = Library(
    "cuda.bindings",
    label="cuda.bindings",
    adapter="_cuda_python.bindings",
    module="cuda.bindings",
    mark="__version__",
    requirements={  # StreamKit needs both
        12: '"cuda-bindings>=12.9.3,<13" "cuda-core>=1.2,<2"',
        13: '"cuda-bindings>=13.1.1,<14" "cuda-core>=1.2,<2"',
    },
    distribution="cuda-bindings",
    oldest=(12, 9, 3),
    newest=(13, 5),
    cuda=r"==(\d+(?:\.\d+)?)",
    switch="CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM",
    numeric_switch={12: (12, 9, 7), 13: (13, 3)},
)
