"""Group-relative advantages: what each rollout's reward says beside the others of its prompt.

Called by the learner before batching. Pure Python: the numbers are few and must be exact.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from echo2.errors import UserError
from echo2.runtime.data.rollout import Rollout

Normalisation = Literal["std", "none"]


@dataclass(frozen=True, slots=True)
class GroupAdvantages:
    """Advantages of the rollouts worth training on, and the groups they were chosen from.

    `values` maps rollout id to advantage and lacks the rollouts of `zero_variance` groups (group ids):
    their advantages are all 0, so they would only dilute the mean. `groups` counts all groups given.
    """

    values: dict[str, float]
    groups: int
    zero_variance: tuple[int, ...]

    @property
    def trained_groups(self) -> int:
        """Groups that carry a gradient."""
        return self.groups - len(self.zero_variance)

    @property
    def std(self) -> float | None:
        """Population standard deviation of the advantages trained on; None when there are none."""
        return statistics.pstdev(self.values.values()) if self.values else None


def group_advantages(
    rollouts: Sequence[Rollout], normalisation: Normalisation = "std", epsilon: float = 1e-4
) -> GroupAdvantages:
    """Advantage of each rollout within its group.

    "std":  A_i = (r_i - mean(r)) / (std(r) + epsilon)     GRPO, arXiv 2402.03300, section 4.1.2
    "none": A_i = r_i - mean(r)                            Dr. GRPO, arXiv 2503.20783, section 3.2

    The paper leaves open which std; it is the sample one (divisor G - 1) here, as in TRL and verl, and
    so is the default epsilon of TRL. A group whose rewards are all equal (a group of one too) is left
    out and counted. Raises UserError for a reward that is not finite and for a rollout given twice.
    """
    groups: dict[int, list[Rollout]] = {}
    seen: set[str] = set()
    for rollout in rollouts:
        _check(rollout, seen)
        groups.setdefault(rollout.group_id, []).append(rollout)
    values: dict[str, float] = {}
    zero_variance = []
    for group_id, members in groups.items():
        rewards = [member.reward for member in members]
        if min(rewards) == max(rewards):
            zero_variance.append(group_id)
            continue
        mean = statistics.fmean(rewards)
        scale = statistics.stdev(rewards) + epsilon if normalisation == "std" else 1.0
        values.update((m.rollout_id, (r - mean) / scale) for m, r in zip(members, rewards))
    return GroupAdvantages(values, len(groups), tuple(zero_variance))


def _check(rollout: Rollout, seen: set[str]) -> None:
    if not math.isfinite(rollout.reward):
        raise UserError(
            f"rollout {rollout.rollout_id} has reward {rollout.reward}; rewards must be finite, "
            "fix the task's verifier or drop the rollout's group"
        )
    if rollout.rollout_id in seen:
        raise UserError(
            f"rollout {rollout.rollout_id} is in the batch twice; each rollout is trained once, "
            "check what filled the batch"
        )
    seen.add(rollout.rollout_id)
