"""RMM: the facts that need no import of the library. The adapter is in ``adapter``."""

from streamkit.protocols.libraries import Library

LIBRARY = Library(
    "rmm",
    label="RMM",
    adapter="_rmm.adapter",
    module="rmm",
    mark="reinitialize",
    requirements={12: '"rmm-cu12>=25.12"', 13: '"rmm-cu13>=25.12"'},
    distribution="rmm-cu13",
    variants=r"rmm-cu.*",
    oldest=(25, 12),
    newest=(26, 10),
    cuda=r"^rmm-cu(\d\d)",
)
