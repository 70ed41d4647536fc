"""Fill the generated parts of the documentation with what the commands print now.

    python scripts/docs.py sessions      README: the planner's sessions
    python scripts/docs.py studies       docs/studies.md: the sessions of the researcher (a minute)
    python scripts/docs.py freshness     docs/concepts.md: the freshness rule against the simulation
    python scripts/docs.py benchmarks    docs/benchmarks.md: those of plan and simulator (some minutes)
    python scripts/docs.py live          docs/benchmarks.md: those of the live runtime (some minutes)
    python scripts/docs.py gallery       docs/gallery.md and docs/figures/: every figure (some minutes)
    python scripts/docs.py all

Run from anywhere; only what stands between `<!-- output: NAME -->` and `<!-- end -->` is changed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import docs_blocks
import docs_freshness
import docs_gallery
import docs_sessions
import docs_studies

from echo2.cli.figures import sharing

ROOT = Path(__file__).resolve().parent.parent
BENCHMARKS: Mapping[str, tuple[str, ...]] = {
    "plan_vs_simulation": (),
    "simulator_speed": (),
    "broadcast_bound": (),
    "egress": (),
    "activation_bound": (),
    "fluid_vs_chunk": ("--counts", "2", "8", "--lost"),
}
LIVE: Mapping[str, tuple[str, ...]] = {
    "live_vs_model": ("--steps", "40"),
    "load_test": (),
    "control_plane": (),
    "engine_overhead": (),
    "chunk_path": ("--megabytes", "512"),
    "streaming": ("--mebibytes", "512", "--repeats", "3", "--workers", "2"),
    "live_broadcast": ("--workers", "8", "--fault", "none", "kill", "corrupt", "stall", "lie"),
}
# HiGHS prints the first from inside its library, vLLM's processes the others.
NOISE = ("HighsMipSolverData", "(MainProcess", "(VllmWorker", "(Worker", "(EngineCore")


def sessions() -> None:
    """The README's sessions, run in this process."""
    printed = {session.name: docs_sessions.shown(session) for session in docs_sessions.SESSIONS}
    _fill(ROOT / "README.md", printed)


def studies() -> None:
    """The sessions of docs/studies.md, each on the files of the ones before."""
    _fill(ROOT / "docs" / "studies.md", docs_studies.blocks(ROOT))


def freshness() -> None:
    """The table of docs/concepts.md."""
    _fill(ROOT / "docs" / "concepts.md", {"freshness": docs_freshness.table()})


def gallery() -> None:
    """Every figure and the page that shows them."""
    with sharing():
        docs_gallery.write(ROOT)


def _measure(chosen: Mapping[str, tuple[str, ...]], only: Sequence[str]) -> None:
    """Each benchmark's output under its command; one after another, as they measure time."""
    path = ROOT / "docs" / "benchmarks.md"
    for name, arguments in chosen.items():
        if name not in only:
            continue
        if not (ROOT / "benchmarks" / f"{name}.py").is_file():
            print(f"skipped: no benchmarks/{name}.py", file=sys.stderr)
            continue
        words = ["-m", f"benchmarks.{name}", *arguments]
        print(f"python {' '.join(words)}", flush=True)
        done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"error: benchmarks.{name} ended with {done.returncode}: {done.stderr.strip()}")
        lines = [line for line in done.stdout.splitlines() if not line.startswith(NOISE)]
        _fill(path, {name: docs_blocks.fenced(f"python {' '.join(words)}", "\n".join(lines))})


def _fill(path: Path, contents: Mapping[str, str]) -> None:
    path.write_text(docs_blocks.replaced(path.read_text(encoding="utf-8"), contents), encoding="utf-8")
    print(f"{path.relative_to(ROOT)}: {', '.join(contents)}")


PARTS: Mapping[str, Callable[[Sequence[str]], None]] = {
    "sessions": lambda _only: sessions(),
    "studies": lambda _only: studies(),
    "freshness": lambda _only: freshness(),
    "benchmarks": lambda only: _measure(BENCHMARKS, only),
    "live": lambda only: _measure(LIVE, only),
    "gallery": lambda _only: gallery(),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=[*PARTS, "all"])
    names = [*BENCHMARKS, *LIVE]
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help="of the benchmarks, these")
    given = parser.parse_args()
    os.chdir(ROOT)
    for name, fill in PARTS.items():
        if given.part in (name, "all"):
            fill(given.only or names)


if __name__ == "__main__":
    main()
