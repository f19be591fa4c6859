"""The words of every refusal of an array; the error classes are in ``errors``."""

from __future__ import annotations

from streamkit._refusals import describe


def not_an_array(obj: object) -> TypeError:
    """Word something to be handed over that is no array of a library that can lend it."""
    return TypeError(
        f"{describe(obj)} is no array that can be handed over. For the order use s.wait(stream); "
        "keep anything alive for the work submitted so far with s.keep(obj)."
    )


def needs_after(array: object) -> TypeError:
    """Word an array whose library cannot tell on which stream it was used."""
    return TypeError(
        f"{describe(array)} does not tell on which stream it was used, for its library has no "
        "current stream there. Name it: streamkit.handoff(array, stream, after=...)."
    )


def cannot_lend(array: object, why: str) -> TypeError:
    """Word an array whose memory cannot be given to a second one."""
    return TypeError(
        f"{describe(array)} cannot be handed over: {why}. Order the streams with s.wait(stream), "
        "and keep it with s.keep(array) after its last use."
    )
