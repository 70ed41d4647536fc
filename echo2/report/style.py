"""The one visual style of all figures: colours, sizes, the two themes, and how a figure is saved.

Used by the report and by `paper_figures/`. Colours are Okabe and Ito's (safe for the colour-blind); every
series also differs by line style, marker or hatch, so that a grey print can be read. Matplotlib is loaded
when a figure is made, not before.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from echo2.errors import UserError

BLUE, ORANGE, VERMILLION, GREEN = "#0072B2", "#E69F00", "#D55E00", "#009E73"
SKY, YELLOW, PURPLE, GREY = "#56B4E9", "#F0E442", "#CC79A7", "#999999"

WIDTH_IN = 7.4
DPI = 150


@dataclass(frozen=True)
class Theme:
    """Colours of paper and ink."""

    name: str
    paper: str
    ink: str
    faint: str


LIGHT = Theme("light", "#ffffff", "#1b1b1f", "#d4d4da")
DARK = Theme("dark", "#17191e", "#e4e5ea", "#3c3f48")


@dataclass(frozen=True)
class Look:
    """How one series or state is drawn: colour, hatch for areas, line style and marker for lines."""

    label: str
    colour: str
    hatch: str = ""
    line: str = "-"
    marker: str = "o"


TRAINING = Look("training", BLUE)
IDLE: dict[str, Look] = {
    "rollouts": Look("idle: waits for rollouts", ORANGE, "//"),
    "publication": Look("idle: waits for a snapshot", VERMILLION, "xx"),
    "workers": Look("idle: waits for workers", GREY, ".."),
}
SENDING = Look("snapshot under way", SKY, "\\\\")
GENERATING = Look("generation", GREEN)
TOPOLOGY: dict[str, Look] = {
    "star": Look("star", VERMILLION, line="-", marker="o"),
    "chain": Look("chain, best order", ORANGE, line="--", marker="s"),
    "tree": Look("single tree", PURPLE, line="-.", marker="^"),
    "k-ary": Look("best k-ary tree", SKY, line=(0, (1, 1)), marker="v"),  # type: ignore[arg-type]
    "regional": Look("regional", GREEN, line=(0, (5, 1)), marker="D"),  # type: ignore[arg-type]
    "stripes": Look("stripes", BLUE, line="-", marker="P"),
}


def idle_look(cause: str) -> Look:
    """How idle time of a cause is drawn; a cause of a later version gets a look of its own."""
    return IDLE.get(cause, Look(f"idle: {cause}", PURPLE, "--"))


def _settings(theme: Theme) -> dict[str, Any]:
    return {
        "figure.facecolor": theme.paper,
        "axes.facecolor": theme.paper,
        "savefig.facecolor": theme.paper,
        "text.color": theme.ink,
        "axes.edgecolor": theme.ink,
        "axes.labelcolor": theme.ink,
        "xtick.color": theme.ink,
        "ytick.color": theme.ink,
        "hatch.color": theme.paper,
        "hatch.linewidth": 0.7,
        "grid.color": theme.faint,
        "grid.linewidth": 0.6,
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.linewidth": 0.8,
        "font.family": "DejaVu Sans",
        "font.size": 9.0,
        "axes.titlesize": 9.5,
        "axes.titlelocation": "left",
        "axes.labelsize": 9.0,
        "legend.frameon": False,
        "legend.fontsize": 8.0,
        "lines.linewidth": 1.5,
        "lines.markersize": 4.5,
        "pdf.fonttype": 42,
        "svg.hashsalt": "echo2",
    }


@contextmanager
def drawing(theme: Theme = LIGHT) -> Iterator[None]:
    """Inside this, figures and their parts are made in the style."""
    import matplotlib

    with matplotlib.rc_context(_settings(theme)):  # type: ignore[arg-type]
        yield


def new_figure(height_in: float, rows: int = 1, columns: int = 1, **options: Any) -> tuple[Any, Any]:
    """(figure, axes) of the usual width, without pyplot and its global state. Call inside `drawing`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH_IN, height_in), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, **options)


def png_bytes(figure: Any, dpi: int = DPI) -> bytes:
    """The figure as PNG, the same bytes each time."""
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=dpi, metadata={"Software": None})
    return out.getvalue()


def save(figure: Any, directory: Path, name: str, formats: tuple[str, ...] = ("png", "pdf")) -> list[Path]:
    """Write `name.png` and `name.pdf` into a directory, each whole or not at all; returns their paths.

    Raises UserError for a directory that cannot be written.
    """
    paths = []
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for kind in formats:
            path = directory / f"{name}.{kind}"
            dated = {"CreationDate": None} if kind == "pdf" else {"Software": None}
            part = path.with_name(f".{path.name}.part")
            try:
                figure.savefig(part, format=kind, dpi=DPI, metadata=dated)
                part.replace(path)
            finally:
                part.unlink(missing_ok=True)
            paths.append(path)
    except OSError as error:
        raise UserError(f"{directory}: cannot write ({error.strerror}); choose another --out") from error
    return paths
