"""The documentation says what the code does: sessions, examples, links, commands, file names."""

from __future__ import annotations

import doctest
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.main import get_command

from echo2.cli.app import app

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

from docs_blocks import blocks, replaced  # noqa: E402
from docs_sessions import SESSIONS, shown  # noqa: E402

PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
FENCE = re.compile(r"^```(?P<kind>\w*)[^\n]*\n(?P<body>.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)")
# What stands for something else in a synopsis.
PLACEHOLDER = re.compile(r"[\[\]]|\.\.\.")


def page_name(path: Path) -> str:
    """For the names of the tests."""
    return str(path.relative_to(ROOT))


def anchors(path: Path) -> set[str]:
    """The anchors GitHub makes of a page's headings."""
    text = FENCE.sub("", path.read_text(encoding="utf-8"))
    heads = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def commands(text: str) -> Iterator[list[str]]:
    """The words of every `echo2 ...` line in a fenced block; continued lines are joined."""
    for fence in FENCE.finditer(text):
        if fence["kind"] in ("", "sh", "bash", "text", "console"):
            for line in fence["body"].replace("\\\n", " ").splitlines():
                words = line.removeprefix("$ ")
                if words.startswith("echo2 "):
                    # In a synopsis two blanks part the command from what it does.
                    yield PLACEHOLDER.sub("", re.split(r"\s{3,}|\s#", words)[0]).split()[1:]


def problem_with(words: list[str]) -> str:
    """What is wrong with a command line; empty if subcommand and options exist."""
    command = get_command(app)
    while words and hasattr(command, "commands"):
        if words[0] in command.commands:
            command = command.commands[words[0]]
        elif words[0].startswith("-") or command.name == "traces":
            break
        else:
            return f"no command {words[0]!r}"
        words = words[1:]
    known = {"--help"} | {name for parameter in command.params for name in parameter.opts}
    unknown = [word for word in words if word.startswith("-") and word.split("=")[0] not in known]
    return f"{command.name} has no option {unknown[0]}" if unknown else ""


@pytest.mark.parametrize("name", ["plan", "infeasible"])
def test_the_readme_shows_what_the_command_prints(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planner's sessions in the README are today's output: else run `python scripts/docs.py sessions`."""
    monkeypatch.chdir(ROOT)
    session = next(session for session in SESSIONS if session.name == name)
    assert blocks((ROOT / "README.md").read_text(encoding="utf-8"))[name] == shown(session)


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_every_generated_block_is_filled(page: Path) -> None:
    """No page is shipped with a generated part still empty."""
    empty = [name for name, body in blocks(page.read_text(encoding="utf-8")).items() if not body.strip()]
    assert not empty, f"run python scripts/docs.py all: {empty}"


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_python_examples_give_the_shown_results(page: Path) -> None:
    """Every >>> example of a page prints what stands under it."""
    result = doctest.testfile(str(page), module_relative=False, verbose=False)
    assert result.failed == 0


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_every_link_leads_somewhere(page: Path) -> None:
    """Relative links name a file that is there and, where they have one, a heading of it."""
    for match in LINK.finditer(FENCE.sub("", page.read_text(encoding="utf-8"))):
        target, _, anchor = match["target"].partition("#")
        if "://" in target:
            continue
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), f"{page_name(page)} links to {target}"
        assert path.is_relative_to(ROOT), f"{page_name(page)} links out of the repository: {target}"
        assert not anchor or anchor in anchors(path), (
            f"{page_name(page)}: no heading #{anchor} in {path.name}"
        )


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_every_command_shown_exists(page: Path) -> None:
    """The commands and options in the pages' code blocks exist."""
    for words in commands(page.read_text(encoding="utf-8")):
        assert problem_with(words) == "", f"{page_name(page)}: echo2 {' '.join(words)}"


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_every_file_named_exists(page: Path) -> None:
    """Configurations, benchmarks, scripts and modules that a page names are in the repository."""
    text = page.read_text(encoding="utf-8")
    for name in re.findall(r"\b(?:experiments|scripts|tests|echo2)/[\w./-]*\.(?:toml|py)\b", text):
        assert (ROOT / name).is_file(), f"{page_name(page)} names {name}"
    for name in re.findall(r"python -m ((?:benchmarks|paper_figures)\.\w+)", text):
        assert (ROOT / f"{name.replace('.', '/')}.py").is_file(), f"{page_name(page)} names {name}"


def test_a_wrong_command_is_found() -> None:
    """The check of commands can fail: an option and a subcommand that do not exist are named."""
    assert problem_with(["plan", "x.toml", "--sett", "a=1"]) == "plan has no option --sett"
    assert problem_with(["explain"]) == "no command 'explain'"
    assert problem_with(["traces", "show", "x", "--out", "a.png"]) == ""


def test_a_block_is_replaced_in_place() -> None:
    """Filling a block leaves the text around it alone; a name without a block is an error."""
    page = "a\n<!-- output: x -->\nold\n<!-- end -->\nb\n"
    assert replaced(page, {"x": "new\n"}) == page.replace("old", "new")
    with pytest.raises(KeyError, match="y"):
        replaced(page, {"y": ""})
