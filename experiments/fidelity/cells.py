"""The configurations of the fidelity matrix: what is varied, and the TOML of each. Read by `matrix`.

Everything is small, so that a run takes seconds: a model of 0.4 M parameters is trained for real on the
`noise` task (its reward is a coin, so the learner works whatever the engine makes up). Simulated engines
sleep by their profile; transformers and vLLM generate. Prices are made up: there is nothing to rent.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

MODEL = "assets/tiny-sort"
SNAPSHOT_BYTES = 1_623_504
ROLLOUTS, GROUP = 32, 8
TOKENS = 24
TRAIN_S = 0.08
RUN_S = 14.0
LEAST_STEPS, MOST_STEPS = 40, 130
LEARNER = {
    "gpu": "CPU",
    "gpus": 1,
    "provider": "here",
    "price_usd_per_gpu_h": 0.1,
    "step_s": TRAIN_S,
    "uplink_mbps": 2000.0,
    "downlink_mbps": 2000.0,
    "egress_usd_per_gb": 0.0,
}
WAVY = "ec2-c5.xlarge-us-west-1-1567729762"


@dataclass(frozen=True)
class Pool:
    """Workers of one kind. `mbps` 0: the link as it is; else shaped to that rate, by a trace if `wavy`."""

    engine: str = "simulated"
    count: int = 3
    tokens_per_s: float = 1500.0
    slots: int = 16
    mbps: float = 0.0
    wavy: bool = False
    startup_s: float = 2.0


@dataclass(frozen=True)
class Cell:
    """One configuration. `overhead_s`: what a run takes beside its steps, for the estimate."""

    name: str
    staleness: int
    kappa: int
    pools: tuple[Pool, ...]
    tokens: int = TOKENS
    max_tokens: int = 32
    steps: int = 0
    activation: str = "all"
    overhead_s: float = 6.5

    @property
    def rate(self) -> float:
        """Steps/s expected, roughly: of learner, rollouts and staleness the slowest."""
        rollouts = sum(p.count * p.tokens_per_s for p in self.pools) / self.tokens
        slowest = max(self.pools, key=lambda p: 8.0 * SNAPSHOT_BYTES / 1e6 / p.mbps if p.mbps else 0.0)
        spread_s = 0.1 + (8.0 * SNAPSHOT_BYTES / 1e6 / slowest.mbps if slowest.mbps else 0.0)
        group_s = 0.06 + max(p.slots * self.tokens / p.tokens_per_s for p in self.pools)
        fresh = (self.staleness + 1) / (spread_s + group_s + TRAIN_S + (self.kappa - 1) / 2 * TRAIN_S)
        return min(0.9 / TRAIN_S, 0.9 * rollouts / ROLLOUTS, fresh)

    @property
    def total_steps(self) -> int:
        """Steps of a run of about RUN_S."""
        return self.steps or max(LEAST_STEPS, min(MOST_STEPS, round(RUN_S * self.rate)))

    @property
    def expected_s(self) -> float:
        """Wall seconds of a run, with all that is around it."""
        return self.total_steps / self.rate + max(p.startup_s for p in self.pools) + self.overhead_s


def _simulated(
    name: str, staleness: int, kappa: int, workers: int = 3, mbps: float = 0.0, **more: Any
) -> Cell:
    rate = more.pop("tokens_per_s", 1500.0)
    pool = Pool(count=workers, mbps=mbps, tokens_per_s=rate, wavy=more.pop("wavy", False))
    return Cell(name, staleness, kappa, (pool,), **more)


FAST, HALF, QUARTER = (Pool(count=1, tokens_per_s=rate) for rate in (2400.0, 1200.0, 600.0))
HF = Pool("transformers", 1, 1500.0, 32, startup_s=8.0)
VLLM = Pool("vllm", 1, 1500.0, 32, startup_s=30.0)


def _real(name: str, staleness: int, kappa: int, *pools: Pool, steps: int = 80) -> Cell:
    """Generates for real: most completions are 6 digits and the end."""
    return Cell(name, staleness, kappa, pools, tokens=7, max_tokens=12, steps=steps, overhead_s=7.0)


CELLS = (
    _simulated("s0-k1-w3-open", 0, 1),
    _simulated("s0-k1-w3-60", 0, 1, mbps=60.0),
    _simulated("s1-k1-w3-open", 1, 1),
    _simulated("s1-k2-w3-open", 1, 2),
    _simulated("s3-k1-w2-20", 3, 1, 2, 20.0),
    _simulated("s3-k1-w3-open", 3, 1),
    _simulated("s3-k1-w6-open", 3, 1, 6),
    _simulated("s3-k2-w3-20", 3, 2, mbps=20.0),
    _simulated("s3-k4-w3-20", 3, 4, mbps=20.0),
    _simulated("s3-k1-w3-wavy", 3, 1, mbps=20.0, wavy=True),
    _simulated("s3-k1-w6-cost", 3, 1, 6, activation="cost", tokens_per_s=2500.0),
    _simulated("s6-k1-w3-10", 6, 1, mbps=10.0),
    _simulated("s6-k3-w3-10", 6, 3, mbps=10.0),
    _simulated("s6-k5-w6-open", 6, 5, 6),
    _simulated("s11-k1-w3-8", 11, 1, mbps=8.0),
    _simulated("s11-k6-w3-8", 11, 6, mbps=8.0),
    _simulated("s11-k10-w6-open", 11, 10, 6, tokens_per_s=2500.0),
    Cell("s3-k1-mixed-speeds", 3, 1, (FAST, HALF, QUARTER)),
    Cell(
        "s6-k3-mixed-speeds-links",
        6,
        3,
        (replace(FAST, mbps=10.0), replace(HALF, mbps=40.0), replace(QUARTER, mbps=40.0, wavy=True)),
    ),
    _real("s0-k1-hf", 0, 1, HF),
    _real("s1-k1-hf", 1, 1, HF),
    _real("s3-k2-hf", 3, 2, HF),
    _real("s6-k3-hf-mixed", 6, 3, HF, Pool(count=2, tokens_per_s=300.0), steps=100),
    _real("s1-k1-vllm", 1, 1, VLLM),
    _real("s3-k2-vllm", 3, 2, VLLM),
    # vLLM takes some 25 s to come up, and the other worker makes 150 steps meanwhile
    _real("s6-k3-vllm-hf", 6, 3, VLLM, HF, steps=400),
)


def table(cell: Cell, seed: int, model: str) -> dict[str, Any]:
    """The configuration of a cell as the TOML form; `model` is the path of the model directory."""
    return {
        "name": cell.name,
        "seed": seed,
        "run": {
            "steps": cell.total_steps,
            "staleness": cell.staleness,
            "publish_period": cell.kappa,
            "best_effort": True,
        },
        "batch": {"rollouts_per_step": ROLLOUTS, "group_size": GROUP},
        "model": {"name": "tiny-sort", "snapshot_gb": SNAPSHOT_BYTES / 1e9},
        "learner": dict(LEARNER),
        "rollout": {
            "tokens": float(cell.tokens),
            "max_tokens": cell.max_tokens,
            "prompt_tokens": 7.0,
            "swap_pause_s": 0.01,
        },
        "network": {"local_mbps": 10000.0},
        "policy": {"activation": cell.activation},
        "pool": [_pool(f"{pool.engine}{number}", pool) for number, pool in enumerate(cell.pools)],
        "train": {
            "model": model,
            "task": "noise",
            "template": "plain",
            "max_prompt_tokens": 16,
            "learning_rate": 1e-5,
            "checkpoint_every": 5,
            "threads": 1,
        },
    }


def _pool(name: str, pool: Pool) -> dict[str, Any]:
    made: dict[str, Any] = {
        "name": name,
        "gpu": "CPU",
        "count": pool.count,
        "provider": "here",
        "region": "aws:us-east-1",
        "price_usd_per_h": 0.02,
        "tokens_per_s": pool.tokens_per_s,
        "slots": pool.slots,
        "uplink_mbps": pool.mbps or 1000.0,
        "downlink_mbps": pool.mbps or 1000.0,
        "startup_s": pool.startup_s,
        "relay": False,
        "engine": pool.engine,
        "local": True,
        "threads": 1,
    }
    if pool.mbps:
        made["shape_links"] = True
    if pool.wavy:
        made["link_shape"] = WAVY
    return made
