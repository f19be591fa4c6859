"""Warp: the facts that need no import of the library. The adapter is in ``adapter``."""

from streamkit.protocols.libraries import Library

LIBRARY = Library(
    "warp",
    label="Warp",
    adapter="_warp.adapter",
    module="warp",
    mark="get_stream",
    requirements={  # from 1.18 on the index has builds for CUDA 13
        12: '"warp-lang>=1.14,<1.18"',
        13: '"warp-lang>=1.14"',
    },
    on_macos='"warp-lang>=1.14"',
    distribution="warp-lang",
    oldest=(1, 14),
    newest=(1, 19),
    cuda=r"\+cu(\d\d)",  # a build from the index has no such label
    carries_cuda=True,
    has_current=True,
    frees_on_legacy=True,
    kernels=r"_cuda_kernel_(forward|backward)$",
    operation=r"^_*(\w+?)_[0-9a-f]{8}_cuda_kernel_(?:forward|backward)$",
    colour="#009E73",
)
