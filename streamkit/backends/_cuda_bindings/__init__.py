"""cuda.bindings: what StreamKit knows of it without importing it. Its adapter is in ``adapter``."""

from streamkit._libraries.library import Library, OtherName

LIBRARY = Library(
    "cuda.bindings",
    label="cuda.bindings",
    module="cuda.bindings",
    mark="__version__",
    requirements={  # StreamKit needs both
        12: '"cuda-bindings>=12.9.3,<13" "cuda-core>=1.0"',
        13: '"cuda-bindings>=13.1.1,<14" "cuda-core>=1.0"',
    },
    distribution="cuda-bindings",
    oldest=(12, 9, 3),
    newest=(13, 5),
    cuda=r"==(\d+(?:\.\d+)?)",
    switch="CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM",
    numeric_switch={12: (12, 9, 7), 13: (13, 3)},
    names=(
        OtherName("Closing", "runtime.cudaStreamDestroy(s)", "s.close()", stream="destroy"),
        OtherName("Closing", "runtime.cudaEventDestroy(e)", "e.close()", event="destroy"),
    ),
)
