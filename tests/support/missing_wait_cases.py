"""The examples and pages that order work, and why no race is found without some of their calls.

``HOST`` is for what they do on host streams, ``GPU`` for one GPU. A new program with a wait belongs
in both, as tests/unit/tools/test_missing_waits.py demands.
"""

from __future__ import annotations

from typing import NamedTuple


class Cases(NamedTuple):
    """Programs, by their paths, and what is known of them."""

    programs: tuple[str, ...]
    on_purpose: dict[str, int]
    """How many certain races a program has because it shows them."""
    possible: dict[str, int]
    """How many possible races it has."""
    not_found: dict[str, dict[str, str]]
    """Why no race is found without a call, by program and call."""


def _paths(folder: str, ending: str, names: str) -> tuple[str, ...]:
    return tuple(f"{folder}/{name}.{ending}" for name in names.split())


_EXAMPLES = _paths("examples", "py", (
    "01_torch_cupy 02_order_two_streams 03_library_author 04_without_a_gpu 06_two_devices "
    "07_thread_pool 17_missing_wait 18_prefetcher"
))  # fmt: skip
_LISTS = "the functions use lists, and no arrays"
_BODY = "the work is the body of a scope, which is not looked at"
_BLOCK = "the code of the block itself uses the array, on one of the two sides"
_PREFETCHER = {
    "load.wait(train)": "without it the race is there already, on purpose",
    "train.wait(load)": "the work that misses it is the caller's",
}
_ON_GPU = "it runs on a GPU alone"
_AGAIN = "before reader gets any work, it waits for writer again"

HOST = Cases(
    (
        "README.md",
        *_EXAMPLES,
        *_paths("docs", "md", (
            "quickstart concepts/queues guides/arrays guides/asyncio guides/library "
            "guides/races guides/testing guides/wrong-queue reference/functions "
            "reference/streams reference/testing cookbook/fails-sometimes"
        )),
    ),
    on_purpose={
        "docs/cookbook/fails-sometimes.md": 1,
        "docs/guides/races.md": 2,
        "docs/guides/testing.md": 1,
        "examples/17_missing_wait.py": 1,
        "examples/18_prefetcher.py": 1,
    },
    possible={"docs/guides/races.md": 2},  # a lambda, and the bodies of two scopes, on purpose
    not_found={
        "README.md": {"sk.use(s, ordered=True)": _BODY},
        "docs/concepts/queues.md": {"b.wait(ready)": _LISTS},
        "docs/guides/asyncio.md": {"s.wait(pool.submit(print, 'loaded'))": "it prints"},
        "docs/guides/library.md": {"mine.wait(side)": _BLOCK, "side.wait(mine)": _BLOCK},
        "docs/quickstart.md": {"sk.use(s, ordered=True)": _BODY},
        "docs/reference/testing.md": {"b.wait(a)": _LISTS},
        "examples/01_torch_cupy.py": {"sk.use(s, ordered=True)": _BODY},
        "examples/02_order_two_streams.py": {"reader.wait(writer)": _AGAIN},
        "examples/03_library_author.py": {
            "s.wait(theirs)": _ON_GPU,
            "sk.wrap(theirs).wait(s)": _ON_GPU,
        },
        "examples/07_thread_pool.py": {"join.wait(s)": _BLOCK, "s.wait(join)": _BLOCK},
        "examples/18_prefetcher.py": _PREFETCHER,
    },
)  # fmt: skip

_INSIDE = "all arrays of the block are made in it, and used after it "
_SYNC = f"{_INSIDE}only when the host has waited for its stream"
_NO_MORE = "all arrays of the block are made in it, and not used after it"
_STEPS = "the two are of two steps of a loop, so that the line of the first is below the wait"
_LEGACY = "the legacy stream makes the arrays and reads them, and both streams are blocking"
_JOIN = "a capture that is not joined fails, so that nothing runs"

