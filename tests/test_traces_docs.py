"""docs/traces.md keeps up with the data: every shipped file, kind and column stands in it."""

from __future__ import annotations

from pathlib import Path

from echo2 import traces

TEXT = (Path(__file__).resolve().parent.parent / "docs" / "traces.md").read_text()


def test_every_shipped_file_has_its_row() -> None:
    """The provenance table names each file with its source, short commit, licence and basis."""
    lines = TEXT.splitlines()
    for entry in traces.entries():
        row = next(line for line in lines if line.startswith(f"| `{entry.file}` |"))
        assert entry.source.removeprefix("github.com/") in row
        assert entry.source_commit[:7] in row and entry.licence in row and entry.basis in row


def test_the_schema_table_is_the_schema() -> None:
    """Each kind's columns stand in the table, in order, with ? where a value may be unknown."""
    for kind in traces.KINDS.values():
        columns = ", ".join(c.name + ("?" if c.empty else "") for c in kind.columns)
        assert f"| {kind.name} | {columns} |" in TEXT
