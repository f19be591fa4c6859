"""A process fills arrays, and another one adds them up: on a GPU without a copy.

The token of an array is some hundred bytes. They go through a pipe here; multiprocessing,
Ray or Dask would pickle it. Without a GPU the array itself goes, once it is written.
"""

import pickle
import subprocess
import sys

try:
    import numpy as np
except ModuleNotFoundError:
    sys.exit("This example needs NumPy. Install it with: pip install numpy")

import streamkit as sk

STEPS, SIZE = 5, 100_000

RECEIVER = """
import pickle, sys
import streamkit as sk
from streamkit.processes import token_from_bytes

s = sk.new_stream()
for line in sys.stdin:
    sent = bytes.fromhex(line)
    if not sk.is_available():
        numbers = pickle.loads(sent)
    else:
        numbers = token_from_bytes(sent).open(s, "cupy")  # in order on s
    with s:
        print(float(numbers.sum()), flush=True)
    del numbers  # the sender may have its memory back, once s has run the sum
"""

s = sk.new_stream(name="sender")
xp = np
if sk.is_available():
    import cupy as xp

receiver = subprocess.Popen(  # noqa: S603 - the program above
    [sys.executable, "-c", RECEIVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
)
sums = []
for step in range(STEPS):
    with s:
        numbers = xp.empty(SIZE)
    s.submit(numbers.fill, step)
    if not sk.is_available():
        s.sync()
        sent = pickle.dumps(numbers)
    else:
        lease = sk.share(numbers, after=s)  # keeps the array until the receiver has dropped it
        sent = bytes(lease.token)
    del numbers
    receiver.stdin.write(sent.hex() + "\n")
    receiver.stdin.flush()
    sums.append(float(receiver.stdout.readline()))
receiver.communicate()

print(f"Another process has added up {STEPS} arrays of {SIZE:,} numbers on {s.device}.")
print(f"For each of them {len(sent) / 1000:.3g} kB went through the pipe.")
print(f"The sums are {', '.join(f'{one:,.0f}' for one in sums)}.")
sys.exit(sums != [step * SIZE for step in range(STEPS)])
