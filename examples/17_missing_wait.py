"""A wait is missing: `sk.races` names it, and the line where it belongs.

The two streams are host streams, so it runs everywhere. Around work on a GPU the same block
sees what torch, CuPy, Warp and all other libraries launch.
"""

import sys

try:
    import numpy as np
except ModuleNotFoundError:
    sys.exit("This example needs NumPy. Install it with: pip install numpy")

import streamkit as sk

load = sk.new_stream("cpu", name="load")
work = sk.new_stream("cpu", name="work")
batch, result = np.zeros(1000), np.zeros(1000)

with sk.races() as careless:
    load.submit(np.copyto, batch, 7)
    work.submit(np.multiply, batch, 2, result)  # perhaps before the batch is there
load.sync()
work.sync()

with sk.races() as careful:
    load.submit(np.copyto, batch, 8)
    work.wait(load)
    work.submit(np.multiply, batch, 2, result)
work.sync()

for race in careless.races:
    print(f"Without the wait there is a race on {race.array}.")
    print(f"The fix: {race.fix}.")
print(f"With the wait {len(careful.races)} are found: {careful.coverage}")
print(f"Then the result is {result[0]:g}.")

found = [race.array.name for race in careless.certain]
sys.exit(found != ["batch"] or bool(careful.races) or not np.all(result == 2 * 8))
