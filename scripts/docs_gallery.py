"""The gallery: every figure drawn anew, its PNG in docs/figures/, its caption in docs/gallery.md."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from echo2.cli.figures import FIGURES

HEAD = """# Gallery

Drawn by `make figures` from the committed records and from runs of stated length, in one style; each caption
says what is simulated, planned or live. `python scripts/docs.py gallery` makes this page.
"""


def write(root: Path) -> None:
    """Draw all figures and write the page. Exits with the error of one that fails."""
    with tempfile.TemporaryDirectory(prefix="echo2-gallery-") as folder:
        for name in FIGURES:
            print(f"figure {name}", flush=True)
            command = [sys.executable, "-m", f"paper_figures.{name}", "--out", folder]
            done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
            if done.returncode:
                sys.exit(f"error: paper_figures.{name} ended with {done.returncode}: {done.stderr.strip()}")
            shutil.copyfile(Path(folder) / f"{name}.png", root / "docs" / "figures" / f"{name}.png")
        parts = [HEAD]
        for name in FIGURES:
            script = (root / "paper_figures" / f"{name}.py").read_text(encoding="utf-8")
            title = script.splitlines()[0].strip('"').rstrip(".")
            caption = (Path(folder) / f"{name}.txt").read_text(encoding="utf-8").strip()
            parts.append(
                f"\n## {title}\n\n![{title}](figures/{name}.png)\n\n{caption}\n\n`echo2 figures {name}`\n"
            )
    (root / "docs" / "gallery.md").write_text("".join(parts), encoding="utf-8")
    print("docs/gallery.md: " + ", ".join(FIGURES))
