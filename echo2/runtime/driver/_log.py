"""Stand-in until echo2.sim.log has RunLog."""

from __future__ import annotations

from pathlib import Path

from echo2.policy import wire
from echo2.sim import log as l


class RunLog:
    def __init__(self, path: Path, settings) -> None:
        self._f = path.open("w")
        self._f.write(next(iter(l.lines(settings, []))) + "\n")

    def write(self, fact, answers) -> None:
        self._f.write("".join(wire.dumps(x) + "\n" for x in (fact, *answers)))
        self._f.flush()

    def close(self) -> None:
        self._f.close()
