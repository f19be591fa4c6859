"""The report in the terminal and in a notebook: what to look at, and what each queue was given."""

from __future__ import annotations

import pytest

import streamkit as sk
from streamkit.diagnostics.pictures.styles import STYLES  # reports are made up here
from streamkit.diagnostics.pictures.timeline import plain  # reports are made up here
from streamkit.diagnostics.recording.operations import AuditedQueue, Operation  # made up here
from streamkit.errors import OneQueueError
from support.programs import python
from support.reports import LEGACY, TORCH, WARP, before, small


def show(made, capsys):
    made.show()
    return capsys.readouterr().out


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
    assert show(before(), capsys).splitlines() == [
        "3 queues were given work, and none was told to wait for another.",
        "6 operations on 3 queues, in the order in which they were given.",
        "",
        f"{TORCH}: 3 x sin [torch], fill [torch]",
        f"{LEGACY}: multiply [CuPy]",
        f"{WARP}: add_one [Warp]",
        "",
        "No queue waited for another, and the host never waited.",
        "1 operation ran on the legacy default stream.",
    ]


def test_what_waited_has_a_row_although_it_did_no_work(capsys):
    made = small(Operation("wait", "wait", WARP, after=TORCH))
    output = show(made, capsys)
    assert output.startswith("Nothing ran.\n")
    assert f"\n{TORCH}: \n{WARP}: \n" in output
    assert "Queues waited for each other once, and" in output


def test_queues_that_wait_for_each_other_are_not_said_to_be_alone(capsys):
    work = [Operation("kernel", "k", queue, place=n) for n, queue in enumerate((TORCH, WARP))]
    made = small(*work, Operation("wait", "wait", WARP, after=TORCH, place=2, since=1))
    assert show(made, capsys).startswith("2 queues were given work.\n")


def test_what_held_the_host_is_listed_in_the_terminal_and_on_the_page(capsys, tmp_path):
    queue = AuditedQueue("cuda:0", "a [bold] <b>", 1)
    held = [Operation("copy", "copy host to device", queue, blocks_host=True) for n in (0, 1)]
    made = small(*held, Operation("synchronisation", "cuCtxSynchronize", None, blocks_host=True))
    last = show(made, capsys).splitlines()[-4:]
    assert last == [
        "No queue waited for another, and the host waited 3 times.",
        "What held the host:",
        "  copy host to device on a [bold] <b> (cuda:0) (2 times)",
        "  cuCtxSynchronize on a whole device",
    ]
    text = made.to_html(tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<h2>What held the host</h2>" in text
    assert "<li>copy host to device on a [bold] &lt;b&gt; (cuda:0) (2 times)</li>" in text
    work = Operation("kernel", "k", queue)
    assert "held the host" not in show(small(work), capsys)
    assert "held the host" not in small(work).to_html(tmp_path / "page.html").read_text()


def test_a_kernel_is_called_by_its_name_alone(capsys):
    name = "(anonymous namespace)::m::_3clocals_3e::add_one[abi:v1][abi:cw51cXTLSUwv1sDUaKthqaNg]"
    made = small(Operation("kernel", name, TORCH, "numba"))
    assert ": add_one [numba-cuda]\n" in show(made, capsys)


def test_of_a_long_row_the_first_names_are_shown_and_the_rest_counted(capsys):
    work = [Operation("kernel", f"k{n}", TORCH) for n in range(10)]
    assert ", k5, and 4 more\n" in show(small(*work), capsys)


def test_a_name_of_several_lines_or_with_orders_to_the_terminal_is_written_out(capsys):
    queue = AuditedQueue("cpu", "[red]one\n\x1b[2Jtwo é", 1)
    made = small(Operation("function", "f\x1b[2J\n", queue))
    output = show(made, capsys)
    assert output.startswith("All work ran on [red]one\\n\\x1b[2Jtwo é (cpu).\n1 operation on 1 ")
    assert "\n[red]one\\n\\x1b[2Jtwo é (cpu): f\\x1b[2J\\n\n" in output
    with pytest.raises(OneQueueError) as caught:
        made.assert_one_queue(TORCH)
    assert "  f\\x1b[2J\\n on [red]one\\n\\x1b[2Jtwo é (cpu)\n" in str(caught.value)
    assert repr(made) == "<streamkit audit report: 1 operation on 1 queue>"


def test_a_terminal_that_has_no_such_letters_is_shown_their_numbers():
    done = python(
        """
import sys
import streamkit as sk
sys.stdout.reconfigure(encoding="ascii")
queue = sk.new_stream("cpu", name="é")
with sk.audit() as report, sk.races() as races:
    queue.submit(int)
report.show()
races.show()
"""
    )
    assert "\n\\xe9 (cpu): int\n" in done


def test_functions_that_had_not_run_are_counted(capsys):
    made = small()
    made.complete((), unfinished=2)
    output = show(made, capsys)
    assert output.startswith("Nothing ran.\n0 operations on 0 queues, in the order")
    assert "2 functions had not run when the audit ended." in output


def test_eight_queues_fit_a_terminal_of_24_lines(capsys):
    queues = [AuditedQueue("cuda:0", f"queue {n}", n) for n in range(8)]
    work = [Operation("kernel", f"k{n % 7}", queues[n % 8], place=n) for n in range(400)]
    assert len(show(small(*work), capsys).splitlines()) <= 23


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
    assert plain(Operation("kernel", name, TORCH, library)) == does


def test_in_a_notebook_a_report_is_its_sentence_and_its_page():
    name = "</iframe><script>alert(1)</script>"
    made = small(Operation("function", name, AuditedQueue("cpu", "q", 1)))
    cell = made._repr_html_()
    assert cell.startswith("<p>All work ran on q (cpu).</p><iframe srcdoc=")
    assert cell.count("<") == 4  # p and iframe: all the rest is an attribute's text
    with sk.audit() as report:
        assert report._repr_html_() is None
