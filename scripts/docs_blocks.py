"""Generated blocks of Markdown files: what stands between `<!-- output: NAME -->` and `<!-- end -->`.

Used by `scripts/docs.py`, which fills them, and by `tests/test_docs.py`, which checks them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

MARKER = re.compile(r"(<!-- output: (?P<name>[\w-]+) -->\n)(?P<body>.*?)(<!-- end -->)", re.DOTALL)


def blocks(text: str) -> dict[str, str]:
    """The content of every generated block by its name."""
    return {match["name"]: match["body"] for match in MARKER.finditer(text)}


def replaced(text: str, contents: Mapping[str, str]) -> str:
    """The text with the named blocks filled anew; KeyError for a name without a block."""
    missing = set(contents) - set(blocks(text))
    if missing:
        raise KeyError(f"no block for {', '.join(sorted(missing))}")

    def fill(match: re.Match[str]) -> str:
        body = contents.get(match["name"], match["body"])
        return f"{match[1]}{body}{match[4]}"

    return MARKER.sub(fill, text)


def fenced(command: str, output: str) -> str:
    """A command and what it printed, as a fenced block without trailing blanks."""
    lines = [line.rstrip() for line in output.strip("\n").splitlines()]
    return "\n".join(["```text", f"$ {command}", *lines, "```", ""])
