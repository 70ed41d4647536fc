"""echo2: cost-efficient reinforcement learning of language models on scattered, cheap GPUs.

One scheduler (`echo2.policy.scheduler.Scheduler`) drives two worlds: the simulation in `echo2.sim` and
the live runtime in `echo2.runtime`. Importing this package loads nothing heavy.
"""

__version__ = "0.1.0"
