"""Objects that answer otherwise than most, as programs have them."""

from __future__ import annotations

from types import SimpleNamespace


class Query(type):
    """The metaclass of a language of queries: ``==`` makes one, so there is no hash."""

    __hash__ = None

    def __eq__(cls, other):
        return cls, other


class Names(SimpleNamespace):
    """The least of a mapping in which exec finds names."""

    def __getitem__(self, name):
        return vars(self)[name]
