"""Which workers to pay for: the cheapest set whose effective rate covers what the learner needs.

`choose` solves the whole pool (planner, start of a run); `revise` changes a running pool as little as
possible (scheduler, at every membership, speed or price change).
"""

from echo2.policy.activation.candidate import Activation, Candidate, lp_bound
from echo2.policy.activation.cover import choose, exact, greedy_then_prune
from echo2.policy.activation.revise import HysteresisPolicy, Revision, revise

__all__ = [
    "Activation",
    "Candidate",
    "HysteresisPolicy",
    "Revision",
    "choose",
    "exact",
    "greedy_then_prune",
    "lp_bound",
    "revise",
]
