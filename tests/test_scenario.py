"""From configuration and traces to a problem and a world: sites, prices, rates, what varies."""

from __future__ import annotations

import datetime
import itertools
import math
from pathlib import Path
from typing import Any

import pytest

from echo2 import traces
from echo2.config import load, parse
from echo2.errors import UserError
from echo2.policy.links import LinkTable
from echo2.policy.planner import plan_run, settings_for
from echo2.scenario import Scenario, build
from echo2.scenario.varying import offset_s, steps
from echo2.scenario.workers import spread

EXPERIMENTS = sorted((Path(__file__).parent.parent / "experiments").glob("*.toml"))
AWS = {"name": "inside", "gpu": "A100", "count": 2, "provider": "aws", "region": "aws:eu-west-1",
       "price_usd_per_h": 1.5}  # fmt: skip
OUTSIDE = {"name": "outside", "gpu": "H100", "count": 3, "provider": "vast-ai", "region": "azure:eastus",
           "uplink_mbps": 800, "downlink_mbps": 900}  # fmt: skip
HOME = {"name": "home", "gpu": "RTX 5090", "count": 4, "provider": "salad", "region": "aws:us-west-2",
        "access": "US"}  # fmt: skip
TABLE: dict[str, Any] = {
    "seed": 3,
    "run": {"steps": 200},
    "learner": {"provider": "aws", "region": "aws:us-east-1", "price_usd_per_gpu_h": 4.0},
    "pool": [AWS, OUTSIDE, HOME],
}


def scenario(*overrides: str, base: Path = Path()) -> Scenario:
    """The scenario of the table above with overrides."""
    return build(parse(TABLE, "run.toml", overrides), base, "run.toml")


def refusal(*overrides: str) -> str:
    """The line with which a scenario is refused."""
    with pytest.raises(UserError) as caught:
        scenario(*overrides)
    message = str(caught.value)
    assert "\n" not in message and message.startswith("run.toml"), message
    return message


def edge(table: LinkTable, a: str, b: str) -> tuple[float, float, float]:
    """(capacity, round trip, egress price) from one site to another."""
    i, j = table.index(a), table.index(b)
    return table.capacity_bps[i][j], table.rtt_s[i][j], table.egress_usd_per_gb[i][j]


def test_sites_are_named_by_region_and_pool() -> None:
    """Machines of a cloud stand in its region, all others at a site of their own beside one."""
    links = scenario().problem.links
    assert links.sites == ("aws:us-east-1", "aws:eu-west-1", "azure:eastus+outside", "aws:us-west-2+home")
    assert links.learner_site == "aws:us-east-1"


def test_links_between_clouds_are_the_matrix() -> None:
    """A pair of cloud sites has the measured capacity, round trip and egress price."""
    matrix = traces.regions()
    i, j = matrix.index("aws:us-east-1"), matrix.index("aws:eu-west-1")
    found = edge(scenario().problem.links, "aws:us-east-1", "aws:eu-west-1")
    assert found == (matrix.capacity_bps[i, j], matrix.rtt_s[i, j], matrix.egress_usd_per_gb[i, j])


def test_links_beside_the_clouds() -> None:
    """Outside the clouds pairs have no cap, the cloud's internet price inwards and no price outwards."""
    links = scenario().problem.links
    capacity, rtt, usd = edge(links, "aws:us-east-1", "azure:eastus+outside")
    matrix = traces.regions()
    assert capacity == 1e12 and usd == traces.internet_egress_usd_per_gb("aws:us-east-1") > 0
    assert rtt == matrix.rtt_s[matrix.index("aws:us-east-1"), matrix.index("azure:eastus")]
    assert edge(links, "azure:eastus+outside", "aws:us-east-1")[2] == 0.0


def test_home_lines_add_their_ping() -> None:
    """Between two home lines both pings count, between one and a cloud one does."""
    links, ping = scenario().problem.links, traces.access("US").rtt_s
    matrix = traces.regions()
    west, east = matrix.index("aws:us-west-2"), matrix.index("aws:us-east-1")
    assert edge(links, "aws:us-west-2+home", "aws:us-east-1")[1] == pytest.approx(
        matrix.rtt_s[west, east] + ping
    )
    assert edge(links, "aws:us-west-2+home", "aws:us-west-2+home")[1] > 2 * ping


