"""How many requests a second a service answers with one graphed function, in several ways.

python docs/evidence/service.py

Threads answer requests: each makes an input on the GPU, calls the model, and reads one number of
the result. Printed for each way, with one stream for all threads and with one for each: requests a
second, the median time of a call in one thread that does not wait, and how many answers were wrong.
"""

from __future__ import annotations

import statistics
import threading
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

import streamkit as sk

if TYPE_CHECKING:
    from collections.abc import Callable

THREADS, REQUESTS, VALUES, ROUNDS = 4, 500, 16, 5
SHAPE, NEAR = (16, 512), 1e-3

torch.manual_seed(0)
layers = [torch.randn(SHAPE[1], SHAPE[1], device="cuda") / SHAPE[1] ** 0.5 for _ in range(20)]


def model(x: Any) -> Any:
    """Apply forty small kernels, which take longer to launch than to run."""
    for weight in layers:
        x = torch.tanh(x @ weight)
    return x


def into(x: Any, out: Any) -> None:
    """Write the result into an argument."""
    out.copy_(model(x))


def new_input(value: int) -> Any:
    """Make the input of a request."""
    return torch.full(SHAPE, value / VALUES + 0.1, device="cuda")


expected = [float(model(new_input(value))[0, 0]) for value in range(VALUES)]
Call = "Callable[[Any], Any]"


def eager() -> Callable[[], Call]:
    """Call the model itself."""
    return lambda: model


def copied() -> Callable[[], Call]:
    """Share one graph with copies."""
    shared = sk.graphed(model, copy=True)
    return lambda: shared


def passed() -> Callable[[], Call]:
    """Share one graph with copies, and pass the result as an argument."""
    shared = sk.graphed(into, copy=True)

    def of_a_thread() -> Call:
        def call(x: Any) -> Any:
            out = torch.empty(SHAPE, device="cuda")
            shared(x, out)
            return out

        return call

    return of_a_thread


def locked() -> Callable[[], Call]:
    """Share a graph without copies: the program copies, and holds a lock meanwhile."""
    shared, lock, own = sk.graphed(model), threading.Lock(), torch.empty(SHAPE, device="cuda")

    def call(x: Any) -> Any:
        with lock:
            own.copy_(x)
            return shared(own).clone()

    return lambda: call


def own_graphs() -> Callable[[], Call]:
    """Give each thread a graph of its own, with the memory that each graph takes."""

    def of_a_thread() -> Call:
        graphed, own = sk.graphed(model), torch.empty(SHAPE, device="cuda")

        def call(x: Any) -> Any:
            own.copy_(x)
            return graphed(own)

        return call

    return of_a_thread


def serve(calls: list[Call], streams: list[Any]) -> tuple[float, int]:
    """Let a thread for each call answer its requests; return the seconds, and the wrong answers."""
    begin, wrong = threading.Barrier(len(calls) + 1), []

    def work(number: int) -> None:
        begin.wait()
        for request in range(REQUESTS):
            value = (number * 7 + request) % VALUES
            with sk.use(streams[number], libraries=["torch"]):
                answer = float(calls[number](new_input(value))[0, 0])
            if abs(answer - expected[value]) > NEAR:
                wrong.append(answer)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(calls))]
    for thread in threads:
        thread.start()
    begin.wait()
    begun = perf_counter()
    for thread in threads:
        thread.join()
    return perf_counter() - begun, len(wrong)


def time_of_a_call(call: Call, stream: Any, x: Any = None) -> float:
    """Return the microseconds of the host in one call, of which many do not fill the queue."""
    x, times = new_input(0) if x is None else x, []
    with sk.use(stream, libraries=["torch"]):
        for _ in range(50):
            torch.cuda.synchronize()
            begun = perf_counter()
            for _ in range(20):
                call(x)
            times.append((perf_counter() - begun) / 20 * 1e6)
    return statistics.median(times)


print(torch.cuda.get_device_name(), torch.__version__)
for way in (eager, copied, passed, locked, own_graphs):
    for many in (False, True):
        streams = [sk.new_stream(nonblocking=True) for _ in range(THREADS if many else 1)]
        streams *= THREADS // len(streams)
        make = way()
        calls = [make() for _ in range(THREADS)]
        for call, stream in zip(calls, streams, strict=True):
            with sk.use(stream, libraries=["torch"]):
                for _ in range(3):
                    call(new_input(0))
        torch.cuda.synchronize()
        found = [serve(calls, streams) for _ in range(ROUNDS)]
        rate = THREADS * REQUESTS / statistics.median(seconds for seconds, _ in found)
        took, wrong = time_of_a_call(calls[0], streams[0]), sum(errors for _, errors in found)
        which = "a stream for each thread" if many else "one stream"
        print(f"{way.__name__:10} {which:24} {rate:7.0f}/s {took:6.1f} us a call, {wrong} wrong")

many = torch.nn.Sequential(*(torch.nn.Linear(8, 8, device="cuda") for _ in range(50)))
many.requires_grad_(requires_grad=False)
times, small = {}, torch.zeros(8, 8, device="cuda")
for weights in (False, True):
    function = sk.graphed(many, weights=weights)
    with sk.use(sk.new_stream(nonblocking=True), libraries=["torch"]):
        for _ in range(3):
            function(small)
        times[weights] = time_of_a_call(function, sk.current_stream(), small)
print(f"weights=True: a hundred parameters cost {times[True] - times[False]:.1f} us a call")
