"""What `echo2 train` shows: a live table where a terminal looks on, else one line a step."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROWS = 12


class LiveView:
    """Shows steps as they end. A context manager; the terminal is given back in any case."""

    def __init__(self, total_steps: int) -> None:
        from rich.console import Console

        self._total = total_steps
        self._console = Console()
        self._rows: list[dict[str, Any]] = []
        self._live: Any = None

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            from rich.live import Live

            self._live = Live(self._table(), console=self._console, refresh_per_second=4)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            with contextlib.suppress(OSError, ValueError):
                self._live.stop()

    def say(self, text: str) -> None:
        """A line for people. A reader that has gone (`| head`, a closed terminal) does not end the run."""
        with contextlib.suppress(OSError, ValueError):
            if self._live is not None:
                self._console.print(text, markup=False, highlight=False)
            else:
                sys.stdout.write(text + "\n")
                sys.stdout.flush()

    def step(self, row: dict[str, Any]) -> None:
        """A step has ended."""
        self._rows = [*self._rows[1 - ROWS :], row]
        if self._live is not None:
            with contextlib.suppress(OSError, ValueError):
                self._live.update(self._table())
        else:
            cells = zip(NAMES, _cells(row, self._total))
            self.say("  ".join(f"{name} {cell}" for name, cell in cells if cell))

    def summary(self, summary: dict[str, Any], folder: Path) -> None:
        """The end."""
        first, last = summary["reward"]["first"], summary["reward"]["last"]
        reward = f", reward {first:.3f} -> {last:.3f}" if first is not None and last is not None else ""
        self.say(
            f"{summary['steps']} steps in {summary['wall_s']:.0f} s, learner utilisation "
            f"{summary['learner_utilisation']:.1%}, staleness mean {summary['staleness']['mean']:.2f} max "
            f"{summary['staleness']['max']}, dropped {summary['dropped_share']:.1%}, "
            f"{summary['cost_usd']:.4f} USD{reward}; {summary['end']}"
        )
        self.say(f"wrote {folder}; replay it with: echo2 replay {folder}")

    def _table(self) -> Any:
        from rich.table import Table

        table = Table(title="echo2 train", title_justify="left", expand=False)
        for name in NAMES:
            table.add_column(name, justify="right")
        for row in self._rows:
            table.add_row(*_cells(row, self._total))
        return table


NAMES = ("step", "reward", "train s", "wait s", "for", "stale", "ratio", "KL", "entropy", "up", "USD")


def _cells(row: dict[str, Any], total: int) -> tuple[str, ...]:
    waits: dict[str, float] = row["wait_s"]
    cause = max(waits, key=lambda name: waits[name])
    stale = {int(lag): count for lag, count in row["staleness"].items()}
    mean = sum(lag * count for lag, count in stale.items()) / max(1, sum(stale.values()))
    return (
        f"{row['version']}/{total}",
        f"{row['reward_mean']:.3f}",
        f"{row['train_s']:.2f}",
        f"{sum(waits.values()):.2f}",
        cause if waits[cause] > 0.01 else "",
        f"{mean:.2f}",
        _number(row["ratio_mean"], 4),
        _number(row["mismatch_kl"], 6),
        _number(row["entropy"], 3),
        str(row["workers_up"]),
        f"{row['usd']:.4f}",
    )


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"
