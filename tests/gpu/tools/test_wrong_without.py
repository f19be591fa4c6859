"""What the pages call wrong without StreamKit: each program with its one call taken away.

In both arms a spin holds the queue whose work has to come first, so that an order is shown, and no
luck. What a program prints is the page's oracle: CuPy or torch has read it from the device.
"""

from __future__ import annotations

import contextlib
import io
import re

import pytest

from support.documents import ROOT, blocks
from support.libraries import need

need("torch", "cupy")

ROUNDS = 5
HEAD = "import cupy\nimport torch\n\nimport streamkit as sk\n"
SPIN = "torch.cuda._sleep(50_000_000)"  # on torch's current stream, some tens of milliseconds
ON = "with torch.cuda.stream(torch.cuda.ExternalStream({}.handle)): " + SPIN
SCOPE, FOLLOW = "sk.use(s, ordered=True)", '    @sk.follow("torch", libraries=["cupy"])\n'

VIEW = [
    (page, SCOPE.replace("s,", f"{s},"), f"torch.cuda.stream({s}{native})", "torch.mm(", SPIN)
    for page, s, native in (
        ("README.md", "s", ""),
        ("docs/index.md", "s", ""),
        ("docs/quickstart.md", "theirs", ""),
        ("docs/guides/torch-cupy.md", "s", ".native"),
        ("docs/cookbook/cupy-reads-too-early.md", "s", ""),
    )
]
TORCH_CUPY, COOKBOOK = "docs/guides/torch-cupy.md", "docs/cookbook"
CASES = [  # page, what is taken away, what stands there then, and before which line spins what
    *VIEW,
    (TORCH_CUPY, "producer.wait(consumer)", "pass", "seen.append((y", ON.format("consumer")),
    (TORCH_CUPY, "consumer.wait(producer)", "pass", "torch.mul(", SPIN),
    (f"{COOKBOOK}/memory-written-again.md", "s.wait(t)", "pass", "seen.append(", ON.format("t")),
    (f"{COOKBOOK}/gradients-on-another-stream.md", "update.wait(train)", "", "(w * 3)", SPIN),
    (f"{COOKBOOK}/autograd-function.md", FOLLOW, "", "x = torch.full(", SPIN),
]


def right_rounds(code, prints):
    """Run it, and once before to compile; return how often it printed what the page says."""
    import torch

    right = 0
    for number in range(ROUNDS + 1):
        # else freed memory could hold the right numbers, of the round before
        poison = torch.full((1 << 26,), float("nan"), device="cuda")
        del poison
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(HEAD + code, {"__name__": "page"})  # noqa: S102 - it is the documentation
        torch.cuda.synchronize()
        right += bool(number) and out.getvalue() == prints
    return right


@pytest.mark.parametrize(("page", "call", "without", "line", "spin"), CASES)
def test_a_program_is_right_and_wrong_without_its_call(page, call, without, line, spin):
    text = (ROOT / page).read_text(encoding="utf-8")
    (block,) = (one for one in blocks(text) if call in one.code and line in one.code)
    held = re.sub(rf"(?m)^( *)(?=.*{re.escape(line)})", rf"\1{spin}\n\1", block.code)
    assert spin in held
    assert right_rounds(held, block.prints) == ROUNDS
    assert right_rounds(held.replace(call, without), block.prints) < ROUNDS
