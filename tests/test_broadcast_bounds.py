"""Bounds on the broadcast time: closed forms, and the linear program beside them."""

from __future__ import annotations

import numpy as np
import pytest

from echo2.policy.broadcast import BroadcastProblem, Peer, candidates, cut_bound_s, fluid_bound_s, lp_bound_s


def pool(
    uplink_bps: float, count: int, caps: np.ndarray | None = None, *, learner_bps: float = 1e9
) -> BroadcastProblem:
    """1 GB to `count` equal workers with 10 Gbit/s downlinks."""
    receivers = tuple(Peer(f"w{i}", uplink_bps, 10e9) for i in range(count))
    return BroadcastProblem(1e9, Peer("learner", learner_bps, 10e9), receivers, caps)


def test_the_three_terms_of_the_fluid_bound() -> None:
    """F/u_s with rich peers, N F/(u_s + sum u) with poor ones, F/min d with one slow downlink."""
    assert fluid_bound_s(pool(1e9, 4)) == pytest.approx(8.0)
    assert fluid_bound_s(pool(0.25e9, 4)) == pytest.approx(4 * 8 / 2.0)
    slow = Peer("slow", 1e9, 0.1e9)
    problem = BroadcastProblem(1e9, Peer("learner", 1e9, 1e9), (*pool(1e9, 3).receivers, slow))
    assert fluid_bound_s(problem) == pytest.approx(80.0)


def test_peers_that_cannot_relay_add_no_uplink() -> None:
    """Only the learner sends: N F/u_s."""
    receivers = tuple(Peer(f"w{i}", 5e9, 10e9, can_relay=False) for i in range(4))
    assert fluid_bound_s(BroadcastProblem(1e9, Peer("learner", 1e9, 1e9), receivers)) == pytest.approx(32.0)


def test_caps_into_one_receiver_bound_it() -> None:
    """Three paths of 0.1 Gbit/s into a worker: 8 Gbit take 26.7 s, which the fluid bound does not see."""
    caps = np.full((4, 4), np.inf)
    caps[:, 3] = 0.1e9
    problem = pool(1e9, 3, caps)
    assert fluid_bound_s(problem) == pytest.approx(8.0)
    assert cut_bound_s(problem) == pytest.approx(8 / 0.3)
    assert lp_bound_s(problem) == pytest.approx(8 / 0.3, rel=2e-3)


def test_the_lp_sees_cuts_of_several_receivers() -> None:
    """A pair of workers behind thin paths only: no single receiver shows it, the LP does."""
    caps = np.full((5, 5), 10e9)
    caps[np.ix_([0, 1, 2], [3, 4])] = 0.1e9
    problem = pool(10e9, 4, caps, learner_bps=10e9)
    # the six thin paths carry everything the pair gets from outside: 0.6 Gbit/s
    assert lp_bound_s(problem) == pytest.approx(8 / 0.6, rel=2e-3)
    assert cut_bound_s(problem) < 0.5 * lp_bound_s(problem)


def test_the_kind_of_bound_is_named() -> None:
    """fluid without caps, cut with caps, lp where asked for."""
    caps = np.full((4, 4), 1e9)
    assert {plan.bound_kind for plan in candidates(pool(1e9, 3))} == {"fluid"}
    assert {plan.bound_kind for plan in candidates(pool(1e9, 3, caps))} == {"cut"}
    assert {plan.bound_kind for plan in candidates(pool(1e9, 3, caps), lp_bound=True)} == {"lp"}


def test_the_lp_refuses_what_would_take_long() -> None:
    """More than 64 receivers: an error that says so, and `candidates` falls back to the cut bound."""
    caps = np.full((67, 67), 1e9)
    with pytest.raises(ValueError, match="up to 64 receivers, got 66"):
        lp_bound_s(pool(1e9, 66, caps))
    assert candidates(pool(1e9, 66, caps), lp_bound=True)[0].bound_kind == "cut"
