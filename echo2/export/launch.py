"""The folder that `echo2 export skypilot` writes: run.toml, a YAML a task, and launch.sh that starts all."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

from echo2.config import Config, LoadedConfig, dumps
from echo2.errors import UserError
from echo2.export.skypilot import PORT, Launch, Task, model_on_hub, tasks
from echo2.export.yaml_text import dumps as yaml
from echo2.policy.plan_types import RunPlan
from echo2.study.candidate import PATHS, POOL_PATHS, rebased

FILES = "files"
HEAD = "Written by echo2 export skypilot. Secrets come from the environment: see launch.sh."


def write(folder: Path, loaded: LoadedConfig, plan: RunPlan, package: str, final: Path) -> list[Task]:
    """Fill an empty folder, which will become `final`. What cannot be launched: UserError."""
    config = rebased(_dialled(loaded.config), loaded.base_dir, final)
    own = config.train.model
    launch = Launch(package, own or "", "" if own else model_on_hub(config))
    made = tasks(config, plan, launch)
    packed = _packed(config, folder, final)
    (folder / "run.toml").write_text(dumps(packed), encoding="utf-8")
    for task in made:
        copies = f"One of {task.copies} of this kind." if task.copies > 1 else "One of this kind."
        notes = (HEAD, *((copies,) if task is not made[0] else ()), *task.notes)
        (folder / task.file).write_text(yaml(task.content, notes), encoding="utf-8")
    script = folder / "launch.sh"
    script.write_text(_script(made, config.train.tls_cert is not None), encoding="utf-8")
    script.chmod(0o755)
    return made


def _dialled(config: Config) -> Config:
    """Where the learner listens is said by its task; workers come from outside."""
    return config.replaced(train=config.train.model_copy(update={"host": "0.0.0.0", "port": PORT}))


def _packed(config: Config, folder: Path, final: Path) -> Config:
    """The same with every small file it names copied beside it; the model is mounted, not copied."""
    bare = config.replaced(train=config.train.model_copy(update={"model": None}))
    changes: dict[str, object] = {
        name: getattr(bare, name).model_copy(update=_copied(getattr(bare, name), keys, folder, final))
        for name, keys in PATHS.items()
    }
    pools = (p.model_copy(update=_copied(p, POOL_PATHS, folder, final)) for p in bare.pool)
    return bare.replaced(**changes, pool=tuple(pools))


def _copied(section: object, keys: Sequence[str], folder: Path, final: Path) -> dict[str, str]:
    found = {}
    for key in keys:
        value = getattr(section, key)
        if not value or not ("/" in value or value.endswith((".csv", ".csv.gz")) or key.startswith("tls")):
            continue
        path, hash_, series = value.partition("#")
        source = Path(os.path.normpath(final.absolute() / path))
        if not source.is_file():
            raise UserError(f"{key} = {value!r}: there is no file {source}; give one that is there")
        (folder / FILES).mkdir(exist_ok=True)
        shutil.copy(source, folder / FILES / source.name)
        found[key] = f"{FILES}/{source.name}{hash_}{series}"
    return found


def _script(made: Sequence[Task], tls: bool) -> str:
    learner, *workers = made
    name = str(learner.content["name"])
    hub = " --secret HF_TOKEN" if "HF_TOKEN" in learner.content["secrets"] else ""
    lines = [
        "#!/usr/bin/env bash",
        "# Rents the learner, then every worker. It costs money from its first line to `sky down`.",
        "set -euo pipefail",
        'cd "$(dirname "$0")"',
        "# What workers must know; kept by nobody but this shell and the machines.",
        'export ECHO2_TOKEN="${ECHO2_TOKEN:-$(openssl rand -hex 32)}"',
        *(['export HF_TOKEN="${HF_TOKEN:-}"'] if hub else []),
        f"sky launch --yes --detach-run --cluster {name} --secret ECHO2_TOKEN{hub} {learner.file}",
        f"endpoint=$(sky status --endpoint {PORT} {name})",
        f'export ECHO2_LEARNER="{"https" if tls else "http"}://${{endpoint#*://}}"',
        "# Snapshots are signed; each worker pins the key of its first welcome. To pin it by hand, run the",
        f"# lines up to here, take the key from `sky logs {name}`, set ECHO2_RUN_KEY, and run those below.",
        'export ECHO2_RUN_KEY="${ECHO2_RUN_KEY:-}"',
    ]
    for task in workers:
        called = str(task.content["name"])
        lines += [
            f"for i in $(seq 1 {task.copies}); do",
            f'  sky jobs launch --yes --detach-run --name "{called}-$i" --env ECHO2_LEARNER '
            f"--env ECHO2_RUN_KEY --secret ECHO2_TOKEN {shlex.quote(task.file)}",
            "done",
        ]
    return "\n".join([*lines, f"sky logs {name}", ""])
