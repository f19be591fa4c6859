"""The pictures of a report: the rows in the terminal, and the trace that Perfetto reads."""

from __future__ import annotations

import io
import json
import re
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamkit as sk
from streamkit.diagnostics.audit.audit import AuditReport  # reports are made up here
from streamkit.diagnostics.pictures import chrome_trace  # reports are made up here
from streamkit.diagnostics.pictures.styles import STYLES  # reports are made up here
from streamkit.diagnostics.pictures.timeline import plain, verdict  # reports are made up here
from streamkit.diagnostics.recording.operations import (  # reports are made up here
    AuditedQueue,
    Operation,
)
from streamkit.errors import OneQueueError
from support.programs import python
from support.queues import pending
from support.recorded import LEGACY, TORCH, WARP, report


def small(*operations):
    made = AuditReport()
    made.complete(operations)
    return made


def show(made, capsys, columns=60):
    console = pytest.importorskip("rich.console")
    from streamkit.diagnostics.pictures import terminal  # it prints to a console of the test

    terminal.show(made, console.Console(width=columns, highlight=False))
    return capsys.readouterr().out


def below(lines, start):
    (place,) = [place for place, line in enumerate(lines) if line.startswith(start[:9])]
    return lines[place + 1]


# -- the terminal -----------------------------------------------------------------------------


def test_a_row_shows_whose_work_is_most_of_each_cell(capsys):
    output = show(
        small(
            Operation("kernel", "a", TORCH, 0, 400, "torch"),
            Operation("kernel", "b", TORCH, 400, 600, "cupy"),
            Operation("kernel", "c", TORCH, 610, 680, None),
            Operation("kernel", "d", TORCH, 680, 690, "warp"),
            Operation("synchronisation", "sync", None, 800, 1000, blocks_host=True),
        ),
        capsys,
        columns=10,
    )
    lines = output.splitlines()
    assert below(lines, str(TORCH)) == "ttttcc#···"
    assert below(lines, "the host ") == "········=="


def test_each_librarys_letter_is_on_its_colour_in_the_rows_and_in_the_legend():
    console = pytest.importorskip("rich.console")
    from streamkit.diagnostics.pictures import terminal  # it prints to a console of the test

    operations = (
        Operation("kernel", "k", TORCH, n * 100, n * 100 + 100, library)
        for n, library in enumerate(STYLES)
    )
    drawn = console.Console(
        width=len(STYLES), color_system="truecolor", force_terminal=True, file=io.StringIO()
    )
    terminal.show(small(*operations), drawn)
    seen = re.findall(
        r"\x1b\[1;38;2;[\d;]+;48;2;(\d+);(\d+);(\d+)m(.)\x1b\[0m", drawn.file.getvalue()
    )
    found = [(letter, "#{:02X}{:02X}{:02X}".format(*map(int, rgb))) for *rgb, letter in seen]
    expected = [(style.letter, style.colour) for style in STYLES.values()]
    assert found == expected * 2


def test_text_can_be_read_on_each_librarys_colour():
    def luminance(colour):
        parts = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
        linear = [
            one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in parts
        ]
        return sum(
            weight * one for weight, one in zip((0.2126, 0.7152, 0.0722), linear, strict=True)
        )

    assert STYLES
    for style in STYLES.values():
        dark, light = sorted(map(luminance, (style.colour, style.ink)))
        assert (light + 0.05) / (dark + 0.05) >= 4.5, style  # WCAG 2.2, AA


def test_the_terminal_names_what_ran_and_what_to_look_at(capsys):
    output = show(report("before"), capsys, columns=90)
    first, second, *_ = output.splitlines()
    assert first == "3 queues; CuPy's multiply began before torch's fill ended."
    assert second == "6 operations on 3 queues in 0.391 ms."
    assert f"\n{TORCH}: " in output
    assert "3 x sin [torch]" in output
    assert f"\n{LEGACY}: multiply [CuPy]\n" in output
    assert f"\n{WARP}: add_one [Warp]\n" in output
    assert "t torch  c CuPy  w Warp" in output
    assert "No queue waited for another, and the host never waited." in output
    assert "1 operation ran on the legacy default stream." in output
    assert max(map(len, output.splitlines())) <= 90


