"""What is loaded when: the light parts stay light."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "vllm", "transformers", "simpy", "matplotlib", "scipy", "ray")
PRINT = f"; import sys; print([m for m in {HEAVY!r} if m in sys.modules], 'pandas' in sys.modules)"


def loaded_after(statement: str) -> str:
    """What a fresh process says of the heavy modules after a statement."""
    done = subprocess.run(
        [sys.executable, "-c", statement + PRINT], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.strip().splitlines()[-1]


@pytest.mark.parametrize(
    "statement",
    [
        "import echo2",
        "import echo2.policy.scheduler, echo2.policy.planner",
        "import echo2.config, echo2.scenario",
        "from echo2.cli.main import run; run(['--help'])",
        "from echo2.cli.main import run; run(['--version'])",
    ],
)
def test_heavy_libraries_are_not_loaded(statement: str) -> None:
    """Importing echo2, its policy or its help loads none of the heavy libraries, nor pandas."""
    if "scenario" in statement:
        assert loaded_after(statement).startswith("[]")
    else:
        assert loaded_after(statement) == "[] False"


def test_every_part_of_the_policy_is_light() -> None:
    """No module of echo2.policy, imported alone, loads a heavy library."""
    statement = (
        "import pkgutil, importlib, echo2.policy as p; "
        "[importlib.import_module(m.name) for m in pkgutil.walk_packages(p.__path__, 'echo2.policy.')]"
    )
    assert loaded_after(statement) == "[] False"


def test_help_of_every_command() -> None:
    """Each command explains itself without loading what it needs to run."""
    commands = ["init", "plan", "simulate", "sweep", "topology", "replay", "traces"]
    calls = "; ".join(f"run([{name!r}, '--help'])" for name in commands)
    assert loaded_after(f"from echo2.cli.main import run; {calls}") == "[] False"
