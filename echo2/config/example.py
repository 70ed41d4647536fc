"""The configuration that `echo2 init` writes: small, feasible, with prices and speeds of the catalogue."""

from __future__ import annotations

from echo2.config.model import Config
from echo2.config.sections import Learner, Model, Pool, Rollout, Run


def example() -> Config:
    """A learner of 4 H200 and two pools of spot GPUs."""
    return Config(
        name="my-run",
        run=Run(steps=100, staleness=4),
        model=Model(name="Qwen3-8B"),
        learner=Learner(
            provider="digitalocean", region="aws:us-east-1", uplink_mbps=10_000.0, downlink_mbps=10_000.0
        ),
        rollout=Rollout(),
        pool=(
            Pool(
                name="h100",
                gpu="H100",
                count=4,
                provider="vast-ai",
                region="azure:eastus",
                uplink_mbps=2000.0,
                downlink_mbps=2000.0,
                availability="bamboo-v100",
            ),
            Pool(
                name="rtx5090",
                gpu="RTX 5090",
                count=12,
                provider="salad",
                region="aws:us-east-2",
                uplink_mbps=300.0,
                downlink_mbps=900.0,
                availability="bamboo-g4dn",
                link_shape="home-brisbane-2017-shape",
            ),
        ),
    )
