"""CuPy: the facts that need no import of the library. The adapter is in ``adapter``."""

from streamkit.protocols.libraries import Library

LIBRARY = Library(
    "cupy",
    label="CuPy",
    adapter="_cupy.adapter",
    module="cupy",
    mark="ndarray",
    requirements={12: '"cupy-cuda12x>=14.0"', 13: '"cupy-cuda13x>=14.0"'},
    distribution="cupy",
    variants=r"cupy(-(cuda|rocm).*)?",
    oldest=(14, 0),
    newest=(14, 2),
    cuda=r"^cupy-cuda(\d\d)",  # "cupy" from source or from conda does not tell
    compiles_with="nvrtc",
    switch="CUPY_CUDA_PER_THREAD_DEFAULT_STREAM",
    has_current=True,
    kernels=r"^cupy_",
    operation=r"^cupy_(\w+?)(?:__|$)",
    colour="#0072B2",
)