def test_what_held_the_host_is_listed_in_the_terminal_and_on_the_page(capsys, tmp_path):
    queue = AuditedQueue("cuda:0", "a [bold] <b>", 1)
    held = [
        Operation("copy", "copy host to device", queue, n, n + 1, blocks_host=True) for n in (0, 1)
    ]
    made = small(
        *held, Operation("synchronisation", "cuCtxSynchronize", None, 2, 3, blocks_host=True)
    )
    last = show(made, capsys, columns=90).splitlines()[-4:]
    assert last == [
        "No queue waited for another, and the host waited 3 times.",
        "What held the host:",
        "  copy host to device on a [bold] <b> (cuda:0) (2 times)",
        "  cuCtxSynchronize on a whole device",
    ]
    text = made.to_html(tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<h2>What held the host</h2>" in text
    assert "<li>copy host to device on a [bold] &lt;b&gt; (cuda:0) (2 times)</li>" in text
    work = Operation("kernel", "k", queue, 0, 1)
    assert "held the host" not in show(small(work), capsys)
    assert "held the host" not in small(work).to_html(tmp_path / "page.html").read_text()


def test_a_kernel_is_called_by_its_name_alone(capsys):
    name = "(anonymous namespace)::m::_3clocals_3e::add_one[abi:v1][abi:cw51cXTLSUwv1sDUaKthqaNg]"
    assert ": add_one [numba-cuda]\n" in show(
        small(Operation("kernel", name, TORCH, 0, 9, "numba")), capsys
    )


def test_of_a_long_row_the_first_names_are_shown_and_the_rest_counted(capsys):
    work = [Operation("kernel", f"k{n}", TORCH, n, n + 1, None) for n in range(10)]
    assert ", k5, and 4 more\n" in show(small(*work), capsys, columns=90)


def test_a_name_of_several_lines_or_with_orders_to_the_terminal_is_written_out(capsys):
    queue = AuditedQueue("cpu", "[red]one\n\x1b[2Jtwo é", 1)
    made = small(Operation("function", "f\x1b[2J\n", queue, 0, 10))
    output = show(made, capsys)
    assert output.startswith("All work ran on [red]one\\n\\x1b[2Jtwo é (cpu).\n1 operation on 1 ")
    assert "\n[red]one\\n\\x1b[2Jtwo é (cpu): f\\x1b[2J\\n\n" in output
    with pytest.raises(OneQueueError) as caught:
        made.assert_one_queue(TORCH)
    assert "  f\\x1b[2J\\n on [red]one\\n\\x1b[2Jtwo é (cpu)\n" in str(caught.value)
    assert repr(made) == "<streamkit audit report: 1 operation, 1 queue>"


def test_a_terminal_that_has_no_such_letters_is_shown_their_numbers():
    pytest.importorskip("rich")
    done = python(
        """
import sys
import streamkit as sk
sys.stdout.reconfigure(encoding="ascii")
queue, other = sk.new_stream("cpu", name="é"), sk.new_stream("cpu")
with sk.audit() as report:
    queue.submit(int)
    queue.sync()
    other.submit(int)
report.show()
"""
    )
    assert "\n\\xe9 (cpu): int\n" in done
    assert re.search(r"\n#+[.]+\n", done)


def test_an_empty_report_is_shown(capsys):
    assert show(small(), capsys).startswith("Nothing ran.\n0 operations on 0 queues in 0.000 ms.\n")


def test_eight_queues_fit_a_terminal_of_24_lines(capsys):
    queues = [AuditedQueue("cuda:0", f"queue {n}", n) for n in range(8)]
    work = [Operation("kernel", f"k{n % 7}", queues[n % 8], n, n + 1, None) for n in range(400)]
    output = show(small(*work), capsys, columns=80)
    assert len(output.splitlines()) <= 23
    assert max(map(len, output.splitlines())) <= 80


def test_without_rich_the_line_that_installs_it_is_named():
    python(
        """
import streamkit as sk
with sk.audit() as report:
    pass
assert report._repr_html_()
try:
    report.show()
except sk.BackendNotInstalledError as error:
    assert str(error).endswith('pip install "rich"'), error
else:
    raise AssertionError
""",
        blocked=["rich", "cuda"],
    )


# -- the first sentence ------------------------------------------------------------------------


def test_work_in_turn_on_two_queues_is_not_told_as_early():
    made = small(
        Operation("kernel", "a", TORCH, 0, 10, "torch"),
        Operation("kernel", "b", WARP, 10, 20, "warp"),
    )
    assert verdict(made) == "2 queues; no two of them worked at the same time."


@pytest.mark.parametrize(("times", "named"), [((5, 10), "first"), ((5, 100), "second")])
def test_of_work_on_one_queue_that_counts_which_ends_last(times, named):
    """It began last, of what ends together. Branches of a graph run beside each other."""
    made = small(
        Operation("kernel", "first", TORCH, 0, 100, "torch"),
        Operation("kernel", "second", TORCH, *times, "torch"),
        Operation("kernel", "b", WARP, 50, 60, "warp"),
    )
    assert verdict(made) == f"2 queues; Warp's b began before torch's {named} ended."


def test_work_of_two_libraries_at_once_comes_before_that_of_one():
    made = small(
        Operation("kernel", "a", TORCH, 0, 100, "torch"),
        Operation("kernel", "b", LEGACY, 5, 20, "torch"),
        Operation("kernel", "cupy_multiply__float32", WARP, 30, 40, "cupy"),
    )
    assert verdict(made) == "3 queues; CuPy's multiply began before torch's a ended."


def test_two_operations_of_one_name_are_told_apart_by_their_queues():
    made = small(
        Operation("kernel", "a", TORCH, 0, 100, "torch"),
        Operation("kernel", "a", WARP, 5, 20, "torch"),
    )
    assert verdict(made) == (
        f"2 queues; torch's a on {WARP} began before torch's a on {TORCH} ended."
    )


def test_of_host_queues_the_sentence_names_functions_and_queues():
    first, second = (AuditedQueue("cpu", name, n) for n, name in enumerate(("reader", "writer")))
    made = small(
        Operation("function", "write", second, 0, 9), Operation("function", "read", first, 5, 7)
    )
    assert verdict(made) == (
        "2 queues; read on reader (cpu) began before write on writer (cpu) ended."
    )


@pytest.mark.parametrize(
    ("library", "name", "does"),
    [
        ("torch", "at::native::vectorized_elementwise_kernel<4, FillFunctor<float>, char>", "fill"),
        ("torch", "k<BinaryFunctor<float, at::native::MulFunctor<float> > >", "mul"),
        ("torch", "k<4, at::native::CUDAFunctorOnSelf_add<float>, x>", "add"),
        ("torch", "at::native::reduce_kernel<512>", "reduce_kernel<512>"),
        ("cupy", "cupy_multiply__float32_float_float32", "multiply"),
        ("cupy", "cupy_sum", "sum"),
        ("warp", "_inc_1bce00cc_cuda_kernel_forward", "inc"),
        (None, "cupy_multiply__float32", "cupy_multiply__float32"),
    ],
)
def test_what_a_kernel_does_is_read_from_its_librarys_names(library, name, does):
    assert plain(Operation("kernel", name, TORCH, 0, 1, library)) == does


def test_in_a_notebook_a_report_is_its_sentence_and_its_page():
    name = "</iframe><script>alert(1)</script>"
    made = small(Operation("function", name, AuditedQueue("cpu", "q", 1), 0, 9))
    cell = made._repr_html_()
    assert cell.startswith("<p>All work ran on q (cpu).</p><iframe srcdoc=")
    assert cell.count("<") == 4  # p and iframe: all the rest is an attribute's text
    with sk.audit() as report:
        assert report._repr_html_() is None


# -- the trace --------------------------------------------------------------------------------


def test_the_trace_is_what_perfetto_reads(tmp_path):
    made = report("waits")
    made.to_chrome_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {event["ph"] for event in events} == {"M", "X", "s", "f"}
    named = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in events
        if event["name"] == "thread_name"
    }
    assert len(set(named)) == len(named) == 5
    for event in events:
        if event["ph"] != "M":
            assert event["ts"] >= 0
            assert (event["pid"], event["tid"]) in named
        if event["ph"] == "X":
            assert event["dur"] >= 0
    kernels = [event for event in events if event.get("args", {}).get("kind") == "kernel"]
    assert [event["ts"] * 1000 for event in kernels] == pytest.approx(
        sorted(one.start_ns for one in made.work)
    )
    assert named[kernels[0]["pid"], kernels[0]["tid"]] == str(TORCH)
    assert kernels[0]["cat"] == "torch"


