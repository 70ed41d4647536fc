"""Writes trace files with the same bytes every time, and keeps the rows of the index."""

from __future__ import annotations

import gzip
import hashlib
import io
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

INDEX_COLUMNS = [
    "trace_id",
    "kind",
    "file",
    "source",
    "source_commit",
    "licence",
    "measured_from_utc",
    "measured_to_utc",
    "basis",
    "sampling_s",
    "notes",
    "sha256",
]
GZIP_OVER_BYTES = 100_000


@dataclass(frozen=True)
class Origin:
    """Where data came from and under which licence."""

    source: str
    commit: str
    licence: str


@dataclass
class Shipment:
    """The folder being written and the index rows so far."""

    folder: Path
    index: list[dict[str, str]] = field(default_factory=list)

    def write(self, stem: str, frame: pd.DataFrame) -> tuple[str, str]:
        """Write `frame` to `<folder>/<stem>.csv` (gz over 100 kB). Returns (file, sha256)."""
        buffer = io.StringIO()
        frame.to_csv(buffer, index=False, lineterminator="\n")
        data = buffer.getvalue().encode()
        file = f"{stem}.csv"
        if len(data) > GZIP_OVER_BYTES:
            file += ".gz"
            data = gzip.compress(data, compresslevel=9, mtime=0)
        path = self.folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return file, hashlib.sha256(data).hexdigest()

    def add(
        self,
        written: tuple[str, str],
        trace_id: str,
        kind: str,
        origin: Origin,
        span: tuple[str, str],
        basis: str,
        sampling_s: str = "",
        notes: str = "",
    ) -> None:
        """One row of the index for a trace in the file `written`."""
        file, sha256 = written
        values = (
            trace_id,
            kind,
            file,
            origin.source,
            origin.commit,
            origin.licence,
            *span,
            basis,
            sampling_s,
            notes,
            sha256,
        )
        self.index.append(dict(zip(INDEX_COLUMNS, values)))

    def write_index(self) -> None:
        """Write index.csv."""
        frame = pd.DataFrame(self.index, columns=list(INDEX_COLUMNS))
        frame.to_csv(self.folder / "index.csv", index=False, lineterminator="\n")
