"""numba-cuda and numba-cuda-mlir: the facts that need no import of them.

The adapter of both is in ``adapter``.
"""

from streamkit.protocols.libraries import Library

LIBRARY = Library(
    "numba",
    label="numba-cuda",
    adapter="_numba.numba_cuda",
    module="numba.cuda",
    mark="LTOIR",  # the numba.cuda of numba itself has none
    requirements={12: '"numba-cuda[cu12]>=0.30.4"', 13: '"numba-cuda[cu13]>=0.30.4"'},
    distribution="numba-cuda",
    oldest=(0, 30, 4),  # the first that goes with cuda-core 1 and numba 0.68
    newest=(0, 30, 4),
    switch="CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM",  # numba-cuda goes through CUDA Python
    aliases=("numba-cuda", "numba.cuda"),
    # the version of the function and, in base64, the options of the compilation
    kernels=r"\[abi:v\d+\]\[abi:\w{16,}\]$",
    colour="#CC79A7",
)

MLIR = LIBRARY._replace(
    name="numba_mlir",
    label="numba-cuda-mlir",
    adapter="_numba.numba_cuda_mlir",
    module="numba_cuda_mlir.cuda",
    requirements={12: '"numba-cuda-mlir[cu12]>=0.6"', 13: '"numba-cuda-mlir[cu13]>=0.6"'},
    distribution="numba-cuda-mlir",
    oldest=(0, 6),
    newest=(0, 6),
    aliases=("numba-cuda-mlir", "numba_cuda_mlir"),
    kernels=None,  # their names tell nothing of it
)
