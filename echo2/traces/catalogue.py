"""The index of shipped traces, and the one door through which trace data comes in: `load`.

Shipped files are compared with the sha256 in the index before use, then checked like a user's own.
"""

from __future__ import annotations

import csv
import hashlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from echo2.errors import UserError
from echo2.traces.nearest import unknown
from echo2.traces.reading import read_bytes, read_frame
from echo2.traces.schema import Kind

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class TraceEntry:
    """One row of traces/index.csv: what a shipped trace is and where it comes from."""

    trace_id: str
    kind: str
    file: str
    source: str
    source_commit: str
    licence: str
    measured_from_utc: str
    measured_to_utc: str
    basis: str
    sampling_s: str
    notes: str
    sha256: str


@dataclass(frozen=True)
class Loaded:
    """A checked table, its kind, the name it goes by, and the index row when it is a shipped one."""

    frame: pd.DataFrame
    kind: Kind
    name: str
    entry: TraceEntry | None


def data_folder() -> Path:
    """Folder of the shipped traces: inside the package when installed from a wheel, else the repository's."""
    package = Path(__file__).resolve().parent.parent
    shipped = package / "_shipped" / "traces"
    return shipped if (shipped / "index.csv").is_file() else package.parent / "traces"


@lru_cache(maxsize=1)
def entries() -> tuple[TraceEntry, ...]:
    """Every shipped trace, in the order of the index."""
    index = data_folder() / "index.csv"
    if not index.is_file():
        raise UserError(f"the shipped traces are not there ({index}); reinstall echo2")
    with index.open(encoding="utf-8", newline="") as file:
        return tuple(TraceEntry(**row) for row in csv.DictReader(file))


def entry(trace_id: str) -> TraceEntry:
    """The index row of one shipped trace. Unknown: UserError with the nearest names."""
    for found in entries():
        if found.trace_id == trace_id:
            return found
    known = (e.trace_id for e in entries())
    raise unknown(
        "trace", trace_id, known, "`echo2 traces` lists them; a file of your own is given by its path"
    )


def load(id_or_path: str | Path, kind: str | None = None) -> pd.DataFrame:
    """The checked table of a shipped trace (by id) or of your own file (by path, or `path#series`).

    `kind` says what is expected; for a path it may be left out and is taken from the columns. Raises
    UserError with file, row, value and fix.
    """
    return open_trace(id_or_path, kind).frame.copy()


def open_trace(id_or_path: str | Path, kind: str | None = None) -> Loaded:
    """Like `load`, with kind and index row beside the table. The table is shared: do not change it."""
    text = str(id_or_path)
    path, _, series = text.partition("#")
    if isinstance(id_or_path, Path) or path.endswith((".csv", ".csv.gz")) or Path(path).is_file():
        frame, schema = read_frame(Path(path), read_bytes(Path(path)), kind)
        return Loaded(_pick(Path(path).name, frame, schema, series), schema, series or Path(path).name, None)
    found = entry(text)
    if kind is not None and kind != found.kind:
        same = [e.trace_id for e in entries() if e.kind == kind]
        offer = ", ".join(same[-4:]) + (", ..." if len(same) > 4 else "") or "none"
        raise UserError(f"trace {text!r} is of kind {found.kind}, not {kind}; of that kind: {offer}")
    frame, schema = _shipped(found.file, found.kind, found.sha256)
    series_column = schema.series
    if series_column and (frame[series_column] == text).any():
        frame = frame[frame[series_column] == text].reset_index(drop=True)
    return Loaded(frame, schema, text, found)


def of_kind(kind: str) -> tuple[Loaded, ...]:
    """Every shipped table of one kind, each file once."""
    seen: dict[str, TraceEntry] = {}
    for e in entries():
        if e.kind == kind:
            seen.setdefault(e.file, e)
    return tuple(Loaded(*_shipped(e.file, e.kind, e.sha256), e.trace_id, e) for e in seen.values())


def _pick(file: str, frame: pd.DataFrame, kind: Kind, series: str) -> pd.DataFrame:
    if not series:
        return frame
    if not kind.series:
        raise UserError(f"{file} is of kind {kind.name}, which has no series; leave out '#{series}'")
    part = frame[frame[kind.series] == series]
    if part.empty:
        raise unknown(f"series of {file}", series, frame[kind.series])
    return part.reset_index(drop=True)


@lru_cache(maxsize=64)
def _shipped(file: str, kind: str, sha256: str) -> tuple[pd.DataFrame, Kind]:
    path = data_folder() / file
    data = read_bytes(path)
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise UserError(
            f"shipped trace file {file} was changed: sha256 {found[:12]}..., the index says "
            f"{sha256[:12]}...; "
            "reinstall echo2, or copy your version elsewhere and give its path"
        )
    return read_frame(path, data, kind)
