"""cuda.core: what StreamKit knows of it without importing it. Its adapter is in ``adapter``."""

from streamkit._libraries.library import Library, OtherName

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
