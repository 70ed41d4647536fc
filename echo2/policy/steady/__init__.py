"""The steady state of a run under the admission gate, without simulating single rollouts.

`predict` is what the planner searches with and what the simulator is checked against.
"""

from echo2.policy.steady.limit import most_utilisation
from echo2.policy.steady.march import predict
from echo2.policy.steady.problem import SteadyProblem, SteadyState, WorkerGroup

__all__ = ["SteadyProblem", "SteadyState", "WorkerGroup", "most_utilisation", "predict"]
