"""A broadcast plan: who sends which part of a snapshot to whom, and how long that is predicted to take.

Made by the planner in this package, carried out by the transport (and by the simulator's network), printed
by the command line. Plain floats, strings and tuples, so that it survives JSON unchanged.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

import numpy as np

Topology = Literal["star", "chain", "tree", "k-ary", "regional", "stripes", "pull"]
Edge = tuple[str, str]

DIRECT = -1
"""Index of the source: as a parent in `parents`, as the relay of a chunk that no receiver relays."""


@dataclass(frozen=True)
class BroadcastPlan:
    """One priced way to bring a snapshot from the source to every receiver.

    `order`: receiver ids, parents before children. Single trees fill `parents` (index in `order` of the
    parent of `order[i]`, -1 = source); stripes fill `shares` (share of the bytes that `order[i]` takes from
    the source and relays to all others) and `direct_share` (what the source sends to everybody itself).
    `fanout`: most children a node has. `chunks`: M, equal parts. `receiver_s`: predicted seconds until
    `order[i]` has everything; `time_s` their maximum, `mean_s` their mean weighted by rollouts/s.
    `bound_s`: no plan can be faster (tail); `ratio` = time_s / bound_s; `bound_kind`: fluid, cut or lp.
    """

    topology: Topology
    order: tuple[str, ...]
    parents: tuple[int, ...]
    shares: tuple[float, ...]
    direct_share: float
    fanout: int
    chunks: int
    size_bytes: float
    receiver_s: tuple[float, ...]
    time_s: float
    mean_s: float
    egress_usd: float
    bound_s: float
    ratio: float
    bound_kind: str
    reason: str

    @property
    def name(self) -> str:
        """The topology in print; a k-ary tree names its k."""
        return f"{self.fanout}-ary" if self.topology == "k-ary" else self.topology


def to_json(plan: BroadcastPlan) -> str:
    """The plan as one JSON object."""
    return json.dumps(asdict(plan))


def from_json(text: str) -> BroadcastPlan:
    """The plan that `to_json` wrote. Raises ValueError for a missing or unknown field."""
    raw = json.loads(text)
    known = {field.name for field in fields(BroadcastPlan)}
    if set(raw) != known:
        raise ValueError(f"not a broadcast plan: fields differ by {sorted(set(raw) ^ known)}")
    values: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in raw.items()}
    return BroadcastPlan(**values)


def edges(plan: BroadcastPlan, source_id: str) -> tuple[tuple[Edge, ...], ...]:
    """For each tree of the plan its (parent, child) edges, every parent before its children.

    A single-tree plan has one tree. Stripes have one per relay with a share (source to relay, relay to all
    others), in the order of `order`, and last the direct star if `direct_share` > 0.
    """
    if plan.topology != "stripes":
        names = (*plan.order, source_id)
        return (tuple((names[p], child) for p, child in zip(plan.parents, plan.order)),) if plan.order else ()
    trees = []
    for relay, share in zip(plan.order, plan.shares):
        if share > 0:
            rest = tuple((relay, child) for child in plan.order if child != relay)
            trees.append(((source_id, relay), *rest))
    if plan.direct_share > 0:
        trees.append(tuple((source_id, child) for child in plan.order))
    return tuple(trees)


def children_of(tree: Sequence[Edge]) -> dict[str, tuple[str, ...]]:
    """Children of every node that has some, from one tree of `edges`."""
    children: dict[str, list[str]] = {}
    for parent, child in tree:
        children.setdefault(parent, []).append(child)
    return {parent: tuple(kids) for parent, kids in children.items()}


def stripe_counts(plan: BroadcastPlan) -> tuple[tuple[int, ...], int]:
    """Whole chunks per relay (in `order`) and whole chunks sent directly; they add up to `chunks`."""
    return tuple(round(share * plan.chunks) for share in plan.shares), round(plan.direct_share * plan.chunks)


def chunk_relays(plan: BroadcastPlan) -> tuple[int, ...]:
    """Relay of every chunk, in the source's sending order: index in `order`, or -1 for a direct chunk.

    Chunk k of a relay with n chunks stands at k/n of the source's time, the relays with fewest chunks first
    where equal: every relay has its first chunk after one round, and the last one early enough to pass it
    on. Where there are direct chunks those give way: relayed ones stand at k/(n + 1). The predicted times
    assume this order. Single trees: every chunk goes down the tree, all -1.
    """
    if plan.topology != "stripes":
        return (DIRECT,) * plan.chunks
    counts, direct = stripe_counts(plan)
    sizes = np.array([direct, *counts])
    relay = np.repeat(np.arange(-1, len(counts)), sizes)
    step = np.concatenate([np.arange(n) for n in sizes])
    ahead = 1.0 if direct else 0.0
    # the round that relayed chunks are ahead is taken from the direct ones, each of which is sent N times
    given = max(direct - ahead * np.count_nonzero(sizes[1:]) / len(counts), 1e-9)
    pace = np.repeat(np.array([given, *(sizes[1:] + ahead)]), sizes)
    sending = np.lexsort((relay, pace, relay == DIRECT, step / pace))
    return tuple(int(i) for i in relay[sending])
