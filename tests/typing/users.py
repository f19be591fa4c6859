"""What a type checker says of users' programs: read by mypy and pyright, and never run.

A wrong call carries the error that it must give; without that error the comment is one. The classes
have what a library's own have, for the checkers answer without the libraries too.
"""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from typing import TYPE_CHECKING, Any, assert_type

import numpy as np

import streamkit as sk
from streamkit.processes import ArrayToken, EventToken, Lease, open_event, token_from_bytes
from streamkit.testing import accesses, assert_follows
from streamkit.types import CudaEvent, CudaGraph, CudaStream, HostStream

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from concurrent.futures import Future

    from streamkit.protocols import EventLike


class TorchStream:
    stream_id: int
    device_index: int
    cuda_stream: int


class TorchGenericStream:
    stream_id: int
    device_index: int


class WarpStream:
    cuda_stream: int | None = None


class CupyStream:
    ptr: int
    device_id: int

    def wait_event(self, event: object) -> None: ...


class CoreStream:
    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, 1


class NumbaStream:
    def auto_synchronize(self) -> None: ...


class CudaHandle:
    def getPtr(self) -> int:  # noqa: N802 - its own name
        return 0


class TorchEvent:
    cuda_event: int


class TorchGenericEvent:
    def elapsed_time(self, other: TorchGenericEvent) -> float:
        return 0.0


class TorchWork:
    def is_completed(self) -> bool:
        return True

    def get_future(self) -> TorchFuture:
        return TorchFuture()


class TorchFuture:
    def value(self) -> object: ...
    def add_done_callback(self, callback: Callable[[TorchFuture], object]) -> None: ...


class CupyEvent:
    ptr: int

    def record(self, stream: CupyStream | None = None) -> None: ...


class CoreEvent:
    handle: object

    @property
    def is_done(self) -> bool:
        return True


class CudaArray:
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {}


def streams_keep_their_types(core: CoreStream, anything: Any) -> None:
    assert_type(sk.wrap(TorchStream()), CudaStream[TorchStream])
    assert_type(sk.wrap(TorchGenericStream()), CudaStream[TorchGenericStream])
    assert_type(sk.wrap(WarpStream()), CudaStream[WarpStream])
    assert_type(sk.wrap(CupyStream()), CudaStream[CupyStream])
    assert_type(sk.wrap(core), CudaStream[CoreStream])
    assert_type(sk.wrap(NumbaStream()), CudaStream[NumbaStream])
    assert_type(sk.wrap(CudaHandle()), CudaStream[CudaHandle])
    assert_type(sk.wrap(sk.wrap(core)), CudaStream[CoreStream])
    assert_type(sk.wrap(HostStream()), HostStream)
    assert_type(sk.wrap(core).native, CoreStream)
    sk.wrap(anything)


def a_function_of_a_library(stream: sk.StreamLike, ours: sk.Stream) -> None:
    with sk.use(stream), sk.use(ours, ordered=True):
        pass
    sk.wrap(stream).wait(ours)
    sk.wrap(ours).wait(stream)


def a_decorated_function_keeps_its_signature(x: TorchStream) -> None:
    @sk.follow("torch", libraries=["cupy"])
    def smooth(array: CudaArray, *, times: int = 1) -> list[CudaArray]:
        return [array] * times

    array = CudaArray()
    assert_type(smooth(array, times=2), list[CudaArray])
    smooth(x)  # type: ignore[arg-type]
    smooth(array, time=2)  # type: ignore[call-arg]
    sk.follow(x)  # type: ignore[arg-type]
    with sk.follow("torch") as stream:
        assert_type(stream, CudaStream[Any] | HostStream)


class WithMethods:
    @sk.follow("torch")
    def run(self, count: int) -> int:
        return count

    def use_it(self) -> None:
        assert_type(self.run(1), int)


def any_event_is_one(s: sk.Stream, stream: sk.StreamLike, event: EventLike) -> None:
    for one in (TorchEvent(), TorchGenericEvent(), CupyEvent(), CoreEvent(), CudaHandle(), event):
        s.wait(one)
        s.record(one)
        sk.wrap_event(one)
    s.wait(stream)
    s.wait(s.record())


def arrays_keep_their_types(s: sk.Stream, array: np.ndarray[Any, np.dtype[np.float32]]) -> None:
    assert_type(sk.handoff(array, s), np.ndarray[Any, np.dtype[np.float32]])
    assert_type(sk.handoff(CudaArray(), s, after=s), CudaArray)
    assert_type(sk.current_stream(of=array), CudaStream[Any] | HostStream)


def processes(s: sk.Stream, array: CudaArray, data: bytes) -> None:
    lease = sk.share(array, after=s, copy=True)
    assert_type(lease, Lease)
    assert_type(lease.token, ArrayToken)
    assert_type(lease.token.open(s, library="torch"), Any)
    assert_type(lease.closed, bool)
    event = sk.new_event(interprocess=True)
    assert_type(event, CudaEvent)
    assert_type(event.export(), EventToken)
    assert_type(open_event(event.export()), CudaEvent)
    assert_type(token_from_bytes(data), ArrayToken | EventToken)
    sk.share("x")  # type: ignore[arg-type]
    open_event(lease.token)  # type: ignore[arg-type]


@sk.graphed
def graphed(array: CudaArray, *, rounds: int = 1) -> float:
    return 1.0


@sk.graphed(max_graphs=2, fallback=True)
def graphed_with_options(array: CudaArray) -> list[CudaArray]:
    return [array]


