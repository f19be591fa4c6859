"""tvm-ffi: the facts that need no import of the library. The adapter is in ``adapter``."""

from streamkit.protocols.libraries import Library

LIBRARY = Library(
    "tvm_ffi",
    label="tvm-ffi",
    adapter="_tvm_ffi.adapter",
    module="tvm_ffi",
    mark="StreamContext",
    requirements=dict.fromkeys((12, 13), '"apache-tvm-ffi>=0.1.6"'),  # tvm-ffi links no CUDA
    distribution="apache-tvm-ffi",
    oldest=(0, 1, 6),
    newest=(0, 1, 15),
    aliases=("tvm-ffi",),
    has_current=True,
)
