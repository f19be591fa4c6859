"""What the pages call wrong without StreamKit: each program with its one call taken away.

In both arms a spin holds the queue whose work has to come first, so that no luck is shown.
"""

from __future__ import annotations

import re

import pytest

from support.documents import ROOT, blocks
from support.libraries import need

need("torch", "cupy")

ROUNDS = 5
HEAD = "import cupy\nimport torch\n\nimport streamkit as sk\n"
SPIN = "torch.cuda._sleep(50_000_000)"  # on torch's current stream, some tens of milliseconds
ON = "with torch.cuda.stream(torch.cuda.ExternalStream({}.handle)): " + SPIN
SCOPE, OWN, MM = "sk.use(s, ordered=True)", "torch.cuda.stream(s)", "torch.mm("
FOLLOW = '    @sk.follow("torch", libraries=["cupy"])\n'
WORKER = 'with sk.use(stream, libraries=["torch", "cupy"]):'
TORCH_CUPY, COOKBOOK = "docs/guides/torch-cupy.md", "docs/cookbook"
CASES = [  # page, what is taken away, what stands there then, and before which line spins what
    ("README.md", SCOPE, OWN, MM, SPIN),
    ("docs/index.md", SCOPE, OWN, MM, SPIN),
    ("docs/quickstart.md", SCOPE.replace("s,", "theirs,"), OWN.replace("(s", "(theirs"), MM, SPIN),
    (TORCH_CUPY, SCOPE, "torch.cuda.stream(s.native)", MM, SPIN),
    (TORCH_CUPY, "producer.wait(consumer)", "pass", "products.append", ON.format("consumer")),
    (TORCH_CUPY, "consumer.wait(producer)", "pass", "torch.mul(", SPIN),
    (f"{COOKBOOK}/cupy-reads-too-early.md", SCOPE, OWN, MM, SPIN),
    (f"{COOKBOOK}/memory-written-again.md", "s.wait(t)", "pass", "seen.append(", ON.format("t")),
    (f"{COOKBOOK}/gradients-on-another-stream.md", "update.wait(train)", "", "(w * 3)", SPIN),
    (f"{COOKBOOK}/autograd-function.md", FOLLOW, "", "x = torch.full(", SPIN),
    (
        f"{COOKBOOK}/prefetch.md",
        "sk.handoff(ahead, compute, after=copy)",
        "ahead",
        "batch.to(",
        SPIN,
    ),
    (f"{COOKBOOK}/thread-pool.md", WORKER, "if True:", "cupy.full(", ON.format("s")),
]


def right_rounds(code, prints, capsys):
    """Run it, and once before to compile; return how often it printed what the page says."""
    import cupy
    import torch

    right = 0
    for number in range(ROUNDS + 1):
        # else freed memory could hold the right numbers, of the round before
        cupy.get_default_memory_pool().free_all_blocks()
        poison = torch.full((1 << 26,), float("nan"), device="cuda")
        del poison
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        exec(HEAD + code, {"__name__": "page"})  # noqa: S102 - it is the documentation
        torch.cuda.synchronize()
        right += capsys.readouterr().out == prints and bool(number)
    return right


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_a_program_is_right_and_wrong_without_its_call(case, capsys):
    page, call, without, line, spin = case
    text = (ROOT / page).read_text(encoding="utf-8")
    (block,) = (one for one in blocks(text) if call in one.code and line in one.code)
    held = re.sub(rf"(?m)^( *)(?=.*{re.escape(line)})", rf"\1{spin}\n\1", block.code)
    assert spin in held
    assert right_rounds(held, block.prints, capsys) == ROUNDS
    assert right_rounds(held.replace(call, without), block.prints, capsys) < ROUNDS
