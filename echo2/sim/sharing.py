"""Link rates for all transfers under way at a moment: who gets how much of a shared uplink or downlink.

Called by `echo2.sim.network` at every event. Flows of trees share links max-min fairly. A striped transfer
counts at its source as one flow per relay it feeds; a relay's uplink and a receiver's downlink are split
evenly between the transfers that use them, and trees take what stripes leave. A tree that was mended moves
whole chunks (`lanes`); where other transfers use the same link it gets half of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from echo2.sim.access import AccessLinks
from echo2.sim.chunk_transfer import ChunkTransfer
from echo2.sim.fairness import max_min_rates
from echo2.sim.lanes import share_lanes
from echo2.sim.stripes import StripedTransfer
from echo2.sim.transfers import Transfer, TreeTransfer

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
ROUNDS = 12
SETTLED = 1e-9


def share_links(transfers: Sequence[Transfer], links: AccessLinks) -> None:
    """Set the rates of all transfers and the links' `outflow`."""
    links.outflow[:] = 0.0
    mended = [t for t in transfers if isinstance(t, ChunkTransfer)]
    if mended:
        fluid = [t for t in transfers if not isinstance(t, ChunkTransfer)]
        out, into = _share_mended(mended, fluid, links)
        rest = links.less(out, into)
        share_links(fluid, rest)
        links.outflow[:] = out + rest.outflow
        return
    striped = [t for t in transfers if isinstance(t, StripedTransfer)]
    trees = [t for t in transfers if isinstance(t, TreeTransfer)]
    up, down = links.up, links.down
    if striped:
        _share_stripes(striped, trees, links)
        if trees:
            up = np.maximum(0.0, up - links.outflow)
            down = down - _inflow(striped, len(down))
    if trees:
        _share_trees(trees, up, np.maximum(0.0, down), links)


def _share_mended(
    mended: list[ChunkTransfer], fluid: list[Transfer], links: AccessLinks
) -> tuple[FloatArray, FloatArray]:
    """Set the rates of mended trees; (nodes,) bit/s they take of the uplinks and of the downlinks."""
    used = np.zeros(len(links.up), dtype=bool)
    used[sorted(set[int]().union(*(transfer.involved() for transfer in fluid)))] = True
    theirs = links.less(np.where(used, links.up / 2, 0.0), np.where(used, links.down / 2, 0.0))
    into = share_lanes(mended, theirs)
    return theirs.outflow, into


def _share_stripes(striped: list[StripedTransfer], trees: list[TreeTransfer], links: AccessLinks) -> None:
    alone = len(striped) == 1 and not trees
    senders, receivers = (None, None) if alone else _users(striped, trees, len(links.up))
    budgets = [float(links.up[striped[0].source])] if alone else _source_budgets(striped, trees, links)
    for transfer, budget in zip(striped, budgets):
        nodes = transfer.nodes
        up, down = links.up[nodes], links.down[nodes]
        if senders is not None and receivers is not None:
            up, down = up / np.maximum(1, senders[nodes]), down / np.maximum(1, receivers[nodes])
        transfer.set_rates(budget, up, down, links.factor[nodes])
        from_source, from_relays = transfer.outflow_bps()
        links.outflow[transfer.source] += from_source
        links.outflow[nodes[transfer.relays]] += from_relays


def _users(
    striped: list[StripedTransfer], trees: list[TreeTransfer], nodes: int
) -> tuple[IntArray, IntArray]:
    """(nodes,) how many transfers relay through each node's uplink, and end in its downlink."""
    senders, receivers = np.zeros(nodes, dtype=np.int64), np.zeros(nodes, dtype=np.int64)
    for transfer in striped:
        senders[transfer.nodes[transfer.relays]] += 1
        receivers[transfer.nodes[transfer.active]] += 1
    for tree in trees:
        senders[np.unique(tree.senders[tree.active])] += 1
        receivers[tree.nodes[tree.active]] += 1
    return senders, receivers


def _source_budgets(
    striped: list[StripedTransfer], trees: list[TreeTransfer], links: AccessLinks
) -> list[float]:
    """bit/s of its source's uplink for every striped transfer, against all other flows there."""
    weights = [float(max(1, len(t.relays))) for t in striped]
    senders, receivers, caps = _tree_flows(trees, links)
    rates = max_min_rates(
        np.concatenate([np.array([t.source for t in striped]), senders]),
        np.concatenate([np.full(len(striped), -1), receivers]),
        np.concatenate([np.array([t.source_demand_bps() for t in striped]), caps]),
        links.up,
        links.down,
        np.concatenate([np.array(weights), np.ones(len(senders))]),
    )
    return [float(rate) for rate in rates[: len(striped)]]


def _inflow(striped: list[StripedTransfer], nodes: int) -> FloatArray:
    total = np.zeros(nodes)
    for transfer in striped:
        total[transfer.nodes] += transfer.rate * transfer.bits
    return total


def _tree_flows(trees: list[TreeTransfer], links: AccessLinks) -> tuple[IntArray, IntArray, FloatArray]:
    """Sender, receiver and cap of every flow, transfer by transfer."""
    none = np.zeros(0, dtype=np.int64)
    senders, receivers, caps = [none], [none], [np.zeros(0)]
    for tree in trees:
        nodes = tree.nodes[tree.active]
        senders.append(tree.senders[tree.active])
        receivers.append(nodes)
        caps.append(tree.edge_cap_bps[tree.active] * links.factor[nodes])
    return np.concatenate(senders), np.concatenate(receivers), np.concatenate(caps)


def _share_trees(trees: list[TreeTransfer], up: FloatArray, down: FloatArray, links: AccessLinks) -> None:
    """Max-min rates under the condition that nobody who has caught up outruns its parent.

    What a held-back flow leaves goes to its siblings, which may free others: repeated until settled.
    """
    senders, receivers, caps = _tree_flows(trees, links)
    ones = np.ones(len(senders))
    rates = alone = max_min_rates(senders, receivers, caps, up, down, ones)
    for _ in range(ROUNDS):
        limits = np.minimum(caps, _path_limits(trees, rates))
        if (rates <= limits * (1 + SETTLED)).all():
            fair = max_min_rates(senders, receivers, limits, up, down, ones)
            if (fair <= rates * (1 + SETTLED) + SETTLED).all():
                break
            rates = fair
        else:
            rates = max_min_rates(senders, receivers, limits, up, down, ones)
    rates = np.minimum(rates, _path_limits(trees, rates))
    start = 0
    for tree in trees:
        end = start + int(tree.active.sum())
        tree.rate_bps = np.zeros(len(tree.nodes))
        tree.rate_bps[tree.active] = rates[start:end]
        # an edge in an outage keeps what it carried, for the times of chunks already on their way
        tree.edge_bps[tree.active] = np.where(
            alone[start:end] > 0, alone[start:end], tree.edge_bps[tree.active]
        )
        start = end
    np.add.at(links.outflow, senders, rates)


def _path_limits(trees: list[TreeTransfer], rates: FloatArray) -> FloatArray:
    """For every flow the least rate of the ancestors it has caught up with."""
    limits, start = [], 0
    for tree in trees:
        active = tree.active
        end = start + int(active.sum())
        full = np.zeros(len(tree.nodes))
        full[active] = rates[start:end]
        limits.append(tree.path_limits(full)[active])
        start = end
    return np.concatenate(limits)
