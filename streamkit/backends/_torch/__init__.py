"""PyTorch: the facts that need no import of the library. The adapter is in ``adapter``."""

from streamkit.protocols.libraries import Library

LIBRARY = Library(
    "torch",
    label="torch",
    adapter="_torch.adapter",
    module="torch",
    mark="Tensor",
    requirements={  # the index decides for which CUDA a build is
        12: '"torch>=2.11" --index-url https://download.pytorch.org/whl/cu126',
        13: '"torch>=2.11" --index-url https://download.pytorch.org/whl/cu130',
    },
    on_macos='"torch>=2.11"',
    distribution="torch",
    oldest=(2, 11),
    newest=(2, 15),
    cuda=r"(?m)^cuda\b.*?=\s*(?:None|['\"]([\d.]+)['\"])",
    cuda_file="torch/version.py",
    has_current=True,
    kernels=r"(?<![\w:])(at|at_cuda_detail|c10|torch)::|^triton_",
    operation=r"(\w+?)_kernel_cuda\b|(\w+)Functor<|CUDAFunctor(?:On\w+?)?_(\w+)",
    colour="#D55E00",
    uncompiled={  # the marks of torch.compiler.disable, whose wrapper would make each call slower
        "_torchdynamo_disable": True,
        "_torchdynamo_disable_msg": "streams are no part of a compiled graph. Put 'with "
        "streamkit.use(stream):' around the call of the compiled function, and order streams "
        "before or after that call",
    },
)
