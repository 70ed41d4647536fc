"""SkyPilot tasks of a plan: they pass SkyPilot's own schema, rent what is planned, and hold no secret."""

from __future__ import annotations

import copy
import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from cli_run import SMALL, CommandLine

from echo2.config import load
from echo2.errors import UserError
from echo2.export.check import check_task
from echo2.export.clouds import sky_cloud, sky_gpu, sky_infra
from echo2.export.yaml_text import dumps

yaml = pytest.importorskip("yaml", reason="PyYAML reads the tasks back here: pip install pyyaml")
ROOT = Path(__file__).resolve().parent.parent
MIXED = ROOT / "experiments" / "qwen3-8b-mixed-spot.toml"
TREE = ["--set", 'policy.topologies=["tree"]']
ENGINE = "vllm"
NAMED = SMALL.replace("[model]", '[model]\nname = "Qwen3-8B"')


@pytest.fixture
def echo2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """The command line in a folder with a small configuration of a known model."""
    made = CommandLine(tmp_path, capsys)
    made.config.write_text(NAMED)
    return made


def exported(echo2: CommandLine, *arguments: object) -> dict[str, dict[str, Any]]:
    """The tasks of an export by their file's name."""
    out = echo2.folder / "sky"
    code, printed, err = echo2("export", "skypilot", *arguments, "--out", out)
    assert code == 0 and "nothing is rented yet" in printed, err
    return {path.stem: yaml.safe_load(path.read_text()) for path in out.glob("*.yaml")}


def test_each_kind_of_the_plan_has_a_task(echo2: CommandLine) -> None:
    """The learner and every pool that the plan rents from have one, with GPU, place, market and number."""
    _, printed, _ = echo2("plan", MIXED, "--json")
    plan = json.loads(printed)
    found = exported(echo2, MIXED)
    rented = {row["pool"]: row["active"] for row in plan["workers"] if row["active"]}
    assert set(found) == {"learner", *(f"worker-{pool}" for pool in rented)}
    learner = found["learner"]["resources"]
    assert "exec torchrun --standalone --nproc-per-node 4 -m echo2.cli.main train " in found["learner"]["run"]
    assert learner == {
        "infra": "aws/us-east-1",
        "accelerators": {"H200": 4},
        "use_spot": False,
        "disk_size": 610,  # 200, and 25 snapshots of 16.4 GB: 3 checkpoints of 7, 4 of its own
        "ports": [8123],
    }
    pools = {pool.name: pool for pool in load(MIXED).config.pool}
    script = (echo2.folder / "sky" / "launch.sh").read_text()
    for pool, active in rented.items():
        task = found[f"worker-{pool}"]
        assert task["resources"]["use_spot"] == (pools[pool].market == "spot")
        assert f"--pool {pool} " in task["run"] and '--join "$ECHO2_LEARNER"' in task["run"]
        assert f"for i in $(seq 1 {active}); do\n  sky jobs launch" in script
        assert script.count(f"worker-{pool}.yaml") == 1


def test_skypilots_own_schema_accepts_them(echo2: CommandLine) -> None:
    """Every task passes the schema of the installed SkyPilot, and becomes a Task of it."""
    schemas = pytest.importorskip("sky.utils.schemas", reason="SkyPilot is not installed")
    validators = pytest.importorskip("jsonschema")
    from sky.task import Task

    tiny = ROOT / "experiments" / "tiny-sort-live.toml"
    for config, flags in ((MIXED, []), (tiny, ["--set", "pool.*.local=false"])):
        for name, content in exported(echo2, config, *flags).items():
            validators.Draft202012Validator(schemas.get_task_schema()).validate(content)
            validators.Draft202012Validator(schemas.get_resources_schema()).validate(content["resources"])
            made = Task.from_yaml_config(
                copy.deepcopy(content),
                env_overrides=[(key, "http://10.0.0.1:8123") for key in content.get("envs", {})],
                secrets_overrides=[(key, "x") for key in content["secrets"]],
            )
            assert made.name == content["name"], name
        for path in (echo2.folder / "sky").iterdir():
            path.unlink()