def test_a_wait_is_a_flow_from_slice_to_slice():
    events = list(chrome_trace.events(report("waits")))
    starts = {event["id"]: event for event in events if event["ph"] == "s"}
    ends = {event["id"]: event for event in events if event["ph"] == "f"}
    slices = {(event["pid"], event["tid"], event["ts"]) for event in events if event["ph"] == "X"}
    assert len(starts) == 6
    assert set(starts) == set(ends)
    for number, start in starts.items():
        end = ends[number]
        assert end["bp"] == "e"
        assert start["ts"] <= end["ts"]
        assert start["tid"] != end["tid"]
        for event in (start, end):
            assert (event["pid"], event["tid"], event["ts"]) in slices


def test_each_device_is_a_process():
    second = AuditedQueue("cuda:1", "torch stream id=9", 9, key=(3, 9))
    made = small(
        Operation("kernel", "a", LEGACY, 0, 1, None),
        Operation("kernel", "b", second, 0, 1, None),
        Operation("kernel", "c", WARP, 0, 1, None),
    )
    processes = {
        event["pid"]: event["args"]["name"]
        for event in chrome_trace.events(made)
        if event["name"] == "process_name"
    }
    assert sorted(processes.values()) == ["cuda:0", "cuda:1"]


def tracks(made):
    """Return the slices of each thread of the trace, and check that Perfetto keeps them all.

    It keeps one that begins inside another only if that one is not over before it.
    """
    found, names = {}, {}
    for event in chrome_trace.events(made):
        place = event["pid"], event.get("tid")
        if event["name"] == "thread_name":
            assert place not in names
            names[place] = event["args"]["name"]
        if event["ph"] == "X":
            start = round(event["ts"] * 1000)
            found.setdefault(place, []).append((start, start + round(event["dur"] * 1000)))
    for place, slices in found.items():
        assert place in names
        open_ = []
        for start, end in sorted(slices, key=lambda one: one[0]):  # of one time: as written
            while open_ and open_[-1] <= start:
                open_.pop()
            assert not open_ or end <= open_[-1], slices
            open_.append(end)
    return {place: (names[place], slices) for place, slices in found.items()}