class Model:
    @sk.graphed
    def forward(self, array: CudaArray) -> CudaArray:
        return array


def graphed_functions_keep_their_signatures(array: CudaArray) -> None:
    assert_type(graphed(array, rounds=2), float)
    assert_type(graphed_with_options(array), list[CudaArray])
    assert_type(graphed.hits, int)
    assert_type(graphed.explain(array, rounds=2), str)
    assert_type(Model().forward(array), CudaArray)
    graphed("x")  # type: ignore[arg-type]
    graphed.explain("x")  # type: ignore[arg-type]
    graphed(array, round=2)  # type: ignore[call-arg]
    sk.graphed(5)  # type: ignore[call-overload]


def host_streams_wait_for_futures(
    s: HostStream, c: CudaStream[None], done: Future[int], task: asyncio.Future[None]
) -> None:
    s.wait(done)
    s.wait(task)
    c.wait(done)  # type: ignore[arg-type]


def any_stream_waits_for_work(
    s: sk.Stream, h: HostStream, c: CudaStream[None], work: TorchWork
) -> None:
    for stream in (s, h, c):
        stream.wait(work)
        stream.wait(work.get_future())
    sk.wrap(work)  # type: ignore[call-overload]


@accesses(reads=("x",), writes=["y"])
def doubles(x: CudaArray, y: CudaArray) -> int:
    return 2


def audits_are_typed(s: sk.Stream) -> None:
    with sk.audit() as report:
        assert_type(s.sync(), None)
    assert_type(report.legacy_work[0].place, int)
    sk.audit(times=True)  # type: ignore[call-arg]


def races_are_typed(x: CudaArray) -> None:
    assert_type(doubles(x, x), int)
    doubles(x)  # type: ignore[call-arg]
    accesses(("x",))  # type: ignore[call-arg]
    with sk.races({"x": x}) as report:
        pass
    for race in report.races:
        assert_type(race.certain, bool)
        assert_type(race.fix, str)
        assert_type(race.array.name, str | None)
        assert_type(race.first.line, int)
    assert_type(report.coverage.missed, tuple[str, ...])
    report.as_data()
    report.assert_none(possible=True)
    sk.races([x])  # type: ignore[arg-type]


def races_of_graphs_are_typed(x: CudaArray, graph: CudaGraph) -> None:
    report = graph.races({"x": x})
    assert_type(report.races[0].first.node, int | None)
    assert_type(report.races[0].first.section, str | None)
    graph.races([x])  # type: ignore[arg-type]


def wrong_streams(fn: Callable[[], None], event: CupyEvent) -> None:
    sk.wrap("x")  # type: ignore[call-overload]
    sk.wrap(5)  # type: ignore[call-overload]
    sk.wrap(None)  # type: ignore[call-overload]
    sk.wrap(fn)  # type: ignore[call-overload]
    sk.wrap(event)  # type: ignore[call-overload]
    sk.use("x")  # type: ignore[arg-type]


def modules_are_there(graph: CudaGraph) -> sk.types.Graph | sk.protocols.Stream | None:
    assert_type(sk.errors.DriverError("cuInit", "X", 1).code, int)
    sk.ScopeError()  # type: ignore[attr-defined]
    return graph if sk.is_available() else sk.default_stream(per_thread=True)


def ten_wrong_lines(s: sk.Stream, t: sk.Stream, x: CudaArray) -> None:
    sk.new_Stream()  # type: ignore[attr-defined]
    sk.testing.assert_folows(s)  # type: ignore[attr-defined]
    sk.new_stream(non_blocking=True)  # type: ignore[call-arg]
    sk.use(s, t)  # type: ignore[call-arg, arg-type]
    sk.current_stream(x)  # type: ignore[arg-type]
    sk.handoff(s, x)  # type: ignore[type-var, arg-type]
    s.wait(t, t)  # type: ignore[call-arg, arg-type]
    s.submit(print_it, 5)  # type: ignore[arg-type]
    s.keeps(x)  # type: ignore[attr-defined]
    s.then(len, x)  # type: ignore[arg-type]


async def what_every_stream_has(s: sk.Stream, x: CudaArray) -> None:
    s.submit(print_it, "x")
    s.keep(x, x)
    future: Future[int] = s.then(len, "x")
    awaitable: sk.types.Outcome[int] = s.then(len, "x")
    assert_type(await s.then(len, "x"), int)
    assert_type(future.result() + await awaitable, int)


def print_it(text: str) -> None: ...


def checks_that_a_function_follows(array: CudaArray) -> None:
    def fn(x: CudaArray, *, stream: sk.StreamLike | None = None) -> CudaArray:
        return x if stream is None else sk.handoff(x, stream)

    assert_type(assert_follows(fn, array), None)
    assert_follows(fn, array, library="torch")
    assert_follows(5)  # type: ignore[arg-type]
    assert_follows(fn, library=5)  # type: ignore[arg-type]


def wrong_events_and_arrays(s: sk.Stream, array: CudaArray) -> None:
    s.wait(5)  # type: ignore[arg-type]
    s.wait(array)  # type: ignore[arg-type]
    s.record("x")  # type: ignore[arg-type]
    s.record(s)  # type: ignore[arg-type]
    sk.wrap_event(s)  # type: ignore[arg-type]
    sk.wrap_event(array)  # type: ignore[arg-type]
    sk.handoff("x", s)  # type: ignore[type-var]
    sk.current_stream(of="x")  # type: ignore[arg-type]
    sk.handoff(array, 5)  # type: ignore[arg-type]
    s.synchronize()  # type: ignore[attr-defined]
