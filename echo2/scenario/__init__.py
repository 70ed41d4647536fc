"""From a configuration and traces to something that can be planned and simulated.

`build(config, base_dir)` returns a `Scenario`: the planner's problem, the simulated workers, and notes that
say where every number comes from.
"""

from echo2.scenario.scenario import Scenario, build

__all__ = ["Scenario", "build"]
