"""What varies over the simulated time: link shapes, network token buckets, availability.

Every series is a measured one, begun at an offset drawn from the seed and repeated when it ends. No link
between two clouds has a long series of its own: level and shape come from different measurements, and the
notes say so.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import lru_cache

from echo2 import traces
from echo2.sim.inputs import Availability, LinkShape, NicBucket
from echo2.traces import AvailabilityTrace


def offset_s(seed: int, name: str, period_s: float) -> float:
    """Where in a series of `period_s` seconds a run begins; the same on every machine."""
    return random.Random(f"{seed}/{name}").random() * period_s


@lru_cache(maxsize=32)
def steps(trace: str, upward: bool) -> tuple[tuple[float, ...], tuple[float, ...], float]:
    """(starts, factors, period) of a shape as a step function without repeated values.

    `upward` prefers the upload side. An unknown value holds the one before it; an outage is 0.
    """
    shape = traces.shape(trace)
    sides = (shape.up, shape.down) if upward else (shape.down, shape.up)
    side = next((s for s in sides if any(v > 0 for v in s.tolist())), sides[0])
    first = float(shape.t_s[0])
    starts: list[float] = []
    factors: list[float] = []
    last = 1.0
    for at, value, ok in zip(shape.t_s.tolist()[:-1], side.tolist(), shape.ok.tolist()):
        last = 0.0 if not ok else (value if value == value else last or 1.0)
        if not factors or last != factors[-1]:
            starts.append(at - first)
            factors.append(last)
    return tuple(starts or [0.0]), tuple(factors or [1.0]), max(shape.duration_s, 1.0)


def link_shape(trace: str, seed: int, name: str, upward: bool = False) -> LinkShape:
    """The shape of a trace, begun where the seed says for the machine `name`."""
    starts, factors, period = steps(trace, upward)
    return LinkShape(starts, factors, period, offset_s(seed, name, period), trace)


def nic_bucket(instance: str) -> NicBucket:
    """The token bucket of an EC2 instance as the simulator wants it."""
    bucket = traces.nic_bucket(instance)
    return NicBucket(bucket.burst_bps, bucket.sustained_bps, bucket.bucket_bits)


def slots(trace: AvailabilityTrace, count: int, seed: int, pool: str) -> Sequence[Availability]:
    """Availability of `count` workers: worker j replays slot j.

    All slots of a pool begin at the same place of the trace, so what fell together falls together. Workers
    beyond the trace's slots get them again, begun elsewhere.
    """
    made = []
    for j in range(count):
        lap, slot = divmod(j, trace.peak)
        begin = offset_s(seed, f"{pool}/{lap}", trace.duration_s)
        made.append(Availability(trace.nodes[slot], trace.duration_s, begin, trace.trace_id))
    return made


def repeats(trace: str, period_s: float, run_s: float) -> str:
    """What to say of a trace that is shorter than the run (about `run_s`); empty when it is long enough."""
    if period_s >= run_s:
        return ""
    return (
        f"trace {trace} of {period_s / 3600:.1f} h is shorter than the run (about {run_s / 3600:.1f} h): "
        f"it repeats after {period_s / 3600:.1f} h"
    )