def test_egress_override_applies_to_all_that_leaves() -> None:
    """An egress price of the learner's own replaces all its outgoing prices, and nobody else's."""
    links = scenario("learner.egress_usd_per_gb=0.01").problem.links
    home = links.index(links.learner_site)
    assert set(links.egress_usd_per_gb[home]) == {0.01}
    assert edge(links, "aws:eu-west-1", "azure:eastus+outside")[2] == 0.09


def test_default_rates_are_the_regions_card() -> None:
    """A cloud machine without rates gets its region's network card."""
    offer = scenario().problem.offers[0]
    matrix = traces.regions()
    at = matrix.index("aws:eu-west-1")
    assert offer.uplink_bps == offer.downlink_bps == matrix.capacity_bps[at, at]


def test_home_rates_spread_over_the_quartiles() -> None:
    """Workers on home lines lie between the first and third quartile, in order, around the median."""
    level = traces.access("US")
    downs = [offer.downlink_bps for offer in scenario().problem.offers if offer.pool == "home"]
    assert downs == sorted(downs) and level.down_bps[0] < downs[0] < level.down_bps[1] < downs[-1]
    assert downs[-1] < level.down_bps[2]
    assert spread((1.0, 4.0, 16.0), 0.25) == pytest.approx(2.0)
    assert spread((1.0, 4.0, 16.0), 1.0) == pytest.approx(16.0)


def test_price_of_a_worker_is_that_of_its_cards() -> None:
    """A model that needs two cards costs two cards; a given price is per worker."""
    both = scenario("model.name=Qwen3-32B", "pool.home.gpu=H100", "pool.home.provider=vast-ai")
    quote = traces.price("H100", "spot", "vast-ai").usd_per_gpu_hour
    prices = {offer.pool: offer.price_usd_per_h for offer in both.problem.offers}
    assert prices == {"inside": 1.5, "outside": 2 * quote, "home": 2 * quote}
    assert {o.gpu for o in both.problem.offers} == {"2x A100", "2x H100"}


def test_prices_carry_date_source_and_age() -> None:
    """Every price says since when and from whom; one given by the user has no age."""
    prices = {price.what: price for price in scenario().prices}
    quoted = prices["pool outside"]
    assert quoted.date == "2026-05-24" and "vast-ai" in quoted.source and quoted.urls
    assert quoted.age_days(datetime.date(2026, 6, 3)) == 10
    assert prices["learner"].age_days(datetime.date(2026, 6, 3)) is None


def test_step_time_from_the_profile() -> None:
    """T_train is the batch's tokens, prompts included, over the learner profile's tokens/s."""
    made = scenario()
    profile = traces.learner_tokens_per_s("H200", 4, "Qwen3-8B")
    tokens = 512 * (512 + made.problem.lengths.mean)
    assert made.problem.train_s == pytest.approx(tokens / profile.tokens_per_s)
    assert any(profile.basis in note and "learner" in note for note in made.notes)


def test_notes_tell_estimates_and_foreign_shapes() -> None:
    """Notes name the basis of profiles, shapes measured elsewhere, and traces shorter than the run."""
    notes = "\n".join(
        scenario(
            "pool.home.link_shape=home-brisbane-2017-shape", "pool.outside.availability=bamboo-v100"
        ).notes
    )
    assert "estimate: aiconfigurator" in notes
    assert "levels measured, their shape measured elsewhere (home-brisbane-2017-shape)" in notes
    assert "scaled" in notes
    short = "\n".join(scenario("pool.outside.availability=bamboo-p3", "run.steps=2000").notes)
    assert "trace bamboo-p3 of 11.4 h is shorter than the run" in short and "repeats after 11.4 h" in short
    long = "\n".join(scenario("pool.outside.availability=bamboo-p3", "run.steps=10").notes)
    assert "shorter" not in long


