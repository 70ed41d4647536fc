"""The configuration file: what is refused and how, and that it survives a round trip."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echo2.config import Config, LoadedConfig, dumps, load, parse, template
from echo2.config.example import example
from echo2.config.overrides import split_values, toml_value
from echo2.config.reference import markdown
from echo2.errors import UserError

POOL = {
    "name": "a",
    "gpu": "H100",
    "count": 2,
    "provider": "runpod",
    "region": "aws:us-east-1",
    "uplink_mbps": 1000,
    "downlink_mbps": 1000,
}
TABLE: dict[str, Any] = {"pool": [POOL]}
EXPERIMENTS = sorted((Path(__file__).parent.parent / "experiments").glob("*.toml"))


def refusal(*overrides: str) -> str:
    """The message with which a configuration with these overrides is refused."""
    with pytest.raises(UserError) as caught:
        parse(TABLE, "run.toml", overrides)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("config", [example(), parse(TABLE, ""), *(load(p).config for p in EXPERIMENTS)])
def test_round_trip(config: Config) -> None:
    """The resolved file and the commented template both read back as the same configuration."""
    assert parse(tomllib.loads(dumps(config)), "") == config
    assert parse(tomllib.loads(template(config)), "") == config


def test_round_trip_of_constant_lengths() -> None:
    """A constant length stays one: the default population does not come back."""
    config = parse(TABLE, "", ["rollout.tokens=700"])
    assert config.rollout.lengths is None
    assert parse(tomllib.loads(dumps(config)), "") == config


@given(
    staleness=st.integers(0, 50),
    mbps=st.floats(0.001, 1e6),
    name=st.text(min_size=1, max_size=20),
    topologies=st.lists(st.sampled_from(["star", "chain", "stripes"]), max_size=3),
)
@settings(max_examples=60, deadline=None)
def test_round_trip_of_any_value(staleness: int, mbps: float, name: str, topologies: list[str]) -> None:
    """Whatever text or number is allowed is written so that TOML reads the same value."""
    table = {
        "name": name,
        "run": {"staleness": staleness},
        "policy": {"topologies": topologies},
        "pool": [{**POOL, "downlink_mbps": mbps}],
    }
    config = parse(table, "")
    assert parse(tomllib.loads(dumps(config)), "") == config


def test_every_key_is_explained() -> None:
    """Every key of every section has a description, which is the documentation."""
    sections: list[Any] = [Config, *(f.annotation for f in Config.model_fields.values())]
    sections = [s for s in sections if isinstance(s, type) and issubclass(s, Config.__mro__[1])]
    assert len(sections) >= 8
    for section in sections:
        for name, field in section.model_fields.items():
            nested = isinstance(field.annotation, type) and field.annotation in sections
            assert field.description or nested or name == "pool", (section, name)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        (
            "run.stalness=3",
            ["--set run.stalness=3: unknown key 'stalness'", "[run]", "did you mean 'staleness'"],
        ),
        ("pool.a.uplink_gbps=3", ["unknown key 'uplink_gbps'", "did you mean 'uplink_mbps'"]),
        ("learner.snapshot_gb=3", ["unknown key", "belongs in [model]"]),
        ("staleness=3", ["unknown key 'staleness' in the top of the file; it belongs in [run]"]),
        ("name=", ["--set 'name='", "a value is missing"]),
        ("seed=4294967296", ["seed = 4294967296", "<= 4,294,967,295"]),
        (
            "learner.uplink_mbps=1 Gbit/s",
            ["learner.uplink_mbps = '1 Gbit/s'", "number", "Mbit/s (10^6 bit/s)"],
        ),
        ("learner.uplink_mbps=1e10", ["learner.uplink_mbps", "<= 1,000,000", "Mbit/s"]),
        ("pool.a.downlink_mbps=-5", ["pool.a.downlink_mbps = -5", ">= 0.001", "Mbit/s"]),
        ("pool.a.downlink_mbps=0", ["pool.a.downlink_mbps = 0", ">= 0.001"]),
        ("pool.a.count=0", ["pool.a.count = 0", ">= 1"]),
        ("pool=[]", ["pool = []", "[[pool]]", "count >= 1"]),
        ("run.staleness=-1", ["run.staleness = -1", ">= 0", "the least is 0"]),
        ("run.staleness=2.5", ["whole number"]),
        ("run.publish_period=9", ["run.publish_period = 9", "1 to S + 1 = 5", "never published", "to 8"]),
        ("run.publish_period=0", ["run.publish_period = 0", '"auto"', ">= 1"]),
        ("batch.group_size=7", ["batch.group_size = 7", "divide", "512", "511"]),
        ("pool.a.price_usd_per_h=0.001", ["0.001", "0.02 to 500", "not a bargain", "catalogue"]),
        ("policy.margin=0.5", ["policy.margin = 0.5", "number >= 1"]),
        ('policy.topologies=["strips"]', ["'strips'", "stripes"]),
        ("run.system=colocatd", ["run.system", "did you mean 'colocated'"]),
        ("rollout.tokens=100000", ["rollout.tokens", "max_tokens = 16384"]),
        ("pool.a.slots=3", ["pool.a.slots = 3", "tokens_per_s", "max_running"]),
        ("pool.b.count=1", ["pool 'b'", "known: a"]),
        ("run=3", ["run = 3", "section"]),
        ("seed", ["--set 'seed'", "key.path=value"]),
        ("learner.step_s=nan", ["learner.step_s = nan", "seconds"]),
        ("learner.step_s=-3", ["learner.step_s = -3", ">= 0.01", "seconds"]),
    ],
)
def test_refused(override: str, words: list[str]) -> None:
    """A bad value is refused in one line with key, value, allowed range and fix."""
    message = refusal(override)
    for word in words:
        assert word in message, message


def test_refusal_names_the_override() -> None:
    """A value that came from --set is blamed on it and not on the file, another one on the file."""
    assert refusal("run.staleness=-1", "seed=2").startswith("--set run.staleness=-1: run.staleness = -1")
    assert refusal("pool.a.count=0", "seed=1").startswith("--set pool.a.count=0: ")
    assert refusal("batch.rollouts_per_step=12").startswith(
        "--set batch.rollouts_per_step=12: batch.group_size"
    )
    assert refusal("pool.*.count=4097").startswith("--set pool.*.count=4097: pool.a.count = 4097")
    with pytest.raises(UserError, match=r"^run\.toml: run\.staleness = -1"):
        parse({**TABLE, "run": {"staleness": -1}}, "run.toml", ["seed=2"])


def test_unknown_key_comes_first_and_others_are_counted() -> None:
    """With several mistakes the unknown key is named, and the number of the others."""
    message = refusal("seed=-1", "run.staleness=-1", "batch.groupsize=8")
    assert "did you mean 'group_size'" in message and "and 2 more mistakes" in message


OPENAI = ('pool.a.engine="openai"', "pool.a.local=true", 'pool.a.endpoint_weights="w"')
URLS = 'pool.a.endpoint=["http://a:1","http://a:2"]'


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (OPENAI, 'pool.a.endpoint = 0 URLs: engine = "openai" needs one for each of the 2 workers'),
        ((*OPENAI, 'pool.a.endpoint="http://a:1"'), "pool.a.endpoint = 1 URLs: "),
        ((*OPENAI[:2], URLS), "and endpoint_weights, a directory shared with the servers"),
        ((*OPENAI, 'pool.a.endpoint=["http://a:1","a:2"]'), "'a:2': must begin with http://"),
        ((*OPENAI, 'pool.a.endpoint=["http://a:1","http://a:1/"]'), "one worker an endpoint"),
        ((URLS,), "pool.a.endpoint = 'http://a:1, http://a:2': is for local = true"),
        ((OPENAI[0], OPENAI[2]), "pool.a.endpoint_weights = 'w': is for local = true"),
    ],
)
def test_a_worker_of_a_server_is_told_of_one_server(sets: tuple[str, ...], words: str) -> None:
    """Local openai workers need a server each and a shared directory; others have no use for either."""
    assert words in refusal(*sets)


def test_servers_of_a_pool_are_one_for_each_worker() -> None:
    """One URL may stand alone; a remote pool has its servers on the workers' command lines."""
    assert parse(TABLE, "", [*OPENAI, URLS]).pool[0].endpoint == ("http://a:1", "http://a:2")
    one = parse(TABLE, "", [*OPENAI, "pool.a.count=1", 'pool.a.endpoint="http://a:1"'])
    assert one.pool[0].endpoint == ("http://a:1",)
    assert parse(TABLE, "", [OPENAI[0]]).pool[0].endpoint == ()


