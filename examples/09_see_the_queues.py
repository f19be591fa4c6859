"""See where each library's work really ran: on three queues before, and on one after."""

import json
import sys
from pathlib import Path

try:
    import numpy as np
except ModuleNotFoundError:
    sys.exit("This example needs NumPy. Install it with: pip install numpy")

import streamkit as sk

s = sk.new_stream(name="one for all")
on_gpu = sk.is_available()
if on_gpu:
    import cupy
    import torch
    import warp as wp

    @wp.kernel
    def _inc(a: wp.array(dtype=float)) -> None:
        a[wp.tid()] += 1.0

    wp.init()
    versions = {one.__name__: one.__version__ for one in (torch, cupy, wp)}
    own = sk.wrap(torch.cuda.Stream())
    big = torch.ones(100_000_000, device="cuda")
    x = torch.zeros(4, device="cuda")
    y, z = cupy.from_dlpack(x), wp.from_torch(x)  # x's memory, for CuPy and for Warp
    stages = [(big.sin_,)] * 5  # torch is busy
    stages += [(x.fill_, 3), (cupy.multiply, y, 2, y), (wp.launch, _inc, 4, [z])]
else:
    versions = {"numpy": np.__version__}
    own = [sk.new_stream(name=f"queue {number}") for number in (1, 2, 3)]
    big, x = np.ones(5_000_000), np.zeros(4)
    stages = [(np.sin, big, big), (np.copyto, x, 3), (np.multiply, x, 2, x), (np.add, x, 1, x)]


def _before() -> None:
    if on_gpu:
        with torch.cuda.stream(own.native):  # CuPy and Warp stay where they are
            for stage, *arguments in stages:
                stage(*arguments)
    else:
        for queue, (stage, *arguments) in zip([own[0], *own], stages, strict=True):
            queue.submit(stage, *arguments)


def _after() -> None:
    for stage, *arguments in stages:
        s.submit(stage, *arguments)


record = {"date": str(np.datetime64("today")), "versions": versions, "x": {}}
for name, run in (("before", _before), ("after", _after)):
    _after()  # so that what first kernels take is over in the audit
    s.sync()
    with sk.audit() as report:
        run()
    if on_gpu:
        torch.cuda.synchronize()
    record["x"][name] = float(x[0])
    record[name] = report.as_data()
    print(f"\n{name.capitalize()}, x is {record['x'][name]:g}. In order it is 3 * 2 + 1 = 7.")
    report.show()
for path in sys.argv[1:]:  # as JSON
    Path(path).write_text(json.dumps(record), encoding="utf-8")
before, after = (found == 3 * 2 + 1 for found in record["x"].values())
if on_gpu and before:
    sys.exit("x was right before, too: this time nothing ran too early.")
sys.exit(not after or bool(report.off_queue(s)))
