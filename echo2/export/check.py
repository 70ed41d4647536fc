"""The part of SkyPilot's schema that our tasks use, checked without SkyPilot (0.14, `sky.utils.schemas`).

Every task is checked before it is written, so a name that SkyPilot would refuse is found here. Tests hold
the same tasks to SkyPilot's own schema where it is installed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from echo2.errors import UserError
from echo2.export.clouds import SKY_CLOUDS

NAME = re.compile(r"[a-z][a-z0-9-]{0,50}")
VARIABLE = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
INFRA = re.compile(rf"({'|'.join(SKY_CLOUDS)})(/[^/]+){{0,2}}")
KEYS = {
    "name": str,
    "workdir": str,
    "file_mounts": Mapping,
    "resources": Mapping,
    "envs": Mapping,
    "secrets": Mapping,
    "setup": str,
    "run": str,
}
RESOURCES = {
    "infra": str,
    "accelerators": Mapping,
    "cpus": str,
    "disk_size": int,
    "use_spot": bool,
    "ports": list,
    "job_recovery": Mapping,
}


def check_task(task: Mapping[str, Any]) -> None:
    """Refuse a task that SkyPilot's schema would refuse, or that carries a secret: UserError."""
    name = str(task.get("name", "?"))
    if not NAME.fullmatch(name):
        raise UserError(f"task {name!r}: must be letters, digits and '-', begin with a letter, at most 51")
    _known(name, task, KEYS)
    resources = task.get("resources", {})
    _known(f"{name}.resources", resources, RESOURCES)
    infra = resources.get("infra")
    if infra is not None and not INFRA.fullmatch(infra):
        raise UserError(f"{name}.resources.infra = {infra!r}: must be cloud or cloud/region")
    cards = resources.get("accelerators", {})
    if len(cards) > 1 or not all(isinstance(n, int) and n >= 1 for n in cards.values()):
        raise UserError(f"{name}.resources.accelerators = {dict(cards)}: must be one GPU and how many")
    for part in ("envs", "secrets"):
        for key, value in task.get(part, {}).items():
            if not VARIABLE.fullmatch(key) or not (value is None or isinstance(value, str)):
                raise UserError(f"{name}.{part}.{key}: must be a variable's name and a text")
            if part == "secrets" and value is not None:
                raise UserError(f"{name}.secrets.{key}: a secret must not be written down; leave it empty")


def _known(where: str, table: Mapping[str, Any], kinds: Mapping[str, Any]) -> None:
    for key, value in table.items():
        if key not in kinds:
            raise UserError(f"{where}.{key}: is not a key we write; must be one of {', '.join(kinds)}")
        if not isinstance(value, kinds[key]) or (kinds[key] is int and isinstance(value, bool)):
            raise UserError(f"{where}.{key} = {value!r}: must be a {kinds[key].__name__}")
