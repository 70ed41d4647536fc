"""The control plane of validation: orders, uploads and answers, and what a log shows of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st
from validate_kit import table, truth_of

from echo2.config import parse
from echo2.policy import facts as f
from echo2.policy.planner import plan_run, settings_for
from echo2.scenario import build
from echo2.validate.calibrate import _like
from echo2.validate.engine_fit import EngineFit
from echo2.validate.first_part import FirstPart
from echo2.validate.mail import PRIOR_PAIRS, answer_of, apart_of
from echo2.validate.plane import Downlink, Ledger, LinkQueue, Uplink, delays_of
from echo2.validate.world import CalibratedWorld


def test_the_ledger_writes_neighbours_of_a_kind_together() -> None:
    """What gathers while a transaction is written goes into the next, kind by kind, in order."""
    env = simpy.Environment()
    ledger = Ledger(env, 1.0, np.random.default_rng(0))
    done: list[tuple[str, float]] = []

    def put(kind: str) -> None:
        ledger.write(kind, lambda: done.append((kind, env.now)))

    put("a")
    env.timeout(0.01).callbacks.append(lambda _: [put(kind) for kind in "bbcb"])  # type: ignore[union-attr]
    env.run()
    assert [kind for kind, _ in done] == ["a", "b", "b", "c", "b"]
    times = [at for _, at in done]
    assert times[1] == times[2] < times[3] < times[4]


def test_a_worker_sends_one_upload_at_a_time() -> None:
    """What ends while an upload is unanswered waits for the answer, then goes together."""
    env = simpy.Environment()
    told: list[tuple[str, float]] = []
    ledger = Ledger(env, 1e-9, np.random.default_rng(0))
    uplink = Uplink(env, ledger, 1.0, 0.0, lambda: 0.0, lambda name: told.append((name, env.now)))
    uplink.put(1.0, "first")
    for at, name in ((0.1, "second"), (0.2, "third")):
        env.timeout(at, name).callbacks.append(lambda e: uplink.put(1.0, e.value))  # type: ignore[union-attr]
    env.run()
    assert [name for name, _ in told] == ["first", "second", "third"]
    assert [at for _, at in told] == pytest.approx([1.001, 3.001, 3.001])


@given(st.dictionaries(st.sampled_from("abc"), st.floats(0.001, 2.0), min_size=1))
def test_the_parts_of_a_delay_add_up(round_s: dict[str, float]) -> None:
    """Three writes and two hops are the whole delay of each worker, and none is negative."""
    parts = delays_of(round_s)
    for name, hop_s in parts.hop_s.items():
        assert hop_s >= 0
        assert 3 * parts.write_s + 2 * hop_s == pytest.approx(round_s[name])


def orders_of(apart: float, wait_s: float = 0.0) -> list[tuple[str, float]]:
    """When three orders arrive over hops of 1 s: two at once, the third while the answer travels."""
    env = simpy.Environment()
    got: list[tuple[str, float]] = []
    link = Downlink(env, 1.0, lambda: wait_s, apart, np.random.default_rng(0))

    def put(name: str) -> None:
        link.put(lambda: got.append((name, env.now)))

    put("a")
    put("b")
    env.timeout(0.5).callbacks.append(lambda _: put("c"))  # type: ignore[union-attr]
    env.run()
    return got


def test_orders_of_one_moment_begin_together() -> None:
    """They come in one answer; what is ordered meanwhile waits until the worker has asked again."""
    (a, first), (b, second), (c, third) = orders_of(0.0)
    assert (a, b, c) == ("a", "b", "c")
    assert first == second == pytest.approx(1.0, abs=0.02)
    assert third == pytest.approx(3.0, abs=0.04)


def test_a_busy_worker_begins_orders_apart() -> None:
    """With a share of 1 the orders of one answer begin so far apart that they do not end in one upload."""
    (_, first), (_, second), _ = orders_of(1.0)
    assert second - first == pytest.approx(0.002)


def test_an_answer_stands_behind_a_snapshot() -> None:
    """While a snapshot comes over a shaped link an answer waits for up to four pieces of it."""
    env = simpy.Environment()
    queue = LinkQueue(env, 8 * 65536.0, np.random.default_rng(0))  # a piece a second
    assert queue.wait_s() == 0.0
    queue.begins(3, 10 * 65536.0)
    assert 3.0 < queue.wait_s() <= 4.0
    env.run(until=9.5)
    assert queue.wait_s() <= 1.0
    queue.ends(3)
    assert queue.wait_s() == 0.0
    open_link = LinkQueue(env, float("inf"), np.random.default_rng(0))
    open_link.begins(3, 1e9)
    assert open_link.wait_s() == 0.0


def counted_at(times: list[float]) -> FirstPart:
    """One worker whose rollouts were counted at these times."""
    seen = FirstPart()
    for k, at in enumerate(times):
        seen.ordered[k] = ("w", 0.0, 1)
        seen.ends[k] = [(at, 5)]
    return seen


def test_the_time_of_an_answer_shows_where_uploads_wait_for_it() -> None:
    """Gaps that heap up give the time of an answer; gaps of any length give none."""
    rng = np.random.default_rng(0)
    heaped = np.where(rng.random(90) < 0.6, rng.normal(0.045, 0.002, 90), rng.uniform(0.1, 0.6, 90))
    assert answer_of(counted_at(np.cumsum(heaped).tolist())) == pytest.approx(0.045, abs=0.003)
    spread = rng.uniform(0.01, 0.15, 90)
    assert answer_of(counted_at(np.cumsum(spread).tolist())) == 0.0
    assert answer_of(counted_at([1.0, 1.045, 1.09])) == 0.0


def test_groups_that_part_are_counted() -> None:
    """Of equally long groups ordered at one moment the share is counted that did not end at one."""
    seen = FirstPart()
    for k in range(40):
        seen.ordered[k] = ("w", float(k // 2), 1)
        late = 0.05 if k % 8 == 1 else 0.0
        seen.ends[k] = [(k // 2 + 0.3 + late, 5)]
    assert apart_of(seen, seen.ends) == pytest.approx((1 + 5) / (PRIOR_PAIRS + 20))


def test_a_worker_that_was_hardly_used_keeps_its_own_rate() -> None:
    """Its engine is like its pool's; in another pool it is as much slower as the offers say, or as known."""
    config = parse(table(), "x")
    offer = build(config).problem.offers[0]
    offers = {
        name: replace(offer, worker_id=name, pool=pool, rollouts_per_s=rate)
        for name, pool, rate in (("a", "p", 20.0), ("b", "p", 20.0), ("c", "q", 5.0))
    }
    fits = {"a": EngineFit(0.01, 0.001, 0.02, 0.03, 0.0)}
    assert _like("b", offers, fits, {}) == fits["a"]
    slow = _like("c", offers, fits, {})
    assert (slow.base_s, slow.per_sequence_s) == pytest.approx((0.04, 0.004))
    known = _like("c", offers, fits, {"q": 100.0})
    assert (known.base_s, known.per_sequence_s, known.order_s) == (0.0, 0.01, 0.02)


def test_a_swap_is_over_when_it_is_told() -> None:
    """The pause of a swap is the end of the time from publication to live, not something after it."""
    built = build(parse(table(), "x"))
    settings = settings_for(built.problem, plan_run(built.problem))
    inputs = replace(built.world(settings), settings=settings)
    ends = []
    for pause_s in (0.0, 0.07):
        truth = truth_of([offer.worker_id for offer in built.problem.offers], settings.total_steps)
        models = {name: replace(model, pause_s=pause_s) for name, model in truth.workers.items()}
        world = CalibratedWorld(inputs, replace(truth, workers=models), 3, settings.total_steps)
        assert world.run(3600.0)
        live = [fact.t_s for fact, _ in world.entries if isinstance(fact, f.SnapshotLive)]
        ends.append(live[0])
    assert ends[0] == pytest.approx(ends[1])
