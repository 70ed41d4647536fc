"""What no run of this length in this world can beat, with the numbers that the run itself drew.

The steady-state form is `policy.capacity.upper_bound_steps_per_s`; a run of n steps starts with version 0
in place everywhere, so its first S + 1 steps need no broadcast, and short runs may draw short rollouts.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from echo2.policy.generation import DecodeModel
from echo2.sim.inputs import LinkShape, WorldInputs

if TYPE_CHECKING:
    from echo2.sim.world import World


def upper_bound(world: World) -> tuple[float, str]:
    """(steps/s, term): learner, rollouts or freshness.

    With n steps of mean T_train: n / (g + n T_train), the trained tokens over what all workers can decode,
    and n / (g + T_train + floor((n - 1) / (S + 1)) * (T_bcast + g + T_train)), where T_bcast is the soonest
    that links at their best bring a snapshot to any worker and g the shortest rollout on the fastest worker
    alone.
    """
    inputs, metrics = world.inputs, world.metrics
    steps = len(metrics.train_s)
    if not steps:
        return 0.0, "learner"
    train_s = sum(metrics.train_s) / steps
    shortest_s = float(inputs.lengths.quantile(0.0)) * min(
        worker.decode.step_s(1, inputs.prompt_tokens) for worker in inputs.workers
    )
    rounds = (steps - 1) // (inputs.settings.staleness_bound + 1)
    least_s = {
        "learner": shortest_s + steps * train_s,
        "rollouts": _least_decode_s(inputs, metrics.trained_tokens, metrics.trained_squares),
        "freshness": shortest_s + train_s + rounds * (_soonest_s(inputs) + shortest_s + train_s),
    }
    term = max(least_s, key=lambda name: least_s[name])
    return steps / least_s[term], term


def _least_decode_s(inputs: WorldInputs, tokens: float, squares: float) -> float:
    """Seconds in which all workers together can decode the trained rollouts at best. Ours.

    A token at context c takes worker w at least beta_w + sigma_w c, each at its best batch size. The mean
    context over tokens is prompt + sum L^2 / (2 sum L); the workers' times, weighted by their rates at it,
    add up to no less than the least weighted cost of every token. `squares`: sum L^2.
    """
    context = inputs.prompt_tokens + squares / tokens / 2.0
    costs = [_token_cost_s(worker.decode, worker.offer.slots) for worker in inputs.workers]
    rates = [1.0 / (beta + sigma * context) for beta, sigma in costs]
    least_beta = min(rate * beta for rate, (beta, _) in zip(rates, costs))
    least_sigma = min(rate * sigma for rate, (_, sigma) in zip(rates, costs))
    return tokens * (least_beta + least_sigma * context) / sum(rates)


@cache
def _token_cost_s(decode: DecodeModel, slots: int) -> tuple[float, float]:
    """(beta, sigma): least seconds of a token, and of a token and token of context, over batch sizes."""
    each = [(n, *decode.coefficients(n)) for n in range(1, slots + 1)]
    return min(base / n for n, base, _ in each), min(slope / n for n, _, slope in each)


def _soonest_s(inputs: WorldInputs) -> float:
    """The soonest a snapshot can reach any worker, every link at the best of its trace."""
    settings = inputs.settings
    offers = [
        replace(worker.offer, downlink_bps=worker.offer.downlink_bps * _best(worker.shape))
        for worker in inputs.workers
    ]
    uplink_bps = settings.links.learner_uplink_bps * _best(inputs.learner_shape)
    links = replace(settings.links, learner_uplink_bps=uplink_bps)
    return links.soonest_s(offers, settings.snapshot_bytes)


def _best(shape: LinkShape | None) -> float:
    return max(shape.factor) if shape else 1.0
