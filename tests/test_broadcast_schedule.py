"""Who takes which chunk from whom: the rules that both worlds carry plans out by."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echo2.policy.broadcast import (
    LEARNER,
    BroadcastPlan,
    chunk_relays,
    rarest_first,
    relays_without,
    sources_of,
    stripe_counts,
    with_chunks,
)

NAMES = ("a", "b", "c", "d", "e", "f", "g")


@st.composite
def stripes(draw: st.DrawFn) -> BroadcastPlan:
    """Two to seven receivers, uneven whole-chunk shares, some without one, maybe a direct part."""
    count = draw(st.integers(2, 7))
    parts = draw(st.lists(st.integers(0, 9), min_size=count + 1, max_size=count + 1).filter(any))
    total = sum(parts)
    shares = tuple(part / total for part in parts[:-1])
    return plan_of(NAMES[:count], shares=shares, direct_share=parts[-1] / total, chunks=total)


@st.composite
def trees(draw: st.DrawFn) -> BroadcastPlan:
    """Any tree over two to seven receivers."""
    count = draw(st.integers(2, 7))
    parents = tuple(draw(st.integers(-1, i - 1)) for i in range(count))
    return plan_of(NAMES[:count], parents=parents, chunks=8)


def plan_of(
    order: tuple[str, ...],
    *,
    chunks: int,
    parents: tuple[int, ...] = (),
    shares: tuple[float, ...] = (),
    direct_share: float = 0.0,
) -> BroadcastPlan:
    """A plan with this shape; its times are of no account here."""
    times = (1.0,) * len(order)
    return BroadcastPlan(
        "stripes" if shares else "tree", order, parents, shares, direct_share, 2, chunks, 1e9, times,
        1.0, 1.0, 0.0, 1.0, 1.0, "fluid", "drawn",
    )  # fmt: skip


@given(stripes(), st.integers(1, 300))
def test_any_number_of_chunks_keeps_every_share_within_one_chunk(plan: BroadcastPlan, chunks: int) -> None:
    """Whole chunks per relay add up to the payload and differ from the exact share by less than one."""
    cut = with_chunks(plan, chunks)
    counts, direct = stripe_counts(cut)
    assert sum(counts) + direct == chunks == len(chunk_relays(cut))
    for whole, share in zip((*counts, direct), (*plan.shares, plan.direct_share)):
        assert abs(whole - share * chunks) < 1 + 1e-9


@given(st.one_of(stripes(), trees()), st.integers(1, 60), st.data())
def test_every_chunk_reaches_every_survivor_from_the_learner(
    plan: BroadcastPlan, chunks: int, data: st.DataObject
) -> None:
    """Following sources upwards ends at the learner, through survivors alone, even where views differ."""
    views = {name: data.draw(st.frozensets(st.sampled_from(plan.order))) for name in plan.order}
    sources = {name: sources_of(plan, name, chunks, gone) for name, gone in views.items()}
    for name in plan.order:
        for chunk in range(chunks):
            at, passed = name, set()
            while at != LEARNER:
                assert at not in passed, "they wait for each other"
                passed.add(at)
                source = sources[at][chunk]
                assert source not in views[at]
                at = source


@given(stripes(), st.integers(1, 120), st.data())
def test_one_more_departure_moves_only_its_own_chunks(
    plan: BroadcastPlan, chunks: int, data: st.DataObject
) -> None:
    """What was to come from relays that are still there stays with them."""
    first = data.draw(st.frozensets(st.sampled_from(plan.order)))
    lost = data.draw(st.sampled_from(plan.order))
    cut = with_chunks(plan, chunks)
    before, after = relays_without(cut, first), relays_without(cut, first | {lost})
    for was, now in zip(before, after):
        assert was == now or plan.order[was] == lost


def test_chunks_of_a_dead_relay_are_dealt_in_proportion() -> None:
    """Shares 1 : 2 : 5 with the last gone: the first two take its 50 chunks 1 : 2."""
    plan = plan_of(("a", "b", "c"), shares=(0.125, 0.25, 0.625), chunks=80)
    relays = relays_without(plan, {"c"})
    assert (relays.count(0), relays.count(1), relays.count(2)) == pytest.approx((27, 53, 0), abs=1)


def test_without_relays_everything_comes_from_the_learner() -> None:
    """With every relay gone, the learner sends all chunks to everybody."""
    plan = plan_of(("a", "b", "c"), shares=(0.5, 0.5, 0.0), chunks=10)
    assert sources_of(plan, "c", 10, {"a", "b"}) == (LEARNER,) * 10


def test_a_tree_feeds_from_the_nearest_living_ancestor() -> None:
    """A chain a, b, c, d without b and c: d takes all from a."""
    plan = plan_of(("a", "b", "c", "d"), parents=(-1, 0, 1, 2), chunks=4)
    assert sources_of(plan, "d", 3) == ("c",) * 3
    assert sources_of(plan, "d", 3, {"b", "c"}) == ("a",) * 3
    assert sources_of(plan, "a", 3, {"b", "c"}) == (LEARNER,) * 3


@settings(max_examples=50)
@given(st.sets(st.integers(0, 30)), st.dictionaries(st.sampled_from(NAMES), st.sets(st.integers(0, 30))))
def test_the_rarest_chunk_is_pulled_first(missing: set[int], holdings: dict[str, set[int]]) -> None:
    """Every missing chunk is pulled once, from one that has it (else the learner), rarest first."""
    pulls = rarest_first(missing, holdings)
    assert sorted(chunk for chunk, _ in pulls) == sorted(missing)
    counts = [sum(chunk in held for held in holdings.values()) for chunk, _ in pulls]
    assert counts == sorted(counts)
    for (chunk, holder), count in zip(pulls, counts):
        assert holder == LEARNER if count == 0 else chunk in holdings[holder]


def test_pulls_are_spread_over_the_holders() -> None:
    """Two holders of the same ten chunks serve five each; another start changes the order alone."""
    held = {"a": range(10), "b": range(10)}
    pulls = rarest_first(range(10), held)
    assert [holder for _, holder in pulls].count("a") == 5
    later = rarest_first(range(10), held, start=4)
    assert [chunk for chunk, _ in later] == [4, 5, 6, 7, 8, 9, 0, 1, 2, 3]


def test_bad_input_is_named() -> None:
    """No chunks and an unknown receiver are refused by name."""
    plan = plan_of(("a", "b"), parents=(-1, -1), chunks=4)
    with pytest.raises(ValueError, match="at least 1 chunk, got 0"):
        with_chunks(plan, 0)
    with pytest.raises(ValueError, match="'z' is not a receiver"):
        sources_of(replace(plan), "z", 4)
