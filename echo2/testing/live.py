"""The configuration of a small live run on one machine, for tests and benchmarks of the live runtime."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path

LIVE = """
name = "live"
[run]
steps = 6
staleness = 1
publish_period = 1
best_effort = true
[batch]
rollouts_per_step = 32
group_size = 8
[model]
name = "tiny"
snapshot_gb = 0.00163
[learner]
gpu = "CPU"
gpus = 1
provider = "here"
price_usd_per_gpu_h = 0.1
step_s = 0.2
uplink_mbps = 2000
downlink_mbps = 2000
egress_usd_per_gb = 0.0
[rollout]
tokens = 6
max_tokens = 12
prompt_tokens = 7
swap_pause_s = 0.02
[[pool]]
name = "w"
gpu = "CPU"
count = 1
provider = "here"
region = "aws:us-east-1"
price_usd_per_h = 0.02
tokens_per_s = 1000
slots = 16
uplink_mbps = 1000
downlink_mbps = 1000
startup_s = 30
relay = false
local = true
threads = 1
[policy]
activation = "all"
[train]
template = "plain"
max_prompt_tokens = 16
learning_rate = 1e-6
checkpoint_every = 1000000
threads = 1
patience_s = 120
"""
"""One pool "w" of local workers; prices and rates are those of no real machine."""


def live_config(model: Path, changes: Mapping[str, object]) -> str:
    """The text of a configuration file: `LIVE` with `changes`, by key as `--set` takes them.

    For example {"run.steps": 3, "pool.w.engine": "vllm"}. Raises UserError for what a file may not say.
    """
    from echo2.config import dumps, parse
    from echo2.config.toml import literal

    every = {"train.model": str(model), **changes}
    sets = [f"{key}={literal(value)}" for key, value in every.items()]
    return dumps(parse(tomllib.loads(LIVE), "echo2.testing.live", sets))
