"""Where the search starts, and what lies next to a candidate: one choice changed at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from echo2.policy.broadcast import TOPOLOGIES
from echo2.study.candidate import AUTO, Candidate, Planned, Ratio

MARGINS = (AUTO, 1.0, 1.1, 1.25, 1.5)


@dataclass(frozen=True)
class Space:
    """What may be chosen: values of S and of the delta ratio, and the pools as they are on offer."""

    staleness: tuple[int, ...]
    delta_ratios: tuple[Ratio, ...]
    pools: tuple[tuple[str, int], ...]

    def starts(self, given: Candidate) -> Iterator[Candidate]:
        """Every S with every codec; all else is left to the planner. The configuration as it stands first."""
        yield given
        for staleness in self.staleness:
            for ratio in self.delta_ratios:
                yield Candidate(staleness, 0, (), ratio, AUTO, self.pools)

    def around(self, planned: Planned) -> Iterator[Candidate]:
        """One choice changed: S, kappa, topology, codec, margin, or the pools."""
        c = planned.candidate
        yield from (replace(c, staleness=s, publish_period=0) for s in self._next_staleness(c.staleness))
        yield from (replace(c, publish_period=k) for k in periods(c.staleness, c.publish_period))
        yield from (replace(c, topologies=t) for t in ((), *((t,) for t in TOPOLOGIES)) if t != c.topologies)
        yield from (replace(c, delta_ratio=r) for r in self.delta_ratios if r != c.delta_ratio)
        yield from (replace(c, margin=m) for m in MARGINS if m != c.margin)
        yield from (replace(c, pools=pools) for pools in self._other_pools(planned) if pools != c.pools)

    def _next_staleness(self, S: int) -> list[int]:
        below = [s for s in self.staleness if s < S]
        above = [s for s in self.staleness if s > S]
        return [*below[-1:], *above[:1]]

    def _other_pools(self, planned: Planned) -> Iterator[tuple[tuple[str, int], ...]]:
        """All on offer; only those planned, with a spare each or without; without one of the pools used."""
        used = {row.pool: row.active for row in planned.plan.workers}
        yield self.pools
        for spare in (0, 1):
            yield tuple(
                (name, min(count, used.get(name, 0) + spare) if used.get(name, 0) else 0)
                for name, count in self.pools
            )
        counts = dict(planned.candidate.pools)
        for name, active in used.items():
            if active and sum(counts.values()) > counts[name]:
                yield tuple((other, 0 if other == name else n) for other, n in counts.items())


def periods(S: int, kappa: int) -> list[int]:
    """Publication periods next to `kappa`, and the shortest and the longest of S."""
    near = {kappa - 1, kappa + 1, 1, max(1, S - 1), S}
    return sorted(k for k in near if 1 <= k <= max(1, S) and k != kappa)


def staleness_choices(most: int, wanted: Sequence[int] = ()) -> tuple[int, ...]:
    """The values of S to search: those wanted, else up to `most`, few enough to plan each."""
    if wanted:
        return tuple(sorted(set(wanted)))
    spread = {1, 2, 3, 4, 6, 8, 11, 16, 24, 32, most // 2, most} if most else {0}
    return tuple(sorted(s for s in spread if (0 < s <= most) or s == most))
