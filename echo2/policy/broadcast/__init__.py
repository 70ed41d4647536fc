"""How a snapshot gets from the learner to every worker: price all topologies against the bound, pick one.

problem = BroadcastProblem(size_bytes, source, receivers)
plan = best_plan(problem)            # plan.time_s, plan.bound_s, plan.ratio, plan.reason
"""

from __future__ import annotations

from echo2.policy.broadcast.bounds import cut_bound_s, fluid_bound_s, lp_bound_s
from echo2.policy.broadcast.choose import TOPOLOGIES, Objective, best_plan, candidates, plan_for
from echo2.policy.broadcast.mend import rest_bound_s, ways_left
from echo2.policy.broadcast.plan import (
    BroadcastPlan,
    Topology,
    children_of,
    chunk_relays,
    edges,
    from_json,
    stripe_counts,
    to_json,
)
from echo2.policy.broadcast.problem import TCP_WINDOW_BYTES, BroadcastProblem, Peer, flow_cap_bps
from echo2.policy.broadcast.pull import pull_plan
from echo2.policy.broadcast.schedule import (
    LEARNER,
    living_parents,
    rarest_first,
    relays_without,
    sources_of,
    striped,
    with_chunks,
)
from echo2.policy.broadcast.timing import ChunkRules

__all__ = [
    "LEARNER",
    "TCP_WINDOW_BYTES",
    "TOPOLOGIES",
    "BroadcastPlan",
    "BroadcastProblem",
    "ChunkRules",
    "Objective",
    "Peer",
    "Topology",
    "best_plan",
    "candidates",
    "children_of",
    "chunk_relays",
    "cut_bound_s",
    "edges",
    "flow_cap_bps",
    "fluid_bound_s",
    "from_json",
    "living_parents",
    "lp_bound_s",
    "plan_for",
    "pull_plan",
    "rarest_first",
    "relays_without",
    "rest_bound_s",
    "sources_of",
    "stripe_counts",
    "striped",
    "to_json",
    "ways_left",
    "with_chunks",
]
