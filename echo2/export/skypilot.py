"""A plan as SkyPilot tasks: one for the learner, one for each kind of worker that the plan rents.

A worker's task is one worker, launched as often as the plan rents it: a worker that is preempted comes back
alone, while the nodes of one task would all be started anew. Workers dial out to the learner, whose address
and token they get from the environment.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from shlex import quote
from typing import Any

from echo2.config import Config, Pool
from echo2.errors import UserError
from echo2.export.check import check_task
from echo2.export.clouds import NO_PORTS, SPOT_CLOUDS, sky_cloud, sky_gpu, sky_infra
from echo2.policy.plan_types import RunPlan
from echo2.scenario.scenario import snapshot_bytes
from echo2.scenario.workers import engine_of

PORT = 8123
DISK_GB = 200
# A checkpoint holds weights, their copy in float32 and two moments: 14 bytes a parameter of which a snapshot
# has 2. One more than are kept, while it is written; and the model and the newest snapshots themselves.
CHECKPOINT_PER_SNAPSHOT = 7
SNAPSHOTS_KEPT = 4
MODEL = "$HOME/model"
RUN = "$HOME/echo2-run"
# Without a key a worker pins the one of its first welcome.
PINNED = ' ${ECHO2_RUN_KEY:+--run-key "$ECHO2_RUN_KEY"}'
OWNERS = {"Qwen3": "Qwen"}


@dataclass(frozen=True)
class Task:
    """A task: its file's name, how many are launched, its content, and what the reader should know."""

    file: str
    copies: int
    content: Mapping[str, Any]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Launch:
    """What tasks need beside the plan: how echo2 is installed (empty: by name), and the model, as a
    directory that is mounted (relative to the tasks) or a name on Hugging Face."""

    package: str
    model_dir: str
    model_name: str


def model_on_hub(config: Config) -> str:
    """The model's name on Hugging Face: as given with its owner, or of a known family. Else UserError."""
    name = config.model.name
    if re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        return name
    for family, owner in OWNERS.items():
        if name.startswith(family):
            return f"{owner}/{name}"
    raise UserError(
        f"model.name = {name!r}: whose it is on Hugging Face is not known; write OWNER/{name}, or give the "
        "model's directory as train.model"
    )


def tasks(config: Config, plan: RunPlan, launch: Launch) -> list[Task]:
    """The learner's task, then one for each pool of which the plan rents workers, all checked."""
    pools = {pool.name: pool for pool in config.pool}
    rented = [row for row in plan.workers if row.active and not pools[row.pool].local]
    made = [_learner(config, launch, _relayed(plan, sum(row.active for row in rented)))]
    made += [_worker(config, pools[row.pool], row.active, launch) for row in rented]
    for task in made:
        check_task(task.content)
        if [other.file for other in made].count(task.file) > 1:
            raise UserError(f"pool.*.name: two pools would both be written as {task.file}; rename one")
    return made


def _learner(config: Config, launch: Launch, about_plan: Sequence[str]) -> Task:
    learner, notes = config.learner, [*about_plan]
    cloud = sky_cloud(learner.provider)
    if cloud in NO_PORTS:
        raise UserError(
            f"learner.provider = {learner.provider!r}: SkyPilot cannot open a port there, and workers must "
            "dial the learner; take another provider for it"
        )
    notes += _whereabouts("learner", learner.provider, cloud)
    if learner.gpus > 1:
        notes.append(
            f"learner: {learner.gpus} GPUs share the model by torchrun and FSDP2, which is tested with two "
            "processes on a CPU only: look whether a step takes as long as planned."
        )
    command = "echo2 train"
    if learner.gpus > 1:
        command = f"torchrun --standalone --nproc-per-node {learner.gpus} -m echo2.cli.main train"
    resources = _resources("learner", learner.provider, learner.region, learner.gpu, learner.gpus)
    flags = "--set train.host=0.0.0.0 " + f"--set train.port={PORT} --set train.model={MODEL}"
    content = {
        "name": _name(config, "learner"),
        "workdir": ".",
        **({"file_mounts": {"~/model": launch.model_dir}} if launch.model_dir else {}),
        "resources": {**resources, "use_spot": False, "disk_size": _disk_gb(config), "ports": [PORT]},
        "secrets": {"ECHO2_TOKEN": None, **({} if launch.model_dir else {"HF_TOKEN": None})},
        "setup": _setup(launch.package, _extras(pool.engine for pool in config.pool if pool.local))
        + ("" if launch.model_dir else f"hf download {launch.model_name} --local-dir {MODEL}\n"),
        "run": "source ~/echo2-env/bin/activate\n"
        f"if [ -d {RUN} ]; then resume=--resume; fi\n"
        f"exec {command} run.toml {flags} --out {RUN} $resume\n",
    }
    return Task("learner.yaml", 1, content, tuple(notes))


