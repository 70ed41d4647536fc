"""Trees that cross each border once: one hub per site takes the snapshot, the site is served from inside.

Called by `choose`; wins where egress is paid for, or where links inside a site are much faster.
"""

from __future__ import annotations

import numpy as np

from echo2.policy.broadcast.problem import BroadcastProblem, IntArray
from echo2.policy.broadcast.timing import ChunkRules, tree_timing

Sites = list[tuple[int, list[int]]]
FAST = 0.5


def regional(problem: BroadcastProblem, rules: ChunkRules) -> list[IntArray]:
    """Parent arrays: hubs fed by the source, by the cheapest hub, and by the cheapest fast hub.

    A hub is its site's best uplink. Inside a site the hub relays as a star or a chain, whichever ends
    sooner. A site without a relay is served by the source, member by member. Empty list: no two share a site.
    """
    sites = _sites(problem)
    if all(len(members) == 1 for _, members in sites):
        return []
    hubs = [hub for hub, _ in sites if hub]
    through = np.minimum(problem.uplink, problem.downlink)
    fast = {hub for hub in hubs if through[hub] >= FAST * problem.uplink[0]}
    feeds = [
        dict.fromkeys(hubs, 0),
        _cheapest_feeds(problem, hubs, set(hubs)),
        _cheapest_feeds(problem, hubs, fast),
    ]
    distinct = [feed for i, feed in enumerate(feeds) if feed not in feeds[:i]]
    return [_quickest_inside(problem, sites, feed, rules) for feed in distinct]


def _sites(problem: BroadcastProblem) -> Sites:
    """(hub, members by falling uplink) per site; hub 0 where no member can relay."""
    groups: dict[str, list[int]] = {}
    for node, peer in enumerate(problem.receivers, start=1):
        groups.setdefault(peer.site or f"\0{node}", []).append(node)
    sites = []
    for members in groups.values():
        members.sort(key=lambda node: (-problem.uplink[node], node))
        sites.append((members[0] if problem.uplink[members[0]] > 0 else 0, members))
    return sites


def _cheapest_feeds(problem: BroadcastProblem, hubs: list[int], feeders: set[int]) -> dict[int, int]:
    """Feeder of every hub in a tree of cheap borders (Prim): the source or one of `feeders` feeds it.

    The cheapest pair is added next; of equal prices the feeder that has most uplink left per hub it feeds.
    """
    feeds: dict[int, int] = {}
    reached, left = [0], list(hubs)
    fed = np.zeros(problem.count + 1)
    while left:
        prices = problem.egress[np.ix_(reached, left)]
        cheapest = np.argwhere(prices <= prices.min() * (1 + 1e-9))
        senders = np.array(reached)[cheapest[:, 0]]
        row, column = cheapest[int(np.argmin((fed[senders] + 1) / problem.uplink[senders]))]
        hub, feeder = left.pop(int(column)), reached[int(row)]
        feeds[hub] = feeder
        fed[feeder] += 1
        if hub in feeders:
            reached.append(hub)
    return feeds


def _quickest_inside(
    problem: BroadcastProblem, sites: Sites, feeds: dict[int, int], rules: ChunkRules
) -> IntArray:
    """Each site as a star or as a chain, by the time its last member is done."""
    fan, line = _parents(problem, sites, feeds, chain=False), _parents(problem, sites, feeds, chain=True)
    fan_s = tree_timing(problem, fan, rules).receiver_s
    line_s = tree_timing(problem, line, rules).receiver_s
    parent = fan.copy()
    feeding = set(feeds.values())
    for hub, members in sites:
        rest = np.array(members) - 1
        # a star would take uplink from the hubs that this hub feeds, so those keep the chain
        if hub and (hub in feeding or line_s[rest].max() < fan_s[rest].max()):
            parent[members] = line[members]
    return parent


def _parents(problem: BroadcastProblem, sites: Sites, feeds: dict[int, int], *, chain: bool) -> IntArray:
    parent = np.zeros(problem.count + 1, dtype=np.int64)
    parent[0] = -1
    for hub, members in sites:
        if not hub:
            continue
        parent[hub] = feeds[hub]
        above = hub
        for node in members[1:]:
            parent[node] = above
            if chain and problem.uplink[node] > 0:
                above = node
    return parent
