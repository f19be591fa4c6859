"""See where each library's work really ran: on three queues before, and on one after."""

import json
import sys
from pathlib import Path

import numpy as np

import streamkit as sk

s = sk.new_stream(name="one for all")
if s.device == "cpu":
    own = [sk.new_stream(name=f"queue {number}") for number in (1, 2, 3)]
    x, big, versions = np.zeros(4), np.ones(5_000_000), {"numpy": np.__version__}
    stages = [(np.sin, big, big), (np.copyto, x, 3), (np.multiply, x, 2, x), (np.add, x, 1, x)]

    def _before() -> None:
        for queue, (stage, *arguments) in zip([own[0], *own], stages, strict=True):
            queue.submit(stage, *arguments)

else:
    import cupy
    import torch
    import warp as wp

    @wp.kernel
    def _inc(a: wp.array(dtype=float)) -> None:
        a[wp.tid()] += 1.0

    wp.init()
    versions = {one.__name__: one.__version__ for one in (torch, cupy, wp)}
    x, big = torch.zeros(4, device="cuda"), torch.ones(100_000_000, device="cuda")
    own, y, z = sk.wrap(torch.cuda.Stream()), cupy.from_dlpack(x), wp.from_torch(x)  # x's memory
    stages = [*[(big.sin_,)] * 5, (x.fill_, 3), (cupy.multiply, y, 2, y), (wp.launch, _inc, 4, [z])]

    def _before() -> None:
        with torch.cuda.stream(own.native):  # CuPy and Warp stay where they are
            for stage, *arguments in stages:
                stage(*arguments)


def _after() -> None:
    for stage, *arguments in stages:
        s.submit(stage, *arguments)


record = {"date": str(np.datetime64("today")), "versions": versions, "x": {}}
for name, run in ("before", _before), ("after", _after):
    with sk.audit():  # around another, so that what first kernels take is over in that
        _after()
        s.sync()
        with sk.audit() as report:
            run()
    record["x"][name], record[name] = float(x[0]), report.as_data()
    print(f"\n== {name}: x is {record['x'][name]}, and should be 7")
    report.show()
for path in sys.argv[1:]:  # as JSON
    Path(path).write_text(json.dumps(record), encoding="utf-8")
right = [found == 3 * 2 + 1 for found in record["x"].values()]  # on a GPU not before
sys.exit(right != [s.device == "cpu" and right[0], True] or bool(report.off_queue(s)))
