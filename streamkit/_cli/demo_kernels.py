"""The demo's Warp kernels, in a file of their own because Warp is imported at its top."""

# Warp's types are calls and its functions are not typed for kernels, so type checkers stay out:
# mypy: ignore-errors
# pyright: basic, reportMissingImports=false, reportInvalidTypeForm=false, reportCallIssue=false
# pyright: reportArgumentType=false, reportAssignmentType=false, reportGeneralTypeIssues=false

import warp as wp

# Nothing here is differentiated, and the backward halves take as long to compile.
wp.set_module_options({"enable_backward": False})


@wp.kernel
def luminance(
    rgb: wp.array3d(dtype=wp.uint8), weights: wp.vec3, gamma: float, out: wp.array2d(dtype=float)
) -> None:
    i, j = wp.tid()
    r = wp.pow(float(rgb[i, j, 0]) / 255.0, gamma)
    g = wp.pow(float(rgb[i, j, 1]) / 255.0, gamma)
    b = wp.pow(float(rgb[i, j, 2]) / 255.0, gamma)
    out[i, j] = wp.dot(weights, wp.vec3(r, g, b))


@wp.kernel
def stretch(x: wp.array2d(dtype=float), strength: float, out: wp.array2d(dtype=float)) -> None:
    i, j = wp.tid()
    v = strength * x[i, j]
    full = wp.log(strength + wp.sqrt(strength * strength + 1.0))
    out[i, j] = wp.log(v + wp.sqrt(v * v + 1.0)) / full


@wp.kernel
def sharpen(x: wp.array2d(dtype=float), amount: float, out: wp.array2d(dtype=float)) -> None:
    i, j = wp.tid()
    blurred = wp.float32(0.0)  # a call declares a variable that a loop changes
    for di in range(-1, 2):
        for dj in range(-1, 2):
            row = wp.clamp(i + di, 0, x.shape[0] - 1)
            column = wp.clamp(j + dj, 0, x.shape[1] - 1)
            weight = float((2 - wp.abs(di)) * (2 - wp.abs(dj))) / 16.0
            blurred += weight * x[row, column]
    out[i, j] = wp.clamp(x[i, j] + amount * (x[i, j] - blurred), 0.0, 1.0)


@wp.kernel
def mean(x: wp.array2d(dtype=float), out: wp.array(dtype=float)) -> None:
    i = wp.tid()
    total = wp.float32(0.0)  # a variable that the loop changes
    for j in range(x.shape[1]):
        total += x[i, j]
    wp.atomic_add(out, 0, total / float(x.shape[0] * x.shape[1]))