def test_free_price_only_in_the_colocated_baseline() -> None:
    """A price near 0 is accepted only where the learner's own GPUs are the workers."""
    free = "pool.a.price_usd_per_h=0"
    assert "not a bargain" in refusal(free)
    assert parse(TABLE, "", [free, "run.system=colocated"]).pool[0].price_usd_per_h == 0


def test_an_override_of_lengths_replaces_the_other_form() -> None:
    """--set rollout.tokens replaces the file's length population, and the other way round."""
    population = {**TABLE, "rollout": {"lengths": "r1-client_35"}}
    assert parse(population, "", ["rollout.tokens=700"]).rollout.lengths is None
    constant = parse({**TABLE, "rollout": {"tokens": 700.0}}, "", ["rollout.lengths=azure-conv"])
    assert (constant.rollout.tokens, constant.rollout.lengths) == (None, "azure-conv")
    assert "keep one of the two" in refusal("rollout.tokens=700", "rollout.lengths=azure-conv")


def test_overrides_address_pools_by_name_number_and_star() -> None:
    """pool.NAME, pool.0 and pool.* all reach the pools; the table given is left alone."""
    table = {"pool": [POOL, {**POOL, "name": "b"}]}
    config = parse(table, "", ["pool.b.count=7", "pool.0.count=5", "pool.*.speed=2.0"])
    assert [pool.count for pool in config.pool] == [5, 7]
    assert [pool.speed for pool in config.pool] == [2.0, 2.0]
    assert table["pool"][0] is POOL and "speed" not in POOL


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1,2.5,true", [1, 2.5, True]),
        ("fluid,chunk", ["fluid", "chunk"]),
        ('["star","chain"],[]', [["star", "chain"], []]),
        ('"a,b",c', ["a,b", "c"]),
        ("auto,3", ["auto", 3]),
    ],
)
def test_grid_values_are_typed_as_toml(text: str, values: list[Any]) -> None:
    """Commas separate outside of lists and quotes, and bare words are texts."""
    assert split_values(text) == values


