"""The demo: plan, simulate, compare with the baselines, sweep, report. Run by `make demo`.

    python scripts/demo.py [CONFIG] [--out demo-out] [--steps N]

Everything is printed as the command one would type. The output folder is made anew each time.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

from compare_systems import compare, show

CONFIG = Path("experiments/qwen3-8b-mixed-spot.toml")
SWEEP = ("run.staleness=1,2,4,8", "model.delta_ratio=1,30")


def echo2(*arguments: str) -> None:
    """Print and run one `echo2` command; a failure ends the demo with its exit code."""
    print(f"\n$ echo2 {shlex.join(arguments)}", flush=True)
    code = subprocess.run([sys.executable, "-m", "echo2.cli.main", *arguments], check=False).returncode
    if code:
        sys.exit(code)


def fresh(out: Path) -> None:
    """Remove the last demo's folder; anything else of that name is refused."""
    if not out.exists():
        return
    if out.is_dir() and ((out / "summary.json").is_file() or not any(out.iterdir())):
        shutil.rmtree(out)
    else:
        sys.exit(f"error: {out} is there and is not a run directory; choose another --out")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", type=Path, nargs="?", default=CONFIG)
    parser.add_argument("--out", type=Path, default=Path("demo-out"))
    parser.add_argument("--steps", type=int, help="learner steps, instead of the configuration's")
    args = parser.parse_args()
    began = time.perf_counter()
    sets = [f"run.steps={args.steps}"] if args.steps else []
    flags = [word for text in sets for word in ("--set", text)]
    config, out = str(args.config), args.out
    fresh(out)

    echo2("plan", config, *flags)
    echo2("simulate", config, *flags, "--out", str(out))
    if not (out / "plan.json").is_file():
        echo2("plan", config, *flags, "--out", str(out / "plan.json"))
    print(
        "\nBaselines under the same world: learner, batch, lengths and seed as configured (simulated)",
        flush=True,
    )
    rows = compare(args.config, sets)
    show(rows)
    (out / "baselines.json").write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    grid = [word for axis in SWEEP for word in ("--grid", axis)]
    echo2("sweep", config, *flags, *grid, "--out", str(out / "sweep.csv"))
    echo2("report", str(out))
    print(f"\nDone in {time.perf_counter() - began:.0f} s")
    print(f"report:   {out / 'report.html'}\npictures: {out / 'figures'}")


if __name__ == "__main__":
    main()
