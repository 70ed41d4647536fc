"""The configuration: one TOML file for planning, simulating and training.

`load` reads and checks a file, `parse` a table; every mistake is one `UserError` line. `dumps` writes the
resolved form back, `template` the commented file of `echo2 init`.
"""

from echo2.config.live import Train
from echo2.config.load import LoadedConfig, load, parse
from echo2.config.model import Config
from echo2.config.sections import (
    Batch,
    Learner,
    Model,
    Network,
    Policy,
    Pool,
    PriceChange,
    Rollout,
    Run,
    Sim,
)
from echo2.config.toml import dumps, template

__all__ = [
    "Batch",
    "Config",
    "Learner",
    "LoadedConfig",
    "Model",
    "Network",
    "Policy",
    "Pool",
    "PriceChange",
    "Rollout",
    "Run",
    "Sim",
    "Train",
    "dumps",
    "load",
    "parse",
    "template",
]
