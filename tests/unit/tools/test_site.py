"""What the site makes from the code: messages and the porting table. Its build checks the rest."""

from __future__ import annotations

import ast
import pickle
import re

import pytest

import streamkit
from streamkit.backends import names  # the one table of them
from support.documents import ROOT
from support.site import extension

pytestmark = pytest.mark.once

messages, parity = extension("messages"), extension("parity")


def test_every_error_that_says_something_has_its_place_among_the_messages():
    page = (ROOT / "docs" / "reference" / "messages.md").read_text(encoding="utf-8")
    told = {kind for kind, texts in messages.messages().items() if texts}
    assert set(re.findall(r"\{generated\} (\w+)", page)) == told
    assert set(re.findall(r"^## (\w+)$", page, re.MULTILINE)) == told


@pytest.mark.parametrize(
    "fn",
    [
        lambda: streamkit.wrap(None),
        lambda: streamkit.from_handle("x"),
        lambda: streamkit.new_stream("gpu"),
        lambda: streamkit.new_stream("cpu").to("torch"),
        lambda: streamkit.capture(streamkit.new_stream("cpu")).__enter__(),
        lambda: streamkit.new_stream("cpu").synchronize(),
        lambda: pickle.dumps(streamkit.new_stream("cpu")),
        lambda: streamkit.handoff(object(), streamkit.new_stream("cpu")),
    ],
)
def test_what_an_error_says_is_found_among_the_messages(fn):
    with pytest.raises(Exception) as raised:  # noqa: PT011 - which it is, is compared
        fn()
    text = " ".join(str(raised.value).split())
    patterns = [
        ".*".join(re.escape(part) for part in one.split("..."))
        for one in messages.messages()[raised.type.__name__]
    ]
    assert [one for one in patterns if re.fullmatch(one, text)], text
    assert not [one for one in patterns if re.fullmatch(one, "anything else")]


def test_the_porting_page_has_every_name_that_objects_answer_and_what_it_says_is_python():
    lines = parity.porting().splitlines()
    rows = names.rows()
    assert rows
    for row in rows:
        gap = " " if row.more[:1].isalpha() else ""
        here = [line for line in lines if f"| `{row.ours}`{gap}{row.more} |" in line]
        assert any(row.written in line for line in here) == bool(row.section), row
        code = f"{row.ours} pass" if row.ours.endswith(":") else row.ours
        code = f"{code}\ndef f(): pass" if code.startswith("@") else code
        compile(code, row.ours, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
