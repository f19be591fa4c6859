"""CUDA Python: what StreamKit knows of cuda.core and cuda.bindings without importing them."""

from streamkit.protocols.libraries import Library, OtherName

CORE = Library(
    "cuda.core",
    label="cuda.core",
    adapter="_cuda_python.core",
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
    names=(
        OtherName(
            "A stream",
            "device.create_stream()",
            "sk.new_stream(device.device_id, nonblocking=True)",
            package="create_stream",
        ),
        OtherName(
            "A stream from a number", "Stream.from_handle(ptr)", "sk.from_handle(ptr, owner=...)"
        ),
        OtherName("Waiting on the CPU", "e.is_done", "e.done", event="is_done"),
        OtherName("", "s.is_done", "s.done", stream="is_done"),
        OtherName("A stream with each launch", "a `Stream` argument", 's.to("cuda.core")'),
    ),
)

BINDINGS = Library(
    "cuda.bindings",
    label="cuda.bindings",
    adapter="_cuda_python.bindings",
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