def test_availability_replays_slots_of_one_zone() -> None:
    """Worker j replays slot j; all slots begin together, and those beyond the trace's begin elsewhere."""
    made = scenario("pool.outside.availability=bamboo-p3", "pool.outside.count=40")
    trace = traces.availability("bamboo-p3")
    workers = [w for w in made.workers if w.offer.pool == "outside"]
    assert [w.availability.up for w in workers[:32]] == list(trace.nodes)  # type: ignore[union-attr]
    assert workers[32].availability.up == trace.nodes[0]  # type: ignore[union-attr]
    offsets = [w.availability.offset_s for w in workers]  # type: ignore[union-attr]
    assert len(set(offsets[:32])) == 1 and set(offsets[32:]).isdisjoint(offsets[:32])
    losses = {w.offer.preemptions_per_h for w in workers}
    assert losses == {trace.preemptions_per_node_hour}


def test_offsets_come_from_the_seed_alone() -> None:
    """The same seed begins a trace at the same place, another one elsewhere, always inside the trace."""
    assert offset_s(1, "a", 100.0) == offset_s(1, "a", 100.0)
    places = {offset_s(seed, "a", 100.0) for seed in range(20)}
    assert len(places) == 20 and all(0 <= place < 100 for place in places)


def test_shape_is_a_step_function_with_outages() -> None:
    """A shape begins at 0, never repeats a value, is finite, and keeps outages as 0."""
    starts, factors, period = steps("home-brisbane-2017-shape", False)
    assert starts[0] == 0 and list(starts) == sorted(set(starts)) and starts[-1] < period
    assert all(math.isfinite(f) and f >= 0 for f in factors) and 0.0 in factors
    assert all(a != b for a, b in itertools.pairwise(factors))


def test_own_trace_by_path_beside_the_configuration(tmp_path: Path) -> None:
    """A user's own file is found from the configuration's folder."""
    (tmp_path / "mine.csv").write_text(
        "trace_id,t_s,down_mbps,up_mbps,rtt_ms,ok\nx,0,100,50,10,1\nx,600,50,25,10,1\nx,1200,50,25,10,1\n"
    )
    made = scenario("pool.outside.link_shape=mine.csv", base=tmp_path)
    shape = next(w.shape for w in made.workers if w.offer.pool == "outside")
    assert shape is not None and len(shape.factor) == 2 and shape.factor[0] == 2 * shape.factor[1]


def test_nic_bucket_caps_the_rate() -> None:
    """An EC2 token bucket goes to the simulator, and nobody plans above its burst."""
    made = scenario("pool.outside.nic=c5.xlarge", "pool.outside.downlink_mbps=50000", "learner.nic=c5.large")
    worker = next(w for w in made.workers if w.offer.pool == "outside")
    assert worker.bucket is not None and worker.bucket.sustained_bps == 1.254e9
    assert worker.offer.downlink_bps == worker.bucket.burst_bps
    assert made.learner_bucket is not None


