"""What one learner step reports, and how it is summed over micro-batches.

The learner fills a `Tally` per step; drivers write `StepMetrics.as_dict()` as one JSON line.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from echo2.runtime.learning.losses import Clipped, importance_ratio, kl_k3
from echo2.runtime.learning.ranks import Ranks


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """One optimiser step. None where nothing was there to measure, never NaN.

    `version` is the one the step made. `rollouts`, `groups`, `reward_mean` and `staleness` (lag in
    versions to number of rollouts) are over the whole batch; all else over the rollouts trained, that is
    without the `zero_variance_groups`. `loss` was divided by `loss_denominator` (unit by the aggregation).

    `ratio_*`: policy / behaviour before the update. `clip_share`: share of tokens whose clip was in force.
    `capped_share`: share of tokens whose importance weight was truncated or masked. `entropy` in nats.
    `mismatch_kl`: k3 estimate of KL(engine || trainer) over the `mismatch_tokens` of rollouts generated
    wholly by the version being trained, where the two differ by numerics only; `behaviour_kl`: the same
    over all tokens, staleness included. `kl_reference` is None without a reference.
    `grad_norm` is the norm before clipping.
    """

    version: int
    rollouts: int
    groups: int
    zero_variance_groups: int
    trained_rollouts: int
    tokens: int
    micro_batches: int
    aggregation: str
    loss_denominator: float
    loss: float | None
    reward_mean: float
    advantage_std: float | None
    ratio_mean: float | None
    ratio_max: float | None
    clip_share: float | None
    capped_share: float | None
    entropy: float | None
    mismatch_kl: float | None
    mismatch_tokens: int
    behaviour_kl: float | None
    kl_reference: float | None
    grad_norm: float | None
    learning_rate: float
    staleness: dict[int, int]
    seconds: float

    @property
    def tokens_per_s(self) -> float:
        """Trained tokens per second of the step."""
        return self.tokens / self.seconds if self.seconds > 0 else 0.0

    def as_dict(self) -> dict[str, object]:
        """For a JSON line; keys of `staleness` become strings there."""
        return dataclasses.asdict(self)


@dataclass(slots=True)
class Tally:
    """Sums over the trained tokens of a step."""

    tokens: int = 0
    mismatch_tokens: int = 0
    ratio_max: float = -math.inf
    sums: dict[str, float] = field(default_factory=dict)

    def add(self, name: str, values: Tensor, where: Tensor) -> None:
        """Add the values [B, T] at the True of `where` to the sum `name`."""
        total = torch.where(where, values.detach().double(), 0.0).sum()
        self.sums[name] = self.sums.get(name, 0.0) + float(total)

    def add_policy(self, policy: Tensor, behaviour: Tensor, mask: Tensor, fresh: Tensor) -> None:
        """Ratio and KL of the policy against the behaviour; `fresh` [B] rows are of this very version."""
        policy = policy.detach()
        ratio = importance_ratio(policy, behaviour)
        divergence = kl_k3(behaviour, policy)
        self.tokens += int(mask.sum())
        self.add("ratio", ratio, mask)
        if mask.any():
            self.ratio_max = max(self.ratio_max, float(ratio[mask].max()))
        self.add("behaviour_kl", divergence, mask)
        new = mask & fresh[:, None]
        self.mismatch_tokens += int(new.sum())
        self.add("mismatch_kl", divergence, new)

    def add_clip(self, clipped: Clipped, capped: Tensor, mask: Tensor) -> None:
        """Where the clip and the cap of the weight were in force."""
        self.add("clip", clipped.bound.double(), mask)
        self.add("capped", capped.double(), mask)

    def gather(self, ranks: Ranks) -> None:
        """Make the sums those of all ranks."""
        names = sorted(self.sums)
        totals = ranks.total(
            [float(self.tokens), float(self.mismatch_tokens), *(self.sums[n] for n in names)]
        )
        self.tokens, self.mismatch_tokens = int(totals[0]), int(totals[1])
        self.sums = dict(zip(names, totals[2:]))
        self.ratio_max = ranks.highest(self.ratio_max)

    def mean(self, name: str) -> float | None:
        """Mean per trained token (per fresh token for the mismatch); None over no tokens."""
        count = self.mismatch_tokens if name == "mismatch_kl" else self.tokens
        return self.sums[name] / count if count and name in self.sums else None