def test_bad_toml_value_is_refused() -> None:
    """A value that is neither TOML nor a bare word is refused."""
    with pytest.raises(UserError, match="not a value of TOML"):
        toml_value("[1, 2")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"run = [", "not TOML"),
        (b"\xff\xfe", "not UTF-8"),
        (b"a = " + b"[" * 5000 + b"]" * 5000, "too deep"),
        (b'[pool]\nname = "x"\n', "begin each pool with [[pool]]"),
        (b"", "the pool is empty"),
        (None, "no such file; `echo2 init"),
    ],
)
def test_unreadable_file(tmp_path: Path, content: bytes | None, words: str) -> None:
    """A file that is missing or not TOML is refused with the path and what to do."""
    path = tmp_path / "bad.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        load(path)
    assert words in str(caught.value) and "bad.toml" in str(caught.value) and "\n" not in str(caught.value)


def test_the_mark_of_windows_is_no_mistake(tmp_path: Path) -> None:
    """A file that an editor began with a byte-order mark reads like any other."""
    path = tmp_path / "run.toml"
    path.write_text(dumps(example()), encoding="utf-8-sig")
    assert load(path).config == example()


def test_loaded_config_knows_its_folder(tmp_path: Path) -> None:
    """Relative paths in a file start at the file's folder."""
    path = tmp_path / "run.toml"
    path.write_text(dumps(example()), encoding="utf-8")
    loaded = load(path)
    assert isinstance(loaded, LoadedConfig)
    assert loaded.base_dir == tmp_path and loaded.source == str(path)


def test_the_page_is_the_code() -> None:
    """The key reference in docs/configuration.md is what the sections say of themselves."""
    page = (Path(__file__).parent.parent / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert page.endswith(markdown())


def test_the_shortest_file_of_the_page_works() -> None:
    """The first example of docs/configuration.md loads."""
    page = (Path(__file__).parent.parent / "docs" / "configuration.md").read_text(encoding="utf-8")
    example_of_page = page.split("```toml\n", 1)[1].split("```", 1)[0]
    assert parse(tomllib.loads(example_of_page), "").run.staleness == 4
