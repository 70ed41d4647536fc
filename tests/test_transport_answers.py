"""The answer times that /metrics tells."""

from __future__ import annotations

import asyncio
import re
import time

from hypothesis import given
from hypothesis import strategies as st

from echo2.runtime.transport.answers import BOUNDS_S, Answers, Histogram


@given(st.lists(st.floats(0, 20), min_size=1, max_size=50), st.sampled_from([0.5, 0.9, 0.99, 1.0]))
def test_a_share_is_within_the_bound_it_names(times: list[float], share: float) -> None:
    """At least the share took at most the bound named for it, and fewer at most the one below."""
    histogram = Histogram()
    for seconds in times:
        histogram.add(seconds)
    bound = histogram.within(share)
    assert sum(seconds <= bound for seconds in times) >= share * len(times)
    below = max([0.0, *(b for b in BOUNDS_S if b < bound)])
    assert below == 0 or sum(seconds <= below for seconds in times) < share * len(times)


@given(st.lists(st.floats(0, 20), max_size=50))
def test_the_text_is_a_cumulative_histogram(times: list[float]) -> None:
    """Each bucket counts all that took at most its bound, the last one all there were."""
    answers = Answers()
    for seconds in times:
        answers.add("rollouts", seconds)
    lines = list(answers.lines())
    found = dict(
        re.findall(r'echo2_answer_seconds_bucket\{route="rollouts",le="([^"]+)"\} (\d+)', "\n".join(lines))
    )
    if times:
        assert {le: int(n) for le, n in found.items()} == {
            **{str(b): sum(seconds <= b for seconds in times) for b in BOUNDS_S},
            "+Inf": len(times),
        }
        assert f'echo2_answer_seconds_count{{route="rollouts"}} {len(times)}' in lines


def test_a_loop_that_is_held_up_shows() -> None:
    """A call that blocks the event loop for 0.3 s is told as lag."""

    async def main() -> Answers:
        answers = Answers()
        watch = asyncio.create_task(answers.watch())
        await asyncio.sleep(0.01)
        time.sleep(0.3)
        await asyncio.sleep(0.01)
        watch.cancel()
        return answers

    assert asyncio.run(main()).lag.within(1.0) >= 0.25
