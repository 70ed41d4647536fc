"""`write_report(run_dir)`: read a run, draw its figures, write the page."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from echo2.errors import UserError
from echo2.report import style
from echo2.report.figures import FIGURES
from echo2.report.page import render
from echo2.report.record import RunRecord, read_run


@dataclass(frozen=True)
class ReportFiles:
    """What was written."""

    html: Path
    figures: tuple[Path, ...]


def write_report(run_dir: Path, out: Path | None = None) -> ReportFiles:
    """Write `report.html` and `figures/*.png` into `out` (default: the run directory itself).

    Raises UserError for a directory without a run, a broken file, or an unwritable `out`.
    """
    try:
        record = read_run(run_dir)
        pngs = draw(record)
        page = render(record, pngs)
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{run_dir}: not a run of this version of echo2 ({type(error).__name__}: {error}); run it again"
        ) from error
    target = run_dir if out is None else out
    pictures = [(target / "figures" / f"{name}.png", light) for name, (light, _) in pngs.items()]
    _write_all(target, {**dict(pictures), target / "report.html": page.encode()})
    return ReportFiles(target / "report.html", tuple(path for path, _ in pictures))


def draw(record: RunRecord) -> dict[str, tuple[bytes, bytes]]:
    """Name of every figure the run has data for, to its PNG in light and dark."""
    out: dict[str, tuple[bytes, bytes]] = {}
    for spec in FIGURES:
        pair = [_png(spec.draw, record, theme) for theme in (style.LIGHT, style.DARK)]
        if pair[0] is not None and pair[1] is not None:
            out[spec.name] = (pair[0], pair[1])
    return out


def _png(make: Any, record: RunRecord, theme: style.Theme) -> bytes | None:
    with style.drawing(theme):
        figure = make(record)
        return None if figure is None else style.png_bytes(figure)


def _write_all(target: Path, files: dict[Path, bytes]) -> None:
    """All files or none: each to a temporary neighbour, renamed when every one is whole."""
    new = [folder for folder in (target / "figures", target, *target.parents) if not folder.exists()]
    parts = {path: path.with_name(path.name + ".part") for path in files}
    try:
        for path, part in parts.items():
            part.parent.mkdir(parents=True, exist_ok=True)
            part.write_bytes(files[path])
        for path, part in parts.items():
            part.replace(path)
    except BaseException as error:
        for remove in (*(part.unlink for part in parts.values()), *(folder.rmdir for folder in new)):
            with suppress(OSError):
                remove()
        if not isinstance(error, OSError):
            raise
        raise UserError(
            f"{target}: cannot write ({error.strerror}); free some space or choose another --out"
        ) from error
