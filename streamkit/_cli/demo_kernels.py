"""The demo's Warp kernels, in a file of their own because Warp is imported at its top."""

# Warp's types are calls and its functions are not typed for kernels, so type checkers stay out:
# mypy: ignore-errors
# pyright: basic, reportMissingImports=false, reportInvalidTypeForm=false, reportCallIssue=false
# pyright: reportArgumentType=false, reportAssignmentType=false, reportGeneralTypeIssues=false

import warp as wp

# No kernel here is differentiated, and the backward halves take as long to compile.
wp.set_module_options({"enable_backward": False})


@wp.kernel
def make(period: int, out: wp.array2d(dtype=float)) -> None:
    i, j = wp.tid()
    out[i, j] = float((i * out.shape[1] + j) % period) / float(period)


@wp.kernel
def stretch(x: wp.array2d(dtype=float), strength: float, out: wp.array2d(dtype=float)) -> None:
    i, j = wp.tid()
    v = strength * x[i, j]
    full = wp.log(strength + wp.sqrt(strength * strength + 1.0))
    out[i, j] = wp.log(v + wp.sqrt(v * v + 1.0)) / full


@wp.kernel
def blur(x: wp.array2d(dtype=float), out: wp.array2d(dtype=float)) -> None:
    i, j = wp.tid()
    above = x[wp.max(i - 1, 0), j]
    below = x[wp.min(i + 1, x.shape[0] - 1), j]
    out[i, j] = (above + 2.0 * x[i, j] + below) / 4.0
