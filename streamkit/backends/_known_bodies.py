"""Functions of other libraries that are known by their source, whatever the library's version.

Where a function is known, StreamKit calls at once what that function calls.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import textwrap
from typing import Any

from streamkit.protocols import Finding


def digest(*functions: Any) -> str:
    """Return a short hash of the functions' bodies; "" if one of them has no source to be found.

    Docstrings do not count, nor do the functions that a wrapper hides: the wrapper is asked.
    """
    found = hashlib.sha256()
    for function in functions:
        try:
            text = textwrap.dedent(inspect.getsource(function.__code__))
            (node,) = ast.parse(text).body
            body = node.body[isinstance(ast.get_docstring(node), str) :]  # type: ignore[attr-defined, arg-type]
            lines = text.splitlines()[body[0].lineno - 1 : node.end_lineno]
        except Exception:  # noqa: BLE001 - an upgrade may have made the file another one by now
            return ""
        found.update("\n".join([*lines, ""]).encode())
    return found.hexdigest()[:16]


def slow_scopes(library: str, version: str) -> Finding:
    """Say that scopes go through the public functions of a library."""
    return Finding(
        "slow-scopes",
        f"the functions of {library} {version} here are not those that StreamKit knows: the "
        "version is another, or the program has replaced one. So entering and leaving a scope "
        "takes several times as long; what runs where is the same",
        f"Nothing, if that is quick enough; or install a newer StreamKit, or an older {library}.",
        library,
    )
