"""Keeps the rows of a sweep: each as soon as it is done, and at the end all of them as one table.

The rows lie beside the output as JSON Lines; a sweep that was stopped finds them there and goes on.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

from echo2.cli.output import unwritable, write_file
from echo2.errors import UserError

FORMATS = (".parquet", ".csv")


class Store:
    """The rows done so far, by key. Open it before the first point runs: it finds out if it can write."""

    def __init__(self, out: Path) -> None:
        check_format(out)
        self.path = out.with_name(out.name + ".rows.jsonl")
        self._out = out
        try:
            self.rows = self._read()
            self._stream: IO[str] = self.path.open("a", encoding="utf-8")
        except OSError as error:
            raise unwritable(self.path, error) from None

    def add(self, row: dict[str, Any]) -> None:
        """Keep a row; it is on disk when this returns."""
        try:
            self._stream.write(json.dumps(row) + "\n")
            self._stream.flush()
        except OSError as error:
            raise unwritable(self.path, error) from None
        self.rows[row["key"]] = row

    def kept(self) -> str:
        """What to say of the rows when a sweep ends before its end."""
        number = len(self.rows)
        return f"{number} row{'' if number == 1 else 's'} kept in {self.path}, run again to go on"

    def write_table(self, rows: Sequence[dict[str, Any]]) -> None:
        """Write these rows as the table, in this order."""
        import pandas as pd

        frame = pd.DataFrame(rows, columns=_columns(rows))
        write = frame.to_csv if self._out.suffix == ".csv" else frame.to_parquet
        try:
            write_file(self._out, lambda part: write(part, index=False))
        except UserError as error:
            raise UserError(f"{error}; {self.kept()}") from None

    def close(self) -> None:
        """No more rows. What a full disk holds back has been complained about by `add`."""
        with suppress(OSError):
            self._stream.close()

    def _read(self) -> dict[str, dict[str, Any]]:
        """Rows of earlier runs. A line cut off in the middle is taken out, so that the next one is whole."""
        if not self.path.is_file():
            return {}
        rows: dict[str, dict[str, Any]] = {}
        whole = 0
        with self.path.open("rb") as stream:
            for line in stream:
                try:
                    row = json.loads(line)
                    rows[row["key"]] = row
                except (ValueError, KeyError, TypeError):
                    break
                if not line.endswith(b"\n"):
                    break
                whole += len(line)
        if whole < self.path.stat().st_size:
            with self.path.open("r+b") as stream:
                stream.truncate(whole)
        return rows


def check_format(out: Path) -> None:
    """Refuse an output that is neither Parquet nor CSV, or Parquet without its library."""
    if out.suffix not in FORMATS:
        raise UserError(f"--out {out}: must end in {' or '.join(FORMATS)}")
    if out.suffix == ".parquet" and find_spec("pyarrow") is None:
        raise UserError(f"--out {out}: Parquet needs pyarrow; install echo2[parquet], or write a .csv")


def _columns(rows: Sequence[dict[str, Any]]) -> list[str]:
    """All columns in the order of their first appearance, with the long ones last."""
    names = dict.fromkeys(name for row in rows for name in row)
    last = [name for name in ("version", "key", "config") if name in names]
    return [name for name in names if name not in last] + last
