"""Warp: what StreamKit knows of it without importing it. Its adapter is in ``adapter``."""

from streamkit._base.library import Library

LIBRARY = Library(
    "warp",
    label="Warp",
    root="warp",
    module="warp",
    extras=("warp",),
    distribution="warp-lang",
    oldest=(1, 14),
    has_current=True,
    frees_on_legacy=True,
    kernels=r"_cuda_kernel_(forward|backward)$",
    colour="#009E73",
    letter="w",
)
