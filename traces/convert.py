"""Writes the shipped trace files from the staged raw extracts: `python traces/convert.py ../shared/data-raw`.

The same input gives the same bytes. The raw folder's README.md and PROVENANCE.md files say where each
extract comes from; `--out` writes somewhere else than beside this file.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from conversion import lines, machines, market, speeds, wide_area  # noqa: E402
from conversion.output import Shipment  # noqa: E402


def convert(raw: Path, folder: Path) -> Shipment:
    """Write every trace file and index.csv under `folder`."""
    shipment = Shipment(folder)
    for part in (wide_area, lines, market, machines, speeds):
        part.convert(raw, shipment)
    shipment.write_index()
    return shipment


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("raw", type=Path, help="folder of the staged raw extracts (data-raw)")
    parser.add_argument("--out", type=Path, default=HERE, help="folder to write to")
    arguments = parser.parse_args()
    if not (arguments.raw / "skyplane").is_dir():
        raise SystemExit(f"{arguments.raw} is not the folder of raw extracts: no skyplane/ in it")
    shipment = convert(arguments.raw, arguments.out)
    files = {row["file"] for row in shipment.index}
    size = sum((arguments.out / name).stat().st_size for name in files)
    print(f"{len(shipment.index)} traces in {len(files)} files, {size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
