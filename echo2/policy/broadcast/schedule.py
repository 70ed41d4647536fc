"""Who takes which chunk of a payload from whom: a plan as it is carried out, whatever becomes of its relays.

Used by both worlds: the live driver turns `sources_of` into routes, the simulated networks feed lanes and
fluids by the same rules. Every rule depends on the plan and on who is gone alone, so that whoever works it
out gets the same; ours. Rarest first is BitTorrent's (Cohen 2003).

Every chunk of stripes has a fixed line of relays: its own, then the one it goes to should that be gone, and
so on. A receiver takes it from the first of the line that is there, and from the learner once the line has
come to itself. So whoever waits, waits for one further ahead in the line: receivers that differ on who is
gone can never wait for each other in a ring, and one more departure moves only the chunks of who departed.

A tree that loses a relay may go on as stripes (`mend` says when, `striped` is the plan from then on): what
is left comes from all that are there, not from one ancestor. Then all its receivers go over together, for
one that goes on down the tree and one that follows stripes could wait for each other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import replace

import numpy as np

from echo2.policy.broadcast.plan import DIRECT, BroadcastPlan, chunk_relays, stripe_counts

LEARNER = "learner"
"""The id of the source of every broadcast."""


def with_chunks(plan: BroadcastPlan, chunks: int) -> BroadcastPlan:
    """The same plan for another number of chunks (>= 1), every share kept to within one chunk.

    Predicted times stay those of the plan's own chunks. Raises ValueError for `chunks` < 1.
    """
    if chunks < 1:
        raise ValueError(f"a payload has at least 1 chunk, got {chunks}")
    if chunks == plan.chunks:
        return plan
    if not plan.shares:
        return replace(plan, chunks=chunks)
    counts, direct = stripe_counts(plan)
    shares, direct_share = _whole_chunks([*counts, direct], chunks)
    return replace(plan, chunks=chunks, shares=shares, direct_share=direct_share)


def striped(plan: BroadcastPlan, shares: Sequence[float], direct_share: float = 0.0) -> BroadcastPlan:
    """The plan from the moment on at which its receivers go over to stripes, in whole chunks of its number.

    `shares` (N,) by `plan.order`, as `BroadcastPlan.shares`. Predicted times stay those of the plan. Raises
    ValueError for shares that are not one for each receiver, or of which none is above 0.
    """
    if len(shares) != len(plan.order) or sum(shares) + direct_share <= 0:
        raise ValueError(f"{len(plan.order)} receivers need as many shares, some above 0; got {shares}")
    shares, direct_share = _whole_chunks([*shares, direct_share], plan.chunks)
    return replace(plan, topology="stripes", parents=(), shares=shares, direct_share=direct_share)


def _whole_chunks(parts: Sequence[float], chunks: int) -> tuple[tuple[float, ...], float]:
    """Parts as shares of so many whole chunks, each to within one: all but the last, and the last."""
    exact = np.array(parts) * (chunks / max(sum(parts), 1e-300))
    whole = np.floor(exact + 1e-9)
    missing = chunks - int(whole.sum())
    whole[np.argsort(whole - exact, kind="stable")[:missing]] += 1
    return tuple((whole[:-1] / chunks).tolist()), float(whole[-1]) / chunks


def sources_of(
    plan: BroadcastPlan, receiver_id: str, chunks: int, gone: Set[str] = frozenset()
) -> tuple[str, ...]:
    """(chunks,) from whom a receiver takes each chunk of the payload: a worker's id, or `LEARNER`.

    `gone`: relays that are not to be used (any other id is ignored). Raises ValueError for a receiver that
    is not in the plan.
    """
    if receiver_id not in plan.order:
        raise ValueError(f"{receiver_id!r} is not a receiver of this plan")
    me = plan.order.index(receiver_id)
    names = (*plan.order, LEARNER)
    if not plan.shares:
        return (names[living_parents(plan, gone)[me]],) * chunks
    dead = gone - {receiver_id}
    line = relays_without(with_chunks(plan, chunks), dead)
    return tuple(LEARNER if relay == me else names[relay] for relay in line)


def living_parents(plan: BroadcastPlan, gone: Set[str]) -> tuple[int, ...]:
    """(N,) index in `order` of everybody's nearest ancestor that is not gone, -1 for the source.

    Of a plan without a tree (stripes, an empty one) everybody's is the source.
    """
    parents = plan.parents or (DIRECT,) * len(plan.order)
    living: list[int] = []
    for parent in parents:
        # parents stand before their children, so theirs are known
        dead = parent != DIRECT and plan.order[parent] in gone
        living.append(living[parent] if dead else parent)
    return tuple(living)


def relays_without(plan: BroadcastPlan, gone: Collection[str]) -> tuple[int, ...]:
    """(chunks,) relay of every chunk, as `chunk_relays`, where some relays are gone.

    A chunk of one that is gone goes to the next of its line (see the module): the chunks of a relay are
    dealt to all others in proportion to their shares. -1: none is left, the source sends it to everybody.
    """
    relays = list(chunk_relays(plan))
    dead = {i for i, name in enumerate(plan.order) if name in gone and i < len(plan.shares)}
    waiting = {frozenset((i,)): [c for c, relay in enumerate(relays) if relay == i] for i in sorted(dead)}
    while waiting:
        again: dict[frozenset[int], list[int]] = {}
        for passed, chunks in waiting.items():
            others = [i for i, share in enumerate(plan.shares) if share > 0 and i not in passed]
            for chunk, relay in zip(chunks, _dealt(others, plan.shares, len(chunks))):
                relays[chunk] = relay
                if relay in dead:
                    again.setdefault(passed | {relay}, []).append(chunk)
        waiting = {passed: sorted(chunks) for passed, chunks in again.items()}
    return tuple(relays)


def _dealt(relays: Sequence[int], shares: Sequence[float], count: int) -> list[int]:
    """Whom each of `count` chunks goes to: in turn, in proportion to the shares; -1 without relays."""
    if not relays:
        return [DIRECT] * count
    dealt = dict.fromkeys(relays, 0)
    given = []
    for _ in range(count):
        relay = min(relays, key=lambda i: (dealt[i] + 1) / shares[i])
        dealt[relay] += 1
        given.append(relay)
    return given


def rarest_first(
    missing: Iterable[int], holdings: Mapping[str, Collection[int]], start: int = 0
) -> list[tuple[int, str]]:
    """The chunks to pull, the rarest first, each with the holder that has fewest of them to serve so far.

    `holdings`: what each holder has. A chunk that none has comes first, from `LEARNER`, which has all.
    `start`: of equally rare ones the first from this index on goes first, so that workers that begin at
    different places have different chunks to offer each other.
    """
    lacking = set(missing)
    holders: dict[int, list[str]] = {chunk: [] for chunk in lacking}
    for name in sorted(holdings):
        for chunk in lacking.intersection(holdings[name]):
            holders[chunk].append(name)
    order = sorted(lacking, key=lambda chunk: (len(holders[chunk]), chunk < start, chunk))
    load = dict.fromkeys(holdings, 0)
    pulls = []
    for chunk in order:
        holder = min(holders[chunk], key=lambda name: (load[name], name), default=LEARNER)
        if holder in load:
            load[holder] += 1
        pulls.append((chunk, holder))
    return pulls
