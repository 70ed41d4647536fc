"""What the plan knows of links that vary and workers that come and go."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from test_plan_rules import EXPERIMENTS
from test_planner_offers import pool
from test_traces_own_files import LINK

from echo2 import config, scenario
from echo2.policy import wire
from echo2.policy.facts import WorkerOffer, WorkerOffered
from echo2.policy.links import LinkTable
from echo2.policy.planner import settings_for, settle_run
from echo2.policy.supply import kept_share, mean_up_share, supply_cv
from echo2.policy.worth import Demand, effect, join_s
from echo2.scenario.variation import link_variation
from echo2.testing import one_site

DEMAND = Demand(4, 1, 32, 60.0, 1e9)
LINKS: LinkTable = one_site(10e9)


def offer(**changes: object) -> WorkerOffer:
    """A worker on 1 Gbit/s that takes 100 s for a group."""
    plain = WorkerOffer("w", "p", "GPU", "site", 1.0, 2.0, 8, 100.0, 120.0, 1e9, 1e9, startup_s=120.0)
    return replace(plain, **changes)  # type: ignore[arg-type]


def test_the_statistics_of_a_trace_are_those_of_its_time(tmp_path: Path) -> None:
    """40 of 100 s at half the rate or none: mean, cv, time per byte, share and length of the outage."""
    path = tmp_path / "line.csv"
    path.write_text(LINK)
    link = link_variation(str(path), False)
    assert link.mean == pytest.approx(0.8)
    assert link.cv == pytest.approx(np.sqrt(0.7 * 0.2**2 + 0.2 * 0.3**2 + 0.1 * 0.8**2) / 0.8)
    assert link.slowness == pytest.approx((70 + 20 / 0.5) / 90)
    assert link.out_share == pytest.approx(0.1)
    assert link.out_s == pytest.approx(10.0)


def test_an_outage_across_the_end_of_a_trace_is_one(tmp_path: Path) -> None:
    """The trace repeats: 10 s out at its end and 20 s at its begin are half a minute at a stretch."""
    path = tmp_path / "line.csv"
    rows = ("0,,,,0", "20,100,10,20,1", "90,,,,0", "100,,,,0")
    path.write_text("trace_id,t_s,down_mbps,up_mbps,rtt_ms,ok\n" + "".join(f"a,{row}\n" for row in rows))
    link = link_variation(str(path), False)
    assert (link.out_share, link.out_s) == (pytest.approx(0.3), pytest.approx(30.0))


def test_the_scenario_tells_each_worker_what_its_link_does() -> None:
    """Offers of pools with a shape carry its variation, others carry none."""
    loaded = config.load(EXPERIMENTS / "qwen3-8b-mixed-spot.toml")
    built = scenario.build(loaded.config, loaded.base_dir)
    for worker in built.workers:
        varies = worker.offer.link_out_share > 0 and worker.offer.link_slowness != 1.0
        assert varies == (worker.shape is not None)


def test_an_offer_of_an_older_log_is_one_whose_link_does_not_vary() -> None:
    """A recorded offer without the variation reads as before, and its effect is what it was."""
    line = json.loads(wire.dumps(WorkerOffered(0.0, offer(preemptions_per_h=0.5))))
    for name in ("link_slowness", "link_out_share", "link_out_s"):
        del line["offer"][name]
    old = wire.from_json(line)
    assert isinstance(old, WorkerOffered) and old.offer == offer(preemptions_per_h=0.5)
    worth = effect(old.offer, DEMAND, 30.0)
    assert worth.up_share == 1.0 / (1.0 + 0.5 * (120.0 + 30.0) / 3600.0)


@pytest.mark.parametrize(("out_s", "lost"), [(1.0, 0.0), (1e6, 0.1)])
def test_short_outages_cost_nothing_and_long_ones_their_time(out_s: float, lost: float) -> None:
    """What S leaves to work without new weights covers an outage of a second, not one of days."""
    worth = effect(offer(link_out_share=0.1, link_out_s=out_s), DEMAND, 30.0)
    assert worth.up_share == pytest.approx(1.0 - lost, abs=1e-3)


def test_a_slower_link_delays_its_snapshots() -> None:
    """A transfer that takes twice as long on average is a broadcast that takes twice as long."""
    tight = replace(DEMAND, publish_period=4)
    assert effect(offer(link_slowness=2.0), tight, 60.0) == effect(offer(), tight, 120.0)


def test_a_replaced_worker_first_fetches_the_full_snapshot() -> None:
    """Behind deltas of 1 GB a full one of 50 GB takes 400 s on 1 Gbit/s, paid at each loss."""
    lost = offer(preemptions_per_h=0.5)
    seconds = join_s(lost, LINKS, replace(DEMAND, join_bytes=50e9))
    assert seconds == pytest.approx(400.0, rel=1e-3)
    assert join_s(lost, LINKS, DEMAND) == 0.0
    assert effect(lost, DEMAND, 8.0, seconds).up_share == pytest.approx(1 / (1 + 0.5 * 520 / 3600), rel=1e-3)


@pytest.mark.parametrize(("preempted", "bytes_told"), [(0.0, 0.0), (2.0, 1e9)])
def test_the_run_is_told_what_joiners_fetch(preempted: float, bytes_told: float) -> None:
    """The full snapshot where workers are lost and deltas are sent; live, the one there is."""
    asked = pool(4, (4, 3000.0, 1.0, 1e9, preempted), snapshot_bytes=2e7, full_snapshot_bytes=1e9)
    told = settings_for(asked, settle_run(asked)[0])
    assert told.join_bytes == bytes_told
    live = replace(told, full_snapshot_bytes=5e8, snapshot_bytes=5e8)
    assert live.demand(10.0).join_bytes == min(bytes_told, 5e8)


@pytest.mark.parametrize(("supply", "cv"), [(0.7, 0.1), (1.0, 0.2), (1.2, 0.2), (1.5, 0.15), (3.0, 0.1)])
def test_the_kept_share_is_that_of_sampled_supplies(supply: float, cv: float) -> None:
    """The closed form of E[min(1, X)] agrees with a million draws."""
    drawn = np.random.default_rng(0).normal(supply, supply * cv, 1_000_000)
    assert kept_share(supply, cv) == pytest.approx(np.minimum(1.0, drawn).mean() / min(1.0, supply), abs=2e-3)


def test_supply_varies_as_an_on_off_process_averaged_over_the_slack() -> None:
    """The formula agrees with sampled workers that are lost and come back at random."""
    lost = offer(preemptions_per_h=3.0)
    offers = [replace(lost, worker_id=f"w{i}") for i in range(6)]
    effects = {o.worker_id: effect(o, DEMAND, 8.0) for o in offers}
    cv = supply_cv(offers, effects, dict.fromkeys(effects, 8.0), LINKS, DEMAND)
    rng, window_s, down_s = np.random.default_rng(1), (5 - 1) * 60.0 - 100.0 - 8.0, 128.0
    means = []
    for _ in range(6):
        spans = np.empty(80_000)
        spans[::2] = rng.exponential(1200.0, 40_000)
        spans[1::2] = rng.exponential(down_s, 40_000)
        ends = np.cumsum(spans)
        grid = np.arange(0.0, ends[-1] * 0.9, window_s / 8)
        up = np.searchsorted(ends, grid) % 2 == 0
        means.append(up[: len(up) // 8 * 8].reshape(-1, 8).mean(axis=1))
    count = min(map(len, means))
    total = sum(mean[:count] for mean in means)
    assert cv == pytest.approx(total.std() / total.mean(), rel=0.03)


def test_nothing_varies_where_nothing_is_lost() -> None:
    """Constant links and no preemption: no variation, all of the time up, nothing taken off."""
    offers = [replace(offer(), worker_id=f"w{i}") for i in range(3)]
    effects = {o.worker_id: effect(o, DEMAND, 8.0) for o in offers}
    assert supply_cv(offers, effects, dict.fromkeys(effects, 8.0), LINKS, DEMAND) == 0.0
    assert mean_up_share(offers, LINKS, DEMAND) == 1.0
    assert kept_share(0.9, 0.0) == 1.0


def test_a_plan_for_workers_that_vanish_pays_for_more_of_them() -> None:
    """The same pool with frequent losses gets a larger margin and more workers."""
    steady, losing = (
        settle_run(
            pool(
                6, (40, 3000.0, 1.0, 1e9, lost), snapshot_bytes=2e7, full_snapshot_bytes=8e9,
                rollouts_per_step=128,
            )
        )[0]
        for lost in (0.0, 2.0)
    )  # fmt: skip
    assert losing.margin > steady.margin
    assert len(losing.chosen) > len(steady.chosen)