GPU = Cases(
    (
        "README.md",
        *_EXAMPLES,
        *_paths("docs", "md", (
            "index quickstart concepts/queues concepts/capture guides/arrays "
            "guides/graphs guides/library guides/races guides/testing guides/torch-cupy "
            "guides/warp guides/wrong-queue reference/functions reference/streams "
            "reference/testing cookbook/cupy-reads-too-early cookbook/memory-written-again "
            "cookbook/two-libraries-at-once cookbook/gradients-on-another-stream "
            "cookbook/prefetch cookbook/fails-sometimes"
        )),
    ),
    on_purpose={
        "docs/cookbook/fails-sometimes.md": 1,
        "docs/guides/races.md": 4,  # the batch is reported twice: for its fill, and its zeros
        "docs/guides/testing.md": 1,
        "examples/17_missing_wait.py": 1,
        "examples/18_prefetcher.py": 1,
    },
    possible={"docs/guides/races.md": 2},  # as on the host
    not_found={
        "examples/18_prefetcher.py": _PREFETCHER,
        "README.md": {"sk.use(s, ordered=True)": _SYNC},  # of the program without a GPU
        "docs/quickstart.md": {
            "sk.use(s, ordered=True)": _SYNC,
            "reader.wait(theirs)": "nothing is given to reader afterwards",
        },
        "docs/cookbook/memory-written-again.md": {"s.wait(t)": _STEPS},
        "docs/cookbook/two-libraries-at-once.md": {
            "sk.handoff(x, second, after=first)":
                "DLPack lets second wait for torch's stream, the legacy one; that waits for first, "
                "which is blocking",
        },
        "docs/concepts/queues.md": {"b.wait(ready)": _LISTS},
        "docs/concepts/capture.md": {
            "b.wait(a)":
                "the addition to y runs at once, after the whole device was waited for; then the "
                "join fails",
            "a.wait(b)": _JOIN,
        },
        "docs/guides/arrays.md": {
            "sk.use(s, ordered=True)": f"{_INSIDE}only by a stream that waits for its stream",
        },
        "docs/guides/graphs.md": {
            "sk.use(s, ordered=True)": "float() before the block, and in it, lets the host wait",
            "g.stream.wait(t)": _JOIN,
        },
        "docs/guides/library.md": {"side.wait(mine)": _LEGACY, "mine.wait(side)": _LEGACY},
        "docs/guides/races.md": {
            "side.wait(g.stream)":
                "CuPy multiplies at once, on a blocking stream, after the legacy one has made t; "
                "the addition is captured, and then the join fails",
            "g.stream.wait(side)": _JOIN,
        },
        "docs/guides/torch-cupy.md": {"producer.wait(consumer)": _STEPS},
        "docs/guides/warp.md": {
            "sk.use(s, ordered=True)":
                "s is blocking, and the legacy stream has made x; the host waits for s before it "
                "reads the sum",
            "sk.use(theirs, ordered=True)":
                f"{_NO_MORE}; StreamKit lets Warp's free wait for the stream",
        },
        "docs/reference/functions.md": {"sk.use(theirs, ordered=True)": _NO_MORE},
        "docs/reference/testing.md": {"b.wait(a)": _LISTS},
        "examples/07_thread_pool.py": {
            "join.wait(s)": "the legacy stream reads the array, and all streams are blocking",
        },
        "examples/01_torch_cupy.py": {"sk.use(s, ordered=True)": _SYNC},
        "examples/02_order_two_streams.py": {"reader.wait(writer)": _AGAIN},
    },
)  # fmt: skip

ELSEWHERE = {
    "docs/guides/asyncio.md": "host streams alone, so that HOST is enough",
    "docs/cookbook/several-gpus.md": "two GPUs: torch's copies between devices order themselves",
    "docs/why.md": "the first of its blocks has races on purpose, and the host waits for that one",
    "docs/reference/processes.md": "the event is for another process, which races() does not see",
    "examples/11_torchrun.py": "the work is in several processes",
    "examples/12_ray.py": "the work is in other processes",
    "examples/13_dask.py": "the work is in other processes",
}
"""Why the waits of the other programs are not taken out."""
