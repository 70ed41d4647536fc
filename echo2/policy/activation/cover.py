"""The cheapest cover of a needed rate by a whole pool: exact by dynamic
programming, or greedy with a guarantee.

    min sum c_i x_i   subject to   sum mu_i x_i >= needed,   x in {0, 1}

with mu_i the effective rate. The planner calls `choose`; the scheduler calls it at the start of a run.
Every answer carries the LP bound. The same pool in any order gives the same answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from echo2.policy.activation.candidate import (
    Activation,
    Candidate,
    Method,
    by_price_per_rate,
    covers,
    make_activation,
)
from echo2.policy.activation.knapsack import MAX_STATES, FloatArray, cheapest_cover

EXACT_WORKERS = 400


@dataclass(frozen=True)
class _Problem:
    """The free part: what locked workers leave to cover, and the useful rest, cheapest rollout first."""

    locked: list[Candidate]
    free: list[Candidate]
    missing: float
    feasible: bool

    @classmethod
    def of(cls, candidates: Sequence[Candidate], needed: float) -> _Problem:
        if len({c.worker_id for c in candidates}) != len(candidates):
            raise ValueError("worker_id must be unique within a pool")
        locked = [c for c in candidates if c.locked]
        free = sorted((c for c in candidates if not c.locked and c.effective_rate > 0), key=_search_order)
        held = sum(c.effective_rate for c in locked)
        total = held + sum(c.effective_rate for c in free)
        missing = 0.0 if covers(held, needed) else needed - held
        return cls(locked, free, missing, covers(total, needed))

    def columns(self) -> tuple[FloatArray, FloatArray]:
        """Prices and effective rates of the free part."""
        cost = np.array([c.cost_usd_per_h for c in self.free])
        return cost, np.array([c.effective_rate for c in self.free])


def _search_order(candidate: Candidate) -> tuple[float, float, bool, str]:
    """Cheapest rollout first; of equal workers those already running, so that none is swapped for nothing."""
    price_per_rate, price, name = by_price_per_rate(candidate)
    return price_per_rate, price, not candidate.active, name


def choose(
    candidates: Sequence[Candidate],
    needed: float,
    method: Literal["auto", "exact", "greedy"] = "auto",
) -> Activation:
    """The workers to pay for so that effective rates sum to `needed` rollouts/s, at least cost.

    "auto" is exact up to `EXACT_WORKERS` workers and greedy beyond. A pool that is too small gives
    everything useful, `feasible=False` and the shortfall.
    """
    if method == "auto":
        method = "exact" if len(candidates) <= EXACT_WORKERS else "greedy"
    return exact(candidates, needed) if method == "exact" else greedy_then_prune(candidates, needed)


def greedy_then_prune(candidates: Sequence[Candidate], needed: float) -> Activation:
    """Greedy by price per rollout, the best single completion, redundant picks dropped, one swap pass.

    At most twice the optimum: for every greedy prefix the cheapest worker that closes the gap alone is
    tried (Gens and Levner 1979, minimisation knapsack); pruning and swapping only lower the cost.
    """
    problem = _Problem.of(candidates, needed)
    if not problem.feasible:
        return make_activation(candidates, problem.locked + problem.free, needed, "greedy")
    return _answer(candidates, problem, _greedy_indices(problem), needed, "greedy")


def exact(candidates: Sequence[Candidate], needed: float, max_states: int = MAX_STATES) -> Activation:
    """The optimum within 1e-6; if the search has to be cut, the best cover found, "greedy", and a note."""
    problem = _Problem.of(candidates, needed)
    if not problem.feasible or problem.missing <= 0:
        everything = problem.locked + ([] if problem.feasible else problem.free)
        return make_activation(candidates, everything, needed, "exact")
    cost, rate = problem.columns()
    start = _greedy_indices(problem)
    found = cheapest_cover(cost, rate, problem.missing, float(cost[start].sum()), max_states)
    picked = found.picked or start
    if not found.proven:
        note = f"not proven cheapest: the exact search was cut to {max_states} open states"
        return _answer(candidates, problem, picked, needed, "greedy", note)
    return _answer(candidates, problem, picked, needed, "exact")


def _answer(
    candidates: Sequence[Candidate],
    problem: _Problem,
    picked: list[int],
    needed: float,
    method: Method,
    note: str = "",
) -> Activation:
    chosen = problem.locked + [problem.free[i] for i in picked]
    return make_activation(candidates, chosen, needed, method, note=note)


def _greedy_indices(problem: _Problem) -> list[int]:
    """Indices into `problem.free` of a good cover of `problem.missing`."""
    if problem.missing <= 0:
        return []
    cost, rate = problem.columns()
    covered = np.cumsum(rate)
    prefix = int(np.argmax(covered >= problem.missing * (1 - 1e-9))) + 1
    covers_all = [_pruned(list(range(prefix)), cost, rate, problem.missing)]
    best = _best_completion(cost, rate, problem.missing, prefix)
    if best is not None:
        covers_all.append(_pruned(best, cost, rate, problem.missing))
    swapped = [_swapped(picked, cost, rate, problem.missing) for picked in covers_all]
    return min(swapped, key=lambda picked: (float(cost[picked].sum()), picked))


def _best_completion(cost: FloatArray, rate: FloatArray, missing: float, prefix: int) -> list[int] | None:
    """The cheapest of: a shorter greedy prefix plus the one cheapest later worker that closes the gap."""
    best_cost, best = np.inf, None
    have, paid = 0.0, 0.0
    for length in range(prefix):
        enough = np.flatnonzero(rate[length:] >= (missing - have) * (1 - 1e-9)) + length
        if enough.size:
            last = int(enough[np.argmin(cost[enough])])
            if paid + cost[last] < best_cost:
                best_cost, best = paid + cost[last], [*range(length), last]
        have += rate[length]
        paid += cost[length]
    return best


def _pruned(picked: list[int], cost: FloatArray, rate: FloatArray, missing: float) -> list[int]:
    """Drop what is not needed, the most expensive first."""
    kept = set(picked)
    total = float(rate[picked].sum())
    for i in sorted(picked, key=lambda i: (-cost[i], i)):
        if covers(total - rate[i], missing):
            kept.remove(i)
            total -= rate[i]
    return sorted(kept)


def _swapped(picked: list[int], cost: FloatArray, rate: FloatArray, missing: float) -> list[int]:
    """One pass of exchanges: each picked worker for the cheapest outside one that still covers."""
    inside = np.zeros(len(cost), dtype=bool)
    inside[picked] = True
    total = float(rate[picked].sum())
    for i in sorted(picked, key=lambda i: (-cost[i], i)):
        gap = missing * (1 - 1e-9) - (total - rate[i])
        options = np.flatnonzero(~inside & (rate >= gap) & (cost < cost[i]))
        if options.size:
            new = int(options[np.argmin(cost[options])])
            inside[i], inside[new] = False, True
            total += rate[new] - rate[i]
    return _pruned([int(i) for i in np.flatnonzero(inside)], cost, rate, missing)
