"""What every figure script ends with: PNG, PDF and a caption beside them."""

from __future__ import annotations

import argparse
import textwrap
from pathlib import Path
from typing import Any

from echo2.report import style


def out_folder(about: str) -> Path:
    """The `--out` of a figure script."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument(
        "--out", type=Path, default=Path("out/figures"), help="folder for PNG, PDF and caption"
    )
    chosen: Path = parser.parse_args().out
    return chosen


def finish(figure: Any, name: str, caption: str, out: Path) -> None:
    """Write the figure and its caption (which says simulated, planned or live, the traces and the seeds)."""
    paths = style.save(figure, out, name)
    text = out / f"{name}.txt"
    text.write_text(textwrap.fill(caption, 100) + "\n", encoding="utf-8")
    print(*(str(path) for path in [*paths, text]), sep="\n")
