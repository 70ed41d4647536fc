"""What no run of this length in this world can beat, with the numbers that the run itself drew.

The steady-state form is `policy.capacity.upper_bound_steps_per_s`; a run of n steps starts with version 0
in place everywhere, so its first S + 1 steps need no broadcast, and short runs may draw short rollouts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from echo2.sim.world import World


def upper_bound(world: World) -> tuple[float, str]:
    """(steps/s, term): learner, rollouts or freshness.

    With n steps of mean T_train: n / (g + n T_train), the tokens trained over what all workers can decode,
    and n / (g + T_train + floor((n - 1) / (S + 1)) * (T_bcast + g + T_train)), where T_bcast is the fastest
    worker's with idle links and g the shortest rollout on the fastest worker alone.
    """
    inputs, metrics, settings = world.inputs, world.metrics, world.inputs.settings
    steps = len(metrics.train_s)
    if not steps:
        return 0.0, "learner"
    train_s = sum(metrics.train_s) / steps
    offers = [worker.offer for worker in inputs.workers]
    broadcast_s = min(settings.links.solo_s(offer, settings.snapshot_bytes) for offer in offers)
    shortest_s = float(inputs.lengths.quantile(0.0)) * min(
        worker.decode.step_s(1, inputs.prompt_tokens) for worker in inputs.workers
    )
    decoded = sum(offer.rollouts_per_s for offer in offers) * inputs.lengths.mean
    rounds = (steps - 1) // (settings.staleness_bound + 1)
    least_s = {
        "learner": shortest_s + steps * train_s,
        "rollouts": metrics.trained_tokens / decoded,
        "freshness": shortest_s + train_s + rounds * (broadcast_s + shortest_s + train_s),
    }
    term = max(least_s, key=lambda name: least_s[name])
    return steps / least_s[term], term