def test_no_secret_is_written(echo2: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The token of the environment is in none of the files: every secret is left empty."""
    monkeypatch.setenv("ECHO2_TOKEN", "swordfish-1234")
    for task in exported(echo2, echo2.config).values():
        assert set(task["secrets"].values()) == {None}
    for path in (echo2.folder / "sky").rglob("*"):
        assert path.is_dir() or "swordfish" not in path.read_text()


def test_the_script_is_a_script(echo2: CommandLine) -> None:
    """bash can read launch.sh, and it can be executed."""
    exported(echo2, echo2.config)
    script = echo2.folder / "sky" / "launch.sh"
    subprocess.run(["bash", "-n", script], check=True)
    assert script.stat().st_mode & 0o100


def test_the_exported_configuration_plans_the_same(echo2: CommandLine) -> None:
    """run.toml, with the traces that were copied beside it, makes the plan that was exported."""
    trace = echo2.folder / "own" / "mine.csv"
    trace.parent.mkdir()
    trace.write_text("trace_id,t_s,down_ratio,up_ratio,ok\ns,0,0.5,0.5,1\ns,9,1,1,1\n")
    flags = ["--set", "pool.a.link_shape=own/mine.csv"]
    exported(echo2, echo2.config, *flags)
    plans = []
    for config, more in ((echo2.config, flags), (echo2.folder / "sky" / "run.toml", [])):
        code, printed, err = echo2("plan", config, *more, "--json")
        assert code == 0, err
        plans.append({k: v for k, v in json.loads(printed).items() if k != "notes"})
    assert plans[0] == plans[1]
    assert (echo2.folder / "sky" / "files" / "mine.csv").read_text() == trace.read_text()


def test_a_model_of_ones_own_is_mounted(echo2: CommandLine) -> None:
    """A model directory travels by file_mounts; one of the catalogue is fetched from Hugging Face."""
    hub = exported(echo2, echo2.config)["learner"]
    assert "hf download Qwen/Qwen3-8B" in hub["setup"] and "HF_TOKEN" in hub["secrets"]
    for path in (echo2.folder / "sky").iterdir():
        path.unlink()
    own = exported(echo2, echo2.config, "--set", "train.model=weights")["learner"]
    assert own["file_mounts"] == {"~/model": "../weights"} and "hf download" not in own["setup"]
    assert set(own["secrets"]) == {"ECHO2_TOKEN"}


def test_warnings_say_what_differs_from_the_plan(echo2: CommandLine) -> None:
    """An unknown provider and a missing certificate are said on standard error and in the task."""
    _, _, err = echo2("export", "skypilot", echo2.config, "--out", echo2.folder / "sky")
    assert "pool.a: SkyPilot does not know salad" in err and "train.tls_cert is not set" in err
    assert "SkyPilot does not know salad" in (echo2.folder / "sky" / "worker-a.yaml").read_text()


def test_a_plan_with_relays_says_that_no_port_is_open(echo2: CommandLine) -> None:
    """Where workers are to pass snapshots on, it is said that they may not reach each other."""
    _, _, err = echo2("export", "skypilot", MIXED, "--out", echo2.folder / "relays", *TREE)
    assert "broadcast: the plan (tree)" in err and "--relay-host" in err
    star = ["--set", 'policy.topologies=["star"]']
    _, _, err = echo2("export", "skypilot", MIXED, "--out", echo2.folder / "star", *star)
    assert "broadcast" not in err


@pytest.mark.parametrize(("key", "option"), [("", ""), ("ab12", " --run-key ab12")])
def test_workers_join_without_a_key_or_with_the_one_given(echo2: CommandLine, key: str, option: str) -> None:
    """The task names no key; one in ECHO2_RUN_KEY is pinned, and the script hands it on and says how."""
    task = exported(echo2, echo2.config)["worker-a"]
    line = task["run"].splitlines()[-1].replace("exec echo2", "echo")
    done = subprocess.run(
        ["bash", "-c", line], env={"ECHO2_RUN_KEY": key, "ECHO2_LEARNER": "http://l"}, capture_output=True
    )
    assert done.stdout.decode().strip() == f"worker --join http://l --pool a --engine {ENGINE}{option}"
    script = (echo2.folder / "sky" / "launch.sh").read_text()
    assert "--env ECHO2_RUN_KEY" in script and "take the key from `sky logs small-learner`" in script


def test_every_option_of_the_tasks_is_one_of_the_command(echo2: CommandLine) -> None:
    """`echo2 worker` and `echo2 train` take every option that the tasks give them."""
    for task in exported(echo2, MIXED).values():
        line = task["run"].splitlines()[-1]
        command, *words = re.split(r"exec echo2 |echo2\.cli\.main ", line)[1].split()
        _, printed, _ = echo2(command, "--help")
        for option in re.findall(r"--[a-z-]+", " ".join(words)):
            assert option in printed, (command, option)


def test_a_learner_with_vllm_workers_of_its_own_has_vllm(echo2: CommandLine) -> None:
    """Local pools run on the learner's machine, so their engine is installed there."""
    flags = ["--set", "pool.a.local=true", "--set", "pool.a.engine=vllm"]
    assert "echo2[runtime,vllm]" in exported(echo2, echo2.config, *flags)["learner"]["setup"]


def test_local_pools_are_not_rented(echo2: CommandLine) -> None:
    """Workers that the learner starts itself have no task."""
    assert set(exported(echo2, echo2.config, "--set", "pool.a.local=true")) == {"learner"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--set", "model.name=Foo-9B", "--set", "pool.a.tokens_per_s=100", "--set", "pool.a.slots=8"],
         ["model.name = 'Foo-9B'", "OWNER/Foo-9B", "train.model"]),
        (["--set", "pool.a.gpu=Abacus", "--set", "pool.a.tokens_per_s=100", "--set", "pool.a.slots=8",
          "--set", "pool.a.price_usd_per_h=1"], ["pool.a.gpu = 'Abacus'", "SkyPilot"]),
        (["--set", "pool.a.engine=simulated"], ["pool.a.engine = 'simulated'", "vllm"]),
        (["--set", "pool.a.engine=openai"], ["pool.a.engine = 'openai'", "by hand"]),
        (["--set", "learner.provider=verda", "--set", "learner.price_usd_per_gpu_h=3"],
         ["learner.provider = 'verda'", "open a port"]),
        (["--set", "train.tls_cert=no.pem", "--set", "train.tls_key=no.key"], ["tls_cert", "no file"]),
    ],
)  # fmt: skip
def test_what_cannot_be_launched(echo2: CommandLine, arguments: list[str], words: list[str]) -> None:
    """What SkyPilot could not run is one line, and no folder is left."""
    out = echo2.folder / "sky"
    message = echo2.mistake("export", "skypilot", echo2.config, "--out", out, *arguments)
    assert all(word in message for word in words), message
    assert not out.exists()