def test_constant_rate_needs_no_catalogue() -> None:
    """With rates, size and step time given, a model that nobody knows can be planned."""
    given = [f"pool.*.{key}" for key in ("tokens_per_s=1000", "slots=8")]
    made = scenario("model.name=my/model", "model.snapshot_gb=2", "learner.step_s=300", *given)
    offer = made.problem.offers[0]
    assert offer.slots == 8 and made.problem.full_snapshot_bytes == 2e9
    assert offer.rollouts_per_s == pytest.approx(1000 / made.problem.lengths.mean)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["pool.home.gpu=RTX 9999"], ["pool.home.gpu = 'RTX 9999'", "nearest"]),
        (["pool.home.region=aws:us-est-1"], ["pool.home.region", "aws:us-est-1", "aws:us-west-1"]),
        (["learner.region=mars:1"], ["learner.region = 'mars:1'", "not known"]),
        (["learner.gpu=H2000"], ["learner.gpu = 'H2000'"]),
        (["pool.inside.region=gcp:us-east1"], ["begins with 'aws:'", "provider = 'gcp'"]),
        (["model.name=Qwen9"], ["Qwen9", "not known"]),
        (["pool.outside.provider=nobody"], ["nobody", "price_usd_per_h"]),
        (["pool.home.access=Atlantis"], ["pool.home.access", "Atlantis"]),
        (["pool.home.availability=bamboo-p4"], ["pool.home.availability", "bamboo-p3"]),
        (["pool.home.link_shape=none.csv"], ["pool.home.link_shape", "none.csv", "does not exist"]),
        (["pool.outside.nic=c5.huge"], ["pool.outside.nic", "c5.large"]),
        (["rollout.lengths=r1-client_36"], ["rollout.lengths", "r1-client_35"]),
        (["network.epoch=2022-01-25"], ["network.epoch", "2022-01-24"]),
        (
            ["pool.home.gpu=RTX 4090", "rollout.max_tokens=60000", "rollout.lengths=r1-client_66",
             "rollout.prompt_tokens=2000", "pool.home.max_running=2", "rollout.max_tokens=40000"],
            ["pool.home.gpu", "KV cache", "rollout.max_tokens <= 32636"],
        ),
    ],
)  # fmt: skip
def test_refused(overrides: list[str], words: list[str]) -> None:
    """What the catalogue does not have is refused with the key, the value and what there is."""
    message = refusal(*overrides)
    for word in words:
        assert word in message, message


def test_rates_are_needed_outside_the_clouds() -> None:
    """A machine outside the matrix must say how fast its line is."""
    pool = {key: value for key, value in OUTSIDE.items() if key != "uplink_mbps"}
    with pytest.raises(UserError, match=r"pool.outside.uplink_mbps is missing.*Mbit/s, or access"):
        build(parse({**TABLE, "pool": [pool]}, ""))


def test_two_builds_are_equal() -> None:
    """The same configuration gives the same problem, workers and offsets."""
    one, two = (
        scenario("pool.outside.availability=bamboo-p3"),
        scenario("pool.outside.availability=bamboo-p3"),
    )
    assert one.problem.offers == two.problem.offers and one.problem.links == two.problem.links
    assert [w.availability for w in one.workers] == [w.availability for w in two.workers]


def test_settings_take_the_review_interval() -> None:
    """The world runs with the configuration's review interval and transport."""
    made = scenario("policy.review_s=123", "sim.transport=chunk", "learner.step_s=600")
    plan = plan_run(made.problem)
    world = made.world(settings_for(made.problem, plan))
    assert world.settings.review_s == 123 and world.transport == "chunk"


def test_colocated_baseline_is_the_learner_alone() -> None:
    """Colocated: the learner's GPUs are the workers, S = 0, no extra price, no egress, a very fast link."""
    made = scenario("run.system=colocated")
    assert [o.gpu for o in made.problem.offers] == ["H200"] * 4
    assert made.problem.staleness_bound == 0 and made.problem.reading == "stall"
    assert sum(o.price_usd_per_h for o in made.problem.offers) < 1e-3
    plan = plan_run(made.problem)
    assert plan.t_bcast_s < 1.0 and plan.cost_split_usd["egress"] == 0


@pytest.mark.parametrize(("system", "S"), [("one-step-off", 1), ("datacentre-async", 4)])
def test_dedicated_baselines(system: str, S: int) -> None:
    """Dedicated baselines: the learner's GPU at its price beside it, kappa = 1, no egress."""
    made = scenario(f"run.system={system}")
    assert made.problem.staleness_bound == S and made.problem.publish_period == 1
    assert {(o.gpu, o.price_usd_per_h, o.preemptions_per_h) for o in made.problem.offers} == {
        ("H200", 4.0, 0.0)
    }
    plan = plan_run(made.problem)
    assert plan.learner_utilisation > 0.5
    assert plan.cost_split_usd["egress"] == 0 and plan.t_bcast_s < 10


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda p: p.stem)
def test_experiments_build(path: Path) -> None:
    """Every experiment that is shipped builds, with a price for every pool."""
    loaded = load(path)
    made = build(loaded.config, loaded.base_dir, loaded.source)
    assert len(made.prices) == 1 + len(loaded.config.pool)
    assert len(made.workers) == sum(pool.count for pool in loaded.config.pool)
