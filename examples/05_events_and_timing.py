"""Two events measure what a queue did between them; the host neither waits nor is timed."""

import sys
import time

import streamkit as sk

s = sk.new_stream()
if not sk.is_available():

    def work() -> None:
        """Take 30 ms of a host stream."""
        time.sleep(0.03)

else:
    import torch

    a = torch.ones(4096, 4096, device=s.device)
    b = torch.mm(a, a)  # the first product prepares the library
    torch.cuda.synchronize()

    def work() -> None:
        """Queue ten products."""
        for _ in range(10):
            torch.mm(a, a, out=b)


before = time.perf_counter()
start = s.record(timing=True)
s.submit(work)
end = s.record(timing=True)
host = (time.perf_counter() - before) * 1000  # to submit it, which is all the host does
end.sync()

milliseconds = end - start
print(f"The queue worked for {milliseconds:.2f} ms: {s}.")
print(f"To give it the work took the host {host:.2f} ms.")
sys.exit(not milliseconds > 0)
