"""A function of a library that takes anybody's stream, and uses the caller's if it gets none."""

import sys
from typing import Any

try:
    import numpy as np
except ModuleNotFoundError:
    sys.exit("This example needs NumPy. Install it with: pip install numpy")

import streamkit as sk

s = sk.new_stream()
if sk.is_available():
    import cupy as xp
else:
    xp = np


def smooth(x: Any, *, stream: sk.StreamLike | None = None) -> Any:
    """Return the mean of each element and its two neighbours, computed on `stream`.

    `stream` is a stream of any library; None means the current one of the library of `x`. The
    caller orders it after whatever made `x`.
    """
    if stream is None:
        stream = sk.current_stream(of=x)
    with sk.use(stream):
        return (xp.roll(x, 1) + x + xp.roll(x, -1)) / 3


results = {}
with s:
    x = xp.arange(9.0)
    results["inside its scope"] = smooth(x)  # on s: it is current here
results["given the stream"] = smooth(x, stream=s)
if sk.is_available():
    import torch

    theirs = torch.cuda.Stream()  # a stream of a library that `smooth` has never heard of
    sk.wrap(theirs).wait(s)
    results["given a stream of torch"] = smooth(x, stream=theirs)
    s.wait(theirs)
s.sync()

expected = [3, 1, 2, 3, 4, 5, 6, 7, 5]
all_right = True
for how, found in results.items():
    right = np.allclose(found if xp is np else found.get(), expected)
    print(f"smooth(), {how}, is {'right' if right else 'wrong'} on {s.device}.")
    all_right = all_right and right
sys.exit(not all_right)
