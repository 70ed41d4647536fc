"""Reads one trace file and refuses what cannot be true, naming the file, the row and the value.

Called by `catalogue.load` for shipped files and for a user's own. The rules of a column are in `schema`;
the rules that tie rows together (time, intervals, sums) are in `rules`.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from echo2.errors import UserError
from echo2.traces import gpus
from echo2.traces.nearest import unknown
from echo2.traces.rules import check_rows
from echo2.traces.schema import KINDS, Column, Kind

if TYPE_CHECKING:
    import pandas as pd

NUMBERS = ("number", "integer", "flag")


def read_bytes(path: Path) -> bytes:
    """The file's bytes. Missing or unreadable: UserError."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise UserError(
            f"trace file {path} does not exist; give a path, or an id of `echo2 traces`"
        ) from None
    except OSError as error:
        raise UserError(f"trace file {path} cannot be read: {error.strerror}") from None


def read_frame(path: Path, data: bytes, kind: str | None = None) -> tuple[pd.DataFrame, Kind]:
    """The checked table in `data` and its kind (inferred from the columns when not given).

    Numbers become float64 (nan: unknown), text stays text, GPU names become canonical. UserError names
    file, row and value of the first thing wrong.
    """
    frame = _parse(path, data)
    schema = _kind_of(path, frame, kind)
    for column in schema.columns:
        frame[column.name] = _checked(path, frame, column)
    check_rows(path.name, frame, schema)
    return frame, schema


def _parse(path: Path, data: bytes) -> Any:
    import pandas as pd

    try:
        raw = gzip.decompress(data) if data[:2] == b"\x1f\x8b" or path.suffix == ".gz" else data
        text = raw.decode("utf-8-sig")
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(
            f"{path.name} is cut short or not gzip ({error}); copy or download it again"
        ) from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path.name} is not UTF-8 text (byte {error.start}); save it as UTF-8") from None
    try:
        header, *rows = list(csv.reader(io.StringIO(text, newline=""))) or [[]]
    except csv.Error as error:
        raise UserError(f"{path.name} is not a CSV table ({error}); save it as plain CSV") from None
    header = [name.strip() for name in header]
    if not any(header):
        raise UserError(f"{path.name} is empty; its first row must name the columns")
    if len(set(header)) != len(header):
        raise UserError(f"{path.name} names a column twice in {', '.join(header)}; keep one")
    if not rows:
        raise UserError(f"{path.name} has no data rows; it needs at least one")
    for row, fields in enumerate(rows):
        if len(fields) != len(header):
            raise UserError(
                f"{path.name} row {row + 1} (line {row + 2}): {len(fields)} fields where the header has "
                f"{len(header)}; give every row the header's fields, no blank lines"
            )
    return pd.DataFrame(rows, columns=header, dtype=object)


def _kind_of(path: Path, frame: Any, kind: str | None) -> Kind:
    if kind is None:
        found = max(KINDS.values(), key=lambda k: len(set(k.names) & set(frame.columns)) / len(k.names))
        if len(set(found.names) & set(frame.columns)) * 2 < len(found.names):
            listing = "; ".join(f"{k.name}: {', '.join(k.names)}" for k in KINDS.values())
            raise UserError(
                f"{path.name}: columns {', '.join(frame.columns)} fit no kind of trace; kinds: {listing}"
            )
    elif kind in KINDS:
        found = KINDS[kind]
    else:
        raise unknown("kind of trace", kind, KINDS)
    for name in found.names:
        if name not in frame.columns:
            _missing(path, frame, found, name)
    return found


def _missing(path: Path, frame: Any, kind: Kind, name: str) -> NoReturn:
    stem, unit = name.rsplit("_", 1) if "_" in name else (name, "")
    other = [c for c in frame.columns if c not in kind.names and c.rsplit("_", 1)[0].lower() == stem]
    if other and unit:
        fix = f"found {other[0]!r}: convert it to {unit} and rename it to {name!r}"
    else:
        fix = f"columns of kind {kind.name}: {', '.join(kind.names)}"
    raise UserError(f"{path.name}: column {name!r} is missing; {fix}")


def _checked(path: Path, frame: Any, column: Column) -> Any:
    """One column as float64 or text. Raises at its first bad row."""
    import numpy as np

    values = np.array([str(v).strip() for v in frame[column.name]], dtype=object)
    blank = values == ""
    if blank.any() and not column.empty:
        _refuse(path, frame, column, int(np.argmax(blank)), "is empty and must not be")
    if column.form in NUMBERS and not column.choices:
        return _numbers(path, frame, column, values, blank)
    if column.choices:
        wrong = ~np.isin(values.astype(str), column.choices) & ~blank
        problem = f"must be one of {', '.join(column.choices)}"
    elif column.form == "gpu":
        return _gpu_names(path, values)
    elif column.form == "date":
        wrong = np.array([not _is_date(v) for v in values]) & ~blank
        problem = "is not a date YYYY-MM-DD"
    else:
        return values
    if wrong.any():
        _refuse(path, frame, column, int(np.argmax(wrong)), problem)
    return values


def _numbers(path: Path, frame: Any, column: Column, values: Any, blank: Any) -> Any:
    import numpy as np
    import pandas as pd

    numbers = pd.to_numeric(pd.Series(values), errors="coerce").to_numpy(dtype=np.float64)
    checks = [
        (~np.isfinite(numbers), "is not a finite number"),
        ((numbers <= column.low) if column.above else (numbers < column.low), _low_text(column)),
        (numbers > column.high, f"must be <= {column.high:g}"),
    ]
    if column.form in ("integer", "flag"):
        checks.append((numbers != np.floor(numbers), "must be a whole number"))
    if column.form == "flag":
        checks.append(((numbers != 0) & (numbers != 1), "must be 0 or 1"))
    for wrong, problem in checks:
        wrong = wrong & ~blank
        if wrong.any():
            _refuse(path, frame, column, int(np.argmax(wrong)), problem)
    return numbers


def _low_text(column: Column) -> str:
    return f"must be {'>' if column.above else '>='} {column.low:g}"


def _gpu_names(path: Path, values: Any) -> Any:
    import numpy as np

    names: dict[str, str] = {}
    for row, value in enumerate(values):
        if value not in names:
            try:
                names[value] = gpus.canonical(value)
            except UserError as error:
                raise UserError(f"{path.name} row {row + 1} (line {row + 2}): {error}") from None
    return np.array([names[v] for v in values], dtype=object)


def _is_date(value: str) -> bool:
    from datetime import date

    try:
        date.fromisoformat(value[:10])
    except ValueError:
        return False
    return True


def _refuse(path: Path, frame: Any, column: Column, row: int, problem: str) -> NoReturn:
    value = frame[column.name].iloc[row]
    fix = f"; {column.fix}" if column.fix else ""
    raise UserError(f"{path.name} row {row + 1} (line {row + 2}): {column.name} = {value!r} {problem}{fix}")
