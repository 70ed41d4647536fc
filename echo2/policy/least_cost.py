"""What any set of workers that covers a rate must cost at least, egress included, however it is reached.

Called by the planner once for the plan it prints. The covering problem of `activation` knows a worker's
price only beside a given broadcast plan; here the plan is free: every byte of a snapshot reaches every
worker along some tree from the learner, so what no mixture of trees undercuts, no topology does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from echo2.policy.facts import WorkerOffer
from echo2.policy.links import LinkTable
from echo2.policy.worth import Demand, effect, join_s

FloatArray = npt.NDArray[np.float64]

# More sites than this: each opened one is entered at its cheapest price, whether or not that joins up.
MOST_JOINED_SITES = 12
# Nodes of the search tree, not seconds: the same bound on every machine.
MOST_NODES = 2000
GAP = 1e-4
# Sums of floats: a cover short by this part is a cover.
SLACK = 1e-9


@dataclass(frozen=True)
class _Kind:
    """Alike workers: how many, USD/h and most rollouts/s of each, their site, and whether they relay."""

    count: int
    price: float
    rate: float
    site: int
    relays: bool


def least_cost_usd_per_h(
    offers: Sequence[WorkerOffer], links: LinkTable, demand: Demand, needed: float, in_full: bool = False
) -> float:
    """USD/h of workers and egress that no set making `needed` fresh rollouts/s undercuts (ours).

    A mixed-integer program over how many of each kind work, which sites are opened, and how many copies
    cross each pair of sites; copies are fractions, for stripes mix trees. Every worker counts as if its
    snapshots came as soon as any plan could bring them (`in_full`: at its whole rate). The bound that
    HiGHS proves is returned; a need beyond the pool is cut to what the pool has.
    """
    kinds, sites = _kinds(offers, links, demand, in_full)
    needed = min(needed, sum(kind.count * kind.rate for kind in kinds)) * (1.0 - SLACK)
    if needed <= 0:
        return 0.0
    usd_per_copy = demand.snapshot_bytes / 1e9 * 3600.0 / demand.cycle_s
    rows = [links.index(links.learner_site), *sites]
    return _solved(_Program(kinds, usd_per_copy * links.egress[np.ix_(rows, rows)], needed))


def _kinds(
    offers: Sequence[WorkerOffer], links: LinkTable, demand: Demand, in_full: bool
) -> tuple[list[_Kind], list[int]]:
    """Workers that make anything, by kind; and the row in the link table of each site they are at."""
    soonest = links.soonest_each_s(offers, demand.snapshot_bytes)
    sites = sorted({links.index(offer.site) for offer in offers})
    place = {row: at for at, row in enumerate(sites)}
    found: dict[tuple[float, float, int, bool], int] = {}
    for offer, seconds in zip(offers, soonest.tolist()):
        joins_s = join_s(offer, links, demand)
        rate = offer.rollouts_per_s if in_full else effect(offer, demand, seconds, joins_s).rollouts_per_s
        if rate > 0:
            key = (offer.price_usd_per_h, rate, place[links.index(offer.site)], offer.can_relay)
            found[key] = found.get(key, 0) + 1
    return [_Kind(count, *key) for key, count in found.items()], sites


class _Program:
    """Columns: workers of each kind, open sites, copies over each arc, copies inside each site, flows.

    Arc (a, b) leads from place a to site b; place 0 is the learner, place b + 1 the workers of site b. A flow
    to an open site t uses at most what the copies carry, so the copies join every open site to the learner.
    """

    def __init__(self, kinds: Sequence[_Kind], price: FloatArray, needed: float) -> None:
        self.kinds, self.price, self.needed = kinds, price, needed
        self.sites = len(price) - 1
        relaying = {kind.site for kind in kinds if kind.relays}
        self.inside = sorted(relaying)
        self.arcs = [(0, b) for b in range(self.sites)]
        self.arcs += [(a + 1, b) for a in sorted(relaying) for b in range(self.sites) if a != b]
        targets = range(self.sites) if self.sites <= MOST_JOINED_SITES else ()
        self.flows = [(t, arc) for t in targets for arc in range(len(self.arcs))]
        self.open = len(kinds)
        self.copies = self.open + self.sites
        self.within = self.copies + len(self.arcs)
        self.flow = self.within + len(self.inside)
        self.columns = self.flow + len(self.flows)
        self.rows: list[dict[int, float]] = []
        self.least: list[float] = []
        self._cover()
        self._enter()
        self._join()

    def at_least(self, row: Iterable[tuple[int, float]], least: float) -> None:
        """One constraint: the sum of coefficient x column is `least` or more."""
        summed: dict[int, float] = {}
        for column, value in row:
            summed[column] = summed.get(column, 0.0) + value
        self.rows.append(summed)
        self.least.append(least)

    def _cover(self) -> None:
        """The rate is made, by workers at open sites; a site is open if somebody works there."""
        self.at_least(((k, kind.rate / self.needed) for k, kind in enumerate(self.kinds)), 1.0)
        for k, kind in enumerate(self.kinds):
            self.at_least(((self.open + kind.site, float(kind.count)), (k, -1.0)), 0.0)
        for b in range(self.sites):
            self.at_least([*self._workers(b, 1.0), (self.open + b, -1.0)], 0.0)

    def _workers(self, site: int, sign: float, relays: bool = False) -> list[tuple[int, float]]:
        """The columns of the workers at a site, or of those that relay."""
        return [
            (k, sign)
            for k, kind in enumerate(self.kinds)
            if kind.site == site and (kind.relays or not relays)
        ]

    def _enter(self) -> None:
        """Each worker gets a copy; the first at a site comes from elsewhere; one leaves the learner."""
        for b in range(self.sites):
            into = [(self.copies + arc, 1.0) for arc, (_, to) in enumerate(self.arcs) if to == b]
            self.at_least([*into, (self.open + b, -1.0)], 0.0)
            passed = [(self.within + self.inside.index(b), 1.0)] if b in self.inside else []
            self.at_least([*into, *passed, *self._workers(b, -1.0)], 0.0)
        self.at_least(((self.copies + arc, 1.0) for arc, (a, _) in enumerate(self.arcs) if a == 0), 1.0)

    def _join(self) -> None:
        """A flow of 1 from the learner to each open site, within the copies, through workers that relay."""
        count = len(self.arcs)
        for at, (_, arc) in enumerate(self.flows):
            self.at_least(((self.copies + arc, 1.0), (self.flow + at, -1.0)), 0.0)
            sender = self.arcs[arc][0] - 1
            if sender >= 0:
                self.at_least([*self._workers(sender, 1.0, relays=True), (self.flow + at, -1.0)], 0.0)
        for t in range(self.sites) if self.flows else ():
            first = self.flow + t * count
            for b in range(self.sites):
                into = [(first + arc, 1.0) for arc, (_, to) in enumerate(self.arcs) if to == b]
                out = [(first + arc, -1.0) for arc, (a, _) in enumerate(self.arcs) if a == b + 1]
                self.at_least([*into, *out, *([(self.open + b, -1.0)] if b == t else [])], 0.0)

    def cost(self) -> FloatArray:
        """USD/h of each column."""
        made = np.zeros(self.columns)
        made[: self.open] = [kind.price for kind in self.kinds]
        made[self.copies : self.within] = [self.price[a, b + 1] for a, b in self.arcs]
        made[self.within : self.flow] = [self.price[b + 1, b + 1] for b in self.inside]
        return made

    def most(self) -> FloatArray:
        """The largest value of each column."""
        made = np.full(self.columns, np.inf)
        made[: self.open] = [kind.count for kind in self.kinds]
        made[self.open : self.copies] = 1.0
        made[self.flow :] = 1.0
        return made


def _solved(program: _Program) -> float:
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    entries = [(r, c, v) for r, row in enumerate(program.rows) for c, v in row.items()]
    at, columns, values = (np.array(part) for part in zip(*entries))
    matrix: Any = csr_array((values, (at, columns)), shape=(len(program.rows), program.columns))
    whole = np.zeros(program.columns, dtype=np.int64)
    whole[: program.copies] = 1
    found = milp(
        program.cost(),
        constraints=LinearConstraint(matrix, np.array(program.least), np.inf),
        integrality=whole,
        bounds=Bounds(np.zeros(program.columns), program.most()),
        options={"mip_rel_gap": GAP, "node_limit": MOST_NODES},
    )
    proven = found.get("mip_dual_bound")
    if proven is None or not np.isfinite(proven):
        raise ValueError(f"HiGHS found no bound for {program.needed:g} rollouts/s: {found.message}")
    return max(0.0, float(proven))
