"""The notebook runs from top to bottom in a kernel, and what it shows is what a notebook shows."""

from __future__ import annotations

import json
import re

import pytest

from support.documents import ROOT
from support.programs import run_python

# a kernel does not start where what only POSIX has was taken away from a POSIX system
for needed in ("ipykernel", "nbclient", "numpy", "pty"):
    pytest.importorskip(needed)

NOTEBOOK = ROOT / "examples" / "tour.ipynb"
RUN = """
import json, sys
import nbclient, nbformat

notebook = nbformat.read(sys.argv[1], as_version=4)
nbclient.NotebookClient(notebook, timeout=60).execute()
print(json.dumps(notebook))
"""


@pytest.fixture(scope="module")
def outputs():
    """Run it, and return what each cell of code gave."""
    done = run_python("-P", "-W", "ignore", "-c", RUN, NOTEBOOK, CUDA_VISIBLE_DEVICES="-1")
    assert done.returncode == 0, done.stderr
    cells = json.loads(done.stdout.splitlines()[-1])["cells"]
    return [cell["outputs"] for cell in cells if cell["cell_type"] == "code"]


def html(found):
    (page,) = [one["data"]["text/html"] for one in found if "data" in one]
    return "".join(page)


def test_reports_show_their_sentence_or_page_and_the_doctor_its_findings(outputs):
    early, in_order, doctor = (html(outputs[cell]) for cell in (1, 2, 4))
    assert "add reader.wait(writer) before line" in early
    assert in_order.startswith("<p>2 queues were given work.</p><iframe")
    assert doctor.startswith("<pre")


def test_it_says_what_it_computed_and_is_committed_with_its_outputs(outputs):
    assert "The mean is 0.2727." in str(outputs[3])
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    saved = [cell["outputs"] for cell in cells if cell["cell_type"] == "code"]
    assert texts(saved) == texts(outputs)


def texts(outputs):
    """What the cells show as text; its numbers are ids and counts of one machine."""
    plain = [one.get("text") or one["data"]["text/plain"] for found in outputs for one in found]
    return [re.sub(r"\d+", "0", "".join(one)) for one in plain]
