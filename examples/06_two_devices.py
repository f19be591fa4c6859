"""A queue of each of two devices: the second waits for the first, across devices.

On a machine with one GPU both queues are on that one, and without a GPU both are host streams.
"""

import sys
import time

try:
    import numpy as np
except ModuleNotFoundError:
    sys.exit("This example needs NumPy. Install it with: pip install numpy")

import streamkit as sk

# Non-blocking: nothing but the wait below orders them.
here = sk.new_stream(nonblocking=True, name="here")
there = sk.new_stream(here.device, nonblocking=True, name="there")
if not sk.is_available():
    x, y = np.zeros(1000), np.zeros(1000)

    def write() -> None:
        """Write, slowly."""
        time.sleep(0.05)
        x[:] = 7

    def read() -> None:
        """Copy what is there."""
        y[:] = x

else:
    import torch

    if torch.cuda.device_count() > 1:
        there = sk.new_stream("cuda:1", nonblocking=True, name="there")
    with here:
        a = torch.ones(4096, 4096, device=here.device)
        b, x = torch.empty_like(a), torch.zeros(1000, device=here.device)
    with there:
        y = torch.zeros(1000, device=there.device)
    here.sync()

    def write() -> None:
        """Write after a long product."""
        torch.mm(a, a, out=b)
        x.fill_(7)

    def read() -> None:
        """Copy what is there to the other device."""
        y.copy_(x, non_blocking=True)


here.submit(write)
there.wait(here)  # across devices, without the host
there.submit(read)
there.sync()

lowest, highest = float(y.min()), float(y.max())
print(f"The first queue, of {here.device}, wrote 7 in 1000 places.")
print(f"The second, of {there.device}, waited for it and read {lowest:g} to {highest:g}.")
sys.exit((lowest, highest) != (7, 7))
