"""PyTorch: what StreamKit knows of it without importing it. Its adapter is in ``adapter``."""

from streamkit._base.library import Library

LIBRARY = Library(
    "torch",
    label="torch",
    root="torch",
    module="torch",
    extras=("torch",),
    distribution="torch",
    oldest=(2, 10),
    cuda=r"(?m)^cuda\b.*?=\s*(?:None|['\"]([\d.]+)['\"])",
    cuda_file="torch/version.py",
    index_sets_cuda=True,
    has_current=True,
    kernels=r"(?<![\w:])(at|at_cuda_detail|c10|torch)::|^triton_",
    colour="#D55E00",
    letter="t",
    profiling="autograd.profiler._is_profiler_enabled",
)
