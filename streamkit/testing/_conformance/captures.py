"""Checks of an adapter that takes part in captures, as far as any adapter can be asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streamkit._support import messages
from streamkit.protocols import Capture, Settings
from streamkit.protocols.adapters import offered
from streamkit.testing._conformance.subject import NotApplicableError

if TYPE_CHECKING:
    from streamkit.testing._conformance.subject import Subject


def settings_are_read(subject: Subject) -> None:
    """Read as many settings as have names, which are equal until a program sets one."""
    read = _settings(subject).read
    names = _settings(subject).names
    subject.require(
        isinstance(names, tuple) and names and all(type(name) is str and name for name in names),
        f"the names of its settings are {names!r}: give a tuple of texts",
    )
    found = read()
    subject.require(
        isinstance(found, tuple) and len(found) == len(names),
        f"its settings have {len(names)} names, and read() returned {messages.describe(found)}: "
        "return a tuple of a value for each name",
    )
    for name, value, again in zip(names, found, read(), strict=True):
        try:
            hash(value)
        except TypeError:
            subject.fail(f"its setting {name!r} cannot be hashed. Return a tuple, for example.")
        subject.require(
            value == again and hash(value) == hash(again),
            f"its setting {name!r} is another each time that it is read, so that no call would "
            "ever be a graph. Return what is equal until a program sets it.",
        )


def settings_touch_no_queue(subject: Subject) -> None:
    """Ask the driver nothing that breaks a capture, and give it no work, to read the settings."""
    read = _settings(subject).read
    stream = subject.make_stream()
    with subject.untouched(subject.handle(stream), "read() of its settings"):
        read()


def _settings(subject: Subject) -> Settings:
    settings: Any = offered(subject.adapter, Capture.settings)
    if settings is None:
        raise NotApplicableError("it has no settings")
    found = settings()
    subject.require(
        isinstance(found, Settings),
        f"settings() returned {messages.describe(found)}, no streamkit.protocols.Settings",
    )
    return found  # type: ignore[no-any-return]  # the line above looked