def test_branches_of_a_graph_are_on_tracks_beside_each_other():
    made = report("graph")
    found = tracks(made).values()
    assert made.queues
    for queue in made.queues:
        beside = [len(slices) for name, slices in found if name == str(queue)]
        assert sorted(beside) == [1, 2]  # of the three kernels of a launch


def test_threads_that_wait_at_once_are_on_tracks_beside_each_other():
    streams = [sk.new_stream("cpu") for _ in range(3)]
    held = [threading.Event() for _ in streams]
    with sk.audit() as made:
        threads = [threading.Thread(target=stream.sync) for stream in streams]
        for stream, event, thread in zip(streams, held, threads, strict=True):
            stream.submit(event.wait)
            thread.start()
            while pending(stream) == 1:  # until it waits
                time.sleep(0.001)
        for event, thread in zip(held, threads, strict=True):  # the first one's end is the first
            event.set()
            thread.join()
    waits = [slices for name, slices in tracks(made).values() if name == "the host waits"]
    assert sum(map(len, waits)) == 3


TIMES = st.integers(0, 12)


@given(st.lists(st.tuples(TIMES, TIMES, st.sampled_from([TORCH, WARP, None]))))
def test_no_slice_is_lost_whatever_overlaps(drawn):
    operations = [
        Operation("kernel", "k", queue, start, start + length)
        if queue is not None
        else Operation("synchronisation", "s", None, start, start + length, blocks_host=True)
        for start, length, queue in drawn
    ]
    made = small(*operations)
    assert sum(len(slices) for _, slices in tracks(made).values()) == len(operations)


def test_what_runs_inside_another_or_after_it_needs_no_other_track():
    times = [(0, 100), (0, 40), (40, 60), (60, 60), (100, 120)]
    made = small(*(Operation("kernel", "k", TORCH, start, end) for start, end in reversed(times)))
    assert len(tracks(made)) == 1
