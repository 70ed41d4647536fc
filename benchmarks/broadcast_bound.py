"""Every broadcast topology against the bound on the measured cloud-region matrix.

    python benchmarks/broadcast_bound.py

16 GB from one cloud region to N workers spread over the others, all in the cloud or half of them on home
lines (uplink 20-40, downlink 200-400 Mbit/s); for the home lines the cloud's pair caps and prices stay.
Prints seconds, the ratio to the bound, egress and the milliseconds that planning all topologies took. Where a
home line takes in least, that downlink is the bound.
"""

from __future__ import annotations

import time

import numpy as np

from echo2.policy.broadcast import BroadcastPlan, BroadcastProblem, Peer, best_plan, candidates
from echo2.traces import RegionMatrix, regions

SIZE_BYTES = 16e9
COUNTS = (8, 32, 128, 256)
LP_UP_TO = 32


def known_regions(matrix: RegionMatrix) -> list[int]:
    """Indices of regions among which rate, RTT and price of every pair are known."""
    keep = list(range(len(matrix.regions)))
    while True:
        at = np.ix_(keep, keep)
        missing = np.isnan(matrix.capacity_bps[at] + matrix.rtt_s[at] + matrix.egress_usd_per_gb[at])
        if not missing.any():
            return keep
        keep.pop(int((missing.sum(axis=0) + missing.sum(axis=1)).argmax()))


def region_problem(
    matrix: RegionMatrix,
    count: int,
    home_share: float,
    seed: int = 0,
    size_bytes: float = SIZE_BYTES,
    learner_bps: float = np.inf,
) -> BroadcastProblem:
    """A learner in the first known region and `count` workers dealt out over all of them.

    `learner_bps` caps the learner's uplink.
    """
    rng = np.random.default_rng(seed)
    keep = known_regions(matrix)
    at = np.array([keep[i % len(keep)] for i in range(count + 1)])
    home = rng.random(count + 1) < home_share
    home[0] = False
    nic = np.diag(matrix.capacity_bps)[at]
    uplink = np.where(home, rng.uniform(20e6, 40e6, count + 1), nic)
    downlink = np.where(home, rng.uniform(200e6, 400e6, count + 1), nic)
    uplink[0] = min(uplink[0], learner_bps)
    sites = ["" if home[i] else matrix.regions[at[i]] for i in range(count + 1)]
    peers = [Peer(f"p{i}", uplink[i], downlink[i], sites[i]) for i in range(count + 1)]
    pairs = np.ix_(at, at)
    return BroadcastProblem(
        size_bytes,
        peers[0],
        tuple(peers[1:]),
        pair_cap_bps=matrix.capacity_bps[pairs].copy(),
        latency_s=matrix.rtt_s[pairs] / 2,
        egress_usd_per_gb=matrix.egress_usd_per_gb[pairs],
    )


def fastest_of_each(plans: tuple[BroadcastPlan, ...]) -> list[BroadcastPlan]:
    """The quickest plan of every name, in order of time."""
    first: dict[str, BroadcastPlan] = {}
    for plan in plans:
        first.setdefault(plan.name, plan)
    return list(first.values())


def main() -> None:
    matrix = regions()
    worst = 0.0
    for home_share in (0.0, 0.5):
        print(f"\n{matrix.epoch}, {100 * home_share:.0f} % of the workers on home lines")
        for count in COUNTS:
            problem = region_problem(matrix, count, home_share)
            start = time.perf_counter()
            candidates(problem)
            planning_s = time.perf_counter() - start
            plans = candidates(problem, lp_bound=count <= LP_UP_TO)
            bound, kind = plans[0].bound_s, plans[0].bound_kind
            print(f"N={count}: bound {bound:.1f} s ({kind}), all planned in {1e3 * planning_s:.0f} ms")
            for plan in fastest_of_each(plans):
                cost = f"{plan.egress_usd:8.2f} USD egress"
                print(
                    f"  {plan.name:9}{plan.time_s:10.1f} s {plan.ratio:8.3f} x {cost} {plan.chunks:7d} chunks"
                )
            print(f"  best: {best_plan(problem).reason}")
            worst = max([worst, *(plan.ratio for plan in plans if plan.topology == "stripes")])
    print(f"\nStripes take at most {worst:.3f} x the bound.")


if __name__ == "__main__":
    main()