def _worker(config: Config, pool: Pool, copies: int, launch: Launch) -> Task:
    where, cloud = f"pool.{pool.name}", sky_cloud(pool.provider)
    spot = pool.market == "spot" and (cloud in SPOT_CLOUDS or not cloud)
    notes = _whereabouts(where, pool.provider, cloud)
    if pool.market == "spot" and not spot:
        notes.append(f"SkyPilot rents no spot machines of {cloud}: on demand, at another price than planned.")
    if pool.engine == "simulated":
        raise UserError(f"{where}.engine = 'simulated': only sleeps; set engine = 'vllm' to rent it")
    if pool.engine == "openai":
        raise UserError(
            f"{where}.engine = 'openai': its worker runs beside a server of yours, which is not rented here; "
            "start `echo2 worker --engine openai` there by hand, or set engine = 'vllm' to rent it"
        )
    resources = _resources(where, pool.provider, pool.region, pool.gpu, engine_of(config, pool).gpus)
    recovery = {"job_recovery": {"max_restarts_on_errors": 3}}
    tls = config.train.tls_cert is not None
    content = {
        "name": _name(config, pool.name),
        **({"workdir": "."} if tls else {}),
        "resources": {**resources, "use_spot": spot, "disk_size": DISK_GB, **recovery},
        "envs": {"ECHO2_LEARNER": None, "ECHO2_RUN_KEY": ""},
        "secrets": {"ECHO2_TOKEN": None},
        "setup": _setup(launch.package, _extras([pool.engine])),
        "run": "source ~/echo2-env/bin/activate\n"
        f'exec echo2 worker --join "$ECHO2_LEARNER" --pool {quote(pool.name)} --engine {pool.engine}'
        + (f" --ca {quote(config.train.tls_cert or '')}" if tls else "")
        + PINNED
        + "\n",
    }
    return Task(f"worker-{_slug(pool.name)}.yaml", copies, content, tuple(notes))


def _resources(where: str, provider: str, region: str, gpu: str, gpus: int) -> dict[str, Any]:
    infra, card = sky_infra(provider, region), sky_gpu(where, gpu)
    rented = {"accelerators": {card: gpus}} if card else {"cpus": "4+"}
    return {**({"infra": infra} if infra else {}), **rented}


def _disk_gb(config: Config) -> int:
    """What the learner's run fills, at most."""
    checkpoints = CHECKPOINT_PER_SNAPSHOT * (config.train.keep_checkpoints + 1)
    return DISK_GB + round((checkpoints + SNAPSHOTS_KEPT) * snapshot_bytes(config, []) / 1e9)


def _extras(engines: Iterable[str]) -> str:
    return "runtime,vllm" if "vllm" in engines else "runtime"


def _relayed(plan: RunPlan, workers: int) -> list[str]:
    """Workers open no port: where the plan has them pass snapshots on, that is perhaps not so."""
    topology = plan.broadcast["topology"]
    if topology == "star" or workers < 2:
        return []
    return [
        f"broadcast: the plan ({topology}) has workers pass snapshots on, but those of different networks do "
        "not reach each other here and take them from the learner, later than planned. Open a port to each "
        'and give it --relay-port and --relay-host, or plan with policy.topologies = ["star"].'
    ]


def _whereabouts(where: str, provider: str, cloud: str) -> list[str]:
    if cloud:
        return []
    return [
        f"{where}: SkyPilot does not know {provider}, so it will choose a cloud by itself, at another price "
        "than planned. Rent there by hand and run the commands below, or add infra."
    ]


def _setup(package: str, extras: str) -> str:
    what = f"echo2[{extras}] @ {package}" if package else f"echo2[{extras}]"
    return (
        f"set -e\npython3 -m venv ~/echo2-env\nsource ~/echo2-env/bin/activate\npip install {quote(what)}\n"
    )


def _name(config: Config, part: str) -> str:
    text = _slug(f"{config.name}-{part}")
    return (text if text[:1].isalpha() else f"echo2-{text}")[:50].rstrip("-")


def _slug(text: str) -> str:
    """What may stand in the name of a file or a task."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "unnamed"
