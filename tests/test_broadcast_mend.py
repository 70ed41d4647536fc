"""A tree that loses a relay: the ways that are left, and the least time for what is left."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echo2.policy.broadcast import (
    LEARNER,
    BroadcastProblem,
    Peer,
    fluid_bound_s,
    plan_for,
    rest_bound_s,
    sources_of,
    stripe_counts,
    striped,
    ways_left,
)
from echo2.policy.broadcast.mend import shares_of

GBIT = 1e9


def problem(ups: list[float], downlink: float = 4.0) -> BroadcastProblem:
    """A learner of 1 Gbit/s and workers with these uplinks, 8 GB."""
    peers = tuple(Peer(f"w{i}", up * GBIT, downlink * GBIT) for i, up in enumerate(ups))
    return BroadcastProblem(8e9, Peer(LEARNER, GBIT, GBIT), peers)


def without(whole: BroadcastProblem, name: str) -> BroadcastProblem:
    """The same without one receiver."""
    return replace(whole, receivers=tuple(p for p in whole.receivers if p.peer_id != name))


uplinks = st.lists(st.floats(0.1, 2.0), min_size=3, max_size=7)


@settings(max_examples=40)
@given(uplinks, st.sampled_from(["chain", "k-ary", "tree"]), st.data())
def test_both_ways_bring_everything_to_all_that_are_left(
    ups: list[float], topology: str, data: st.DataObject
) -> None:
    """The tree without a relay and stripes: each with every survivor, the lost one in neither, none faster
    than the bound."""
    whole = problem(ups)
    plan = plan_for(whole, topology)  # type: ignore[arg-type]
    lost = data.draw(st.sampled_from(plan.order))
    left = without(whole, lost)
    tree, stripes = ways_left(left, plan, {lost})
    assert tree.parents and stripes.shares
    for way in (tree, stripes):
        assert set(way.order) == set(plan.order) - {lost}
        assert way.time_s >= fluid_bound_s(left) * (1 - 1e-9)
    after = striped(plan, shares_of(stripes, plan.order), stripes.direct_share)
    counts, direct = stripe_counts(after)
    assert sum(counts) + direct == plan.chunks and counts[plan.order.index(lost)] == 0
    assert all(lost not in sources_of(after, name, plan.chunks) for name in plan.order)


def test_an_orphan_in_the_tree_goes_to_its_nearest_ancestor() -> None:
    """A chain without its second: the third is fed by the first, and so it is priced."""
    whole = problem([1.0, 1.0, 1.0, 1.0])
    plan = plan_for(whole, "chain")
    tree, _ = ways_left(without(whole, plan.order[1]), plan, {plan.order[1]})
    assert tree.order == (plan.order[0], *plan.order[2:]) and tree.parents == (-1, 0, 1)


def test_a_relay_that_stays_as_a_receiver_feeds_nobody() -> None:
    """One that lies is still served, as a leaf of the tree and with no part in the stripes."""
    whole = problem([1.0, 1.0, 1.0])
    plan = plan_for(whole, "chain")
    bad = plan.order[0]
    peers = tuple(replace(p, can_relay=p.peer_id != bad) for p in whole.receivers)
    tree, stripes = ways_left(replace(whole, receivers=peers), plan, {bad})
    assert tree.order.index(bad) not in tree.parents
    assert stripes.shares[stripes.order.index(bad)] == 0


def test_one_survivor_has_no_stripes() -> None:
    """Alone it gets the rest from the learner."""
    whole = problem([1.0, 1.0])
    plan = plan_for(whole, "chain")
    (tree,) = ways_left(without(whole, plan.order[0]), plan, {plan.order[0]})
    assert tree.parents == (-1,)


@given(uplinks, st.floats(0.05, 1.0))
def test_the_rest_takes_at_least_its_part_of_the_bound(ups: list[float], share: float) -> None:
    """With nothing there the rest's bound is the whole's; the same lack for all scales it."""
    whole = problem(ups)
    everything = rest_bound_s(whole, np.ones(len(ups)))
    assert everything == pytest.approx(fluid_bound_s(whole))
    assert rest_bound_s(whole, np.full(len(ups), share)) == pytest.approx(share * everything)


def test_what_somebody_has_need_not_come_from_the_learner() -> None:
    """Of three one has all: the others' halves cost their downlinks or all uplinks."""
    whole = problem([1.0, 1.0, 1.0], downlink=1.0)
    assert rest_bound_s(whole, np.array([0.0, 0.5, 0.5])) == pytest.approx(32.0)
    assert rest_bound_s(whole, np.zeros(3)) == 0.0


def test_shares_that_fit_no_receivers_are_refused() -> None:
    """One share for each receiver, and not all of them zero."""
    plan = plan_for(problem([1.0, 1.0]), "chain")
    for shares in ((1.0,), (0.0, 0.0)):
        with pytest.raises(ValueError, match="2 receivers need as many shares"):
            striped(plan, shares)
