"""The gallery: every figure drawn anew, its PNG in docs/figures/, its caption in docs/gallery.md."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from echo2.cli.figures import FIGURES, about, draw

HEAD = """# Gallery

Drawn by `make figures` from the committed records and from runs of stated length, in one style; each caption
says what is simulated, planned or live. `python scripts/docs.py gallery` makes this page.
"""


def write(root: Path) -> None:
    """Draw all figures and write the page. Raises UserError for one that fails."""
    with tempfile.TemporaryDirectory(prefix="echo2-gallery-") as folder:
        for name in FIGURES:
            print(f"figure {name}", flush=True)
            draw(name, root, Path(folder))
            shutil.copyfile(Path(folder) / f"{name}.png", root / "docs" / "figures" / f"{name}.png")
        parts = [HEAD]
        for name in FIGURES:
            title = about(root / "paper_figures" / f"{name}.py").rstrip(".")
            caption = (Path(folder) / f"{name}.txt").read_text(encoding="utf-8").strip()
            parts.append(
                f"\n## {title}\n\n![{title}](figures/{name}.png)\n\n{caption}\n\n`echo2 figures {name}`\n"
            )
    (root / "docs" / "gallery.md").write_text("".join(parts), encoding="utf-8")
    print("docs/gallery.md: " + ", ".join(FIGURES))
