"""What a broadcast problem accepts, and the rate of parallel TCP flows."""

from __future__ import annotations

import numpy as np
import pytest

from echo2.policy.broadcast import BroadcastProblem, Peer, flow_cap_bps

LEARNER = Peer("learner", 1e9, 1e9)
WORKER = Peer("w0", 1e8, 1e9)


@pytest.mark.parametrize(
    ("peer", "named"),
    [(Peer("bad", 0.0, 1e9), "uplink_bps"), (Peer("bad", 1e9, float("inf")), "downlink_bps")],
)
def test_a_bad_rate_is_refused_by_name(peer: Peer, named: str) -> None:
    """The error names the peer, the rate and its value."""
    with pytest.raises(ValueError, match=rf"'bad'.*{named}.*got"):
        BroadcastProblem(1e9, LEARNER, (peer,))


def test_ids_are_unique_and_sizes_positive() -> None:
    """A repeated id and a size of zero are refused."""
    with pytest.raises(ValueError, match="'w0' occurs twice"):
        BroadcastProblem(1e9, LEARNER, (WORKER, WORKER))
    with pytest.raises(ValueError, match="size_bytes"):
        BroadcastProblem(0.0, LEARNER, (WORKER,))


def test_matrices_have_one_row_per_peer_and_no_bad_entry() -> None:
    """Wrong shapes and zero, negative or nan entries are refused; the diagonal is ignored."""
    with pytest.raises(ValueError, match=r"shape \(2, 2\)"):
        BroadcastProblem(1e9, LEARNER, (WORKER,), pair_cap_bps=np.ones((3, 3)))
    caps = np.array([[np.nan, np.nan], [1e9, np.nan]])
    with pytest.raises(ValueError, match="pair_cap_bps from 'learner' to 'w0'"):
        BroadcastProblem(1e9, LEARNER, (WORKER,), pair_cap_bps=caps)
    caps[0, 1] = np.inf
    BroadcastProblem(1e9, LEARNER, (WORKER,), pair_cap_bps=caps)


def test_flows_add_up_to_the_capacity() -> None:
    """One flow US-EU (103 ms) moves 208 Mbit/s, twenty 4.15 Gbit/s, and never more than the link."""
    one, twenty = (float(flow_cap_bps(7e9, 0.103, streams)) for streams in (1, 20))
    assert one == pytest.approx(208e6, rel=0.01)
    assert twenty == pytest.approx(20 * one)
    assert flow_cap_bps(np.array([1e9, 7e9]), np.array([0.0, 0.103]), 80).tolist() == [1e9, 7e9]
    with pytest.raises(ValueError, match="streams"):
        flow_cap_bps(1e9, 0.1, 0)