def test_an_old_folder_is_not_overwritten(echo2: CommandLine) -> None:
    """A folder that holds something is refused."""
    exported(echo2, echo2.config)
    assert "exists already" in echo2.mistake(
        "export", "skypilot", echo2.config, "--out", echo2.folder / "sky"
    )


GOOD = {
    "name": "run-a",
    "resources": {"infra": "aws/us-east-1", "accelerators": {"H100": 1}, "use_spot": True},
    "envs": {"ECHO2_LEARNER": None},
    "secrets": {"ECHO2_TOKEN": None},
    "run": "true",
}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": "9 lives"}, "must be letters"),
        ({"command": "true"}, "run-a.command: is not a key"),
        ({"resources": {"gpus": "H100"}}, "run-a.resources.gpus"),
        ({"resources": {"infra": "salad/x"}}, "salad/x"),
        ({"resources": {"accelerators": {"H100": 0}}}, "how many"),
        ({"resources": {"use_spot": "yes"}}, "must be a bool"),
        ({"secrets": {"ECHO2_TOKEN": "hush"}}, "must not be written down"),
        ({"envs": {"no-name": None}}, "a variable's name"),
    ],
)
def test_the_check_finds_what_skypilot_would_refuse(change: dict[str, Any], words: str) -> None:
    """A good task passes; each wrong key, name or value is named, and no secret's value is repeated."""
    check_task(GOOD)
    with pytest.raises(UserError, match=words) as error:
        check_task({**GOOD, **change})
    assert "hush" not in str(error.value)


def test_names_of_clouds_and_gpus() -> None:
    """Our catalogue's names become SkyPilot's; a region is given only where it is the provider's own."""
    assert sky_infra("aws", "aws:us-east-1") == "aws/us-east-1"
    assert sky_infra("vast-ai", "aws:us-east-2") == "vast" and sky_cloud("salad") == ""
    assert (sky_gpu("x", "A100"), sky_gpu("x", "A100 40GB"), sky_gpu("x", "CPU")) == ("A100-80GB", "A100", "")
    assert sky_gpu("x", "RTX PRO 6000") == "RTXPRO6000" and sky_gpu("x", "RTX 5090") == "RTX5090"


@pytest.mark.parametrize(
    "data",
    [
        {"a": 1, "b": {"c": None, "d": True, "e": [8123, "x"]}, "empty": {}},
        {"script": "set -e\necho '$HOME: #x'\n", "quoted": 'a "b" \\ : # é'},
        {"odd key": {"~/model": "../m"}, "deep": {"run": "a\n\n  b\n"}, "no": "no", "number": "1.0"},
    ],
)
def test_yaml_is_read_as_it_was_meant(data: dict[str, Any]) -> None:
    """What is written comes back the same from a YAML reader."""
    assert yaml.safe_load(dumps(data, ("a comment",))) == data


def test_yaml_of_what_is_no_plain_data() -> None:
    """An object is refused rather than written as text."""
    with pytest.raises(ValueError, match="plain data"):
        dumps({"a": object()})


def test_names_cannot_become_commands(echo2: CommandLine) -> None:
    """A pool's name is one word of the command whatever is in it, and no path of the file."""
    echo2.config.write_text(NAMED.replace('name = "a"', 'name = "a/$(reboot);#"'))
    task = exported(echo2, echo2.config, "--package", "https://example.org/e.whl'; reboot #")[
        "worker-a-reboot"
    ]
    words = shlex.split(task["run"])
    assert words[words.index("--pool") + 1] == "a/$(reboot);#"
    assert "echo2[runtime,vllm] @ https://example.org/e.whl'; reboot #" in shlex.split(task["setup"])


def test_two_pools_of_one_file(echo2: CommandLine) -> None:
    """Pools whose names differ only in signs are refused rather than one overwriting the other."""
    pool = NAMED[NAMED.index("[[pool]]") :]
    echo2.config.write_text(NAMED.replace('name = "a"', 'name = "a/b"') + pool.replace('"a"', '"a-b"'))
    flags = ["--set", "policy.activation=all"]
    message = echo2.mistake("export", "skypilot", echo2.config, "--out", echo2.folder / "sky", *flags)
    assert "worker-a-b.yaml" in message and "rename one" in message
