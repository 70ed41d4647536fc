"""Tasks: the same prompt for an ordinal everywhere, splits that share nothing, verifiers, and bad input."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo2.errors import UserError
from echo2.runtime.data import registry
from echo2.runtime.data.registry import TaskSpec, load_task, task_spec
from echo2.runtime.data.task import DataExhausted, EpochOrder, Prompt, Task

needs_gym = pytest.mark.skipif(find_spec("reasoning_gym") is None, reason="reasoning-gym is not installed")
needs_math = pytest.mark.skipif(find_spec("math_verify") is None, reason="math-verify is not installed")

GSM8K = {"question": "How many?", "answer": "Six times seven is <<6*7=42>>42.\n#### 1,042"}
DAPO = {
    "prompt": [{"role": "user", "content": "What is $x$?"}],
    "reward_model": {"ground_truth": "\\frac{1}{2}", "style": "rule"},
}
PLAIN = {"problem": "2+2?", "answer": 4}


def jsonl(path: Path, *rows: Any) -> str:
    path.write_text("\n".join(r if isinstance(r, str) else json.dumps(r) for r in rows))
    return str(path)


def test_an_ordinal_is_the_same_prompt_everywhere() -> None:
    """Prompts depend on seed and ordinal alone; these are what every machine makes."""
    assert [load_task("digit_sort", seed=1).prompt(i).text for i in (0, 1, 5)] == DIGITS
    assert [load_task("addition", seed=1).prompt(i).text for i in (0, 1, 5)] == SUMS
    task = load_task("digit_sort", seed=1)
    assert task.prompt(5) == load_task("digit_sort", seed=1).prompt(5) != load_task("digit_sort").prompt(5)


DIGITS = ["71042068>", "13785183>", "1778>"]
SUMS = ["10+54=", "42+11=", "44+33="]


@given(st.text("0123456789", min_size=3, max_size=8))
def test_digit_sort_rewards_exactly_the_sorted_digits(digits: str) -> None:
    """Only the sorted digits earn 1."""
    task, prompt = load_task("digit_sort"), Prompt(0, f"{digits}>", "".join(sorted(digits)))
    assert task.reward(prompt, "".join(sorted(digits))) == 1.0
    assert task.reward(prompt, digits) == float(list(digits) == sorted(digits))
    assert task.reward(prompt, "".join(sorted(digits)) + "0") == 0.0


def test_addition_rewards_the_sum() -> None:
    """The verifier knows the sum of what the prompt shows."""
    task = load_task("addition", digits=3)
    for ordinal in range(50):
        prompt = task.prompt(ordinal)
        a, b = prompt.text.removesuffix("=").split("+")
        assert task.reward(prompt, str(int(a) + int(b))) == 1.0
        assert task.reward(prompt, str(int(a) + int(b) + 1)) == 0.0


@pytest.mark.parametrize(
    "name", ["digit_sort", "addition", pytest.param("reasoning_gym:leg_counting", marks=needs_gym)]
)
def test_no_problem_is_in_both_splits(name: str) -> None:
    """Held-out problems never occur in the train split, whatever the seed."""
    train, held_out = (
        {
            task.prompt(i).text
            for task in (load_task(name, seed=s, split=split) for s in (0, 1))
            for i in range(n)
        }
        for split, n in (("train", 300), ("heldout", 60))
    )
    assert train and held_out and not train & held_out


@needs_gym
def test_reasoning_gym_judges_by_the_dataset() -> None:
    """The dataset's own score is the reward, of the tagged answer or of the bare one."""
    task = load_task("reasoning_gym:leg_counting", seed=3)
    import reasoning_gym

    prompt = task.prompt(7)
    assert isinstance(prompt.truth, dict)
    answer = reasoning_gym.create_dataset("leg_counting", seed=3)[prompt.truth["place"]]["answer"]
    assert task.reward(prompt, f"Let me count.\n<answer>{answer}</answer>") == 1.0
    assert task.reward(prompt, answer) == 1.0
    assert task.reward(prompt, f"<answer>{int(answer) + 1}</answer>") == 0.0


@needs_math
def test_math_reads_the_common_fields(tmp_path: Path) -> None:
    """GSM8K, DAPO and plain rows give problem and answer; equal mathematics earns 1."""
    task = load_task(f"math:{jsonl(tmp_path / 'p.jsonl', GSM8K, '', DAPO, PLAIN)}", split="all")
    assert task.size == 3
    prompts = {task.prompt(i).text: task.prompt(i) for i in range(3)}
    good = {"How many?": "\\boxed{1042}", "What is $x$?": "so $x = 0.5$", "2+2?": "The answer is 4."}
    for text, completion in good.items():
        assert task.reward(prompts[text], completion) == 1.0
        assert task.reward(prompts[text], "\\boxed{17}") == 0.0
        assert task.reward(prompts[text], "") == 0.0


@needs_math
def test_finite_data_ends_clearly(tmp_path: Path) -> None:
    """Two epochs hold each problem twice; the ordinal after is DataExhausted, every time."""
    rows = [{"question": f"q{i}", "answer": i} for i in range(5)]
    task = load_task("math", path=jsonl(tmp_path / "p.jsonl", *rows), split="all", epochs=2, seed=4)
    texts = [task.prompt(i).text for i in range(10)]
    assert sorted(texts[:5]) == sorted(texts[5:]) == [f"q{i}" for i in range(5)]
    for _ in range(2):
        with pytest.raises(DataExhausted, match="has 10 prompts, ordinals 0 to 9; 10 was asked"):
            task.prompt(10)
    with pytest.raises(DataExhausted):
        task.prompt(-1)


@given(st.integers(1, 30), st.integers(1, 4), st.integers(0, 99), st.data())
def test_epochs_visit_every_row_once_in_any_order_of_asking(
    rows: int, epochs: int, seed: int, data: st.DataObject
) -> None:
    """Each epoch is a permutation, and an ordinal's row does not depend on what was asked before."""
    order = EpochOrder("t", rows, epochs, seed)
    seen = [order.row(i) for i in range(order.size)]
    for epoch in range(epochs):
        assert sorted(seen[epoch * rows : (epoch + 1) * rows]) == list(range(rows))
    again = EpochOrder("t", rows, epochs, seed)
    for ordinal in data.draw(st.lists(st.integers(0, order.size - 1), max_size=5)):
        assert again.row(ordinal) == seen[ordinal]


def test_an_episode_of_one_turn_ends_with_it() -> None:
    """A single-turn episode takes one completion, answers None, then has its reward."""
    task = load_task("digit_sort")
    episode = task.episode(task.prompt(0))
    with pytest.raises(ValueError, match="no completion yet"):
        episode.reward()
    assert episode.turn(str(episode.first.truth)) is None
    assert episode.reward() == 1.0
    with pytest.raises(ValueError, match="is over"):
        episode.turn("more")


def test_a_package_adds_a_task_by_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task named by an installed entry point loads by its name, and cannot replace a built-in one."""
    points = [
        EntryPoint("mine", "bad_verifiers:Misbehaving", registry.GROUP),
        EntryPoint("addition", "bad_verifiers:Misbehaving", registry.GROUP),
    ]
    monkeypatch.setattr(registry, "entry_points", lambda group: [p for p in points if p.group == group])
    assert isinstance(load_task("mine"), Task) and load_task("mine").name == "misbehaving"
    assert load_task("addition").name == "addition"


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("digit_sorts", {}, "task 'digit_sorts' is not known; nearest: digit_sort"),
        ("digit_sort", {"sed": 1}, "option of task DigitSort 'sed' is not known; nearest: seed"),
        ("digit_sort", {"split": "test"}, "split is 'test'"),
        ("digit_sort", {"min_digits": 5, "max_digits": 4}, "min_digits 5 and max_digits 4"),
        ("digit_sort:3", {}, "task digit_sort takes no argument"),
        ("addition", {"digits": 0}, "digits is 0"),
        pytest.param(
            "reasoning_gym:leg_countin",
            {},
            "dataset 'leg_countin' is not known; nearest: leg_counting",
            marks=needs_gym,
        ),
        ("reasoning_gym", {}, "missing a required argument: 'dataset'"),
        pytest.param(
            "reasoning_gym:leg_counting",
            {"options": {"legs": 3}},
            r"options \{'legs': 3\} are refused",
            marks=needs_gym,
        ),
        pytest.param(
            "reasoning_gym:leg_counting", {"options": {"min_animals": 0}}, "are refused", marks=needs_gym
        ),
        ("math:nowhere.jsonl", {}, "nowhere.jsonl does not exist"),
    ],
)
def test_bad_names_and_options_are_refused(name: str, options: dict[str, Any], message: str) -> None:
    """A wrong name, option or value is one clear error that offers the nearest."""
    with pytest.raises(UserError, match=message):
        load_task(name, **options)


def test_what_is_no_task_is_refused() -> None:
    """An entry point that leads nowhere, or to something else, is named."""
    for factory, why in (
        ("no_module:X", "No module"),
        ("json:X", "no attribute"),
        ("builtins:dict", "is no task"),
        ("bad_verifiers:Nothing", "lacks"),
    ):
        with pytest.raises(UserError, match=why):
            TaskSpec(factory).load()
    assert task_spec("addition").factory.endswith(":Addition")


@needs_math
@pytest.mark.parametrize(
    ("row", "why"),
    [("{", "p.jsonl:2: not JSON"), ([1], "p.jsonl:2: a list"), ({"question": "q"}, "p.jsonl:2: has fields")],
)
def test_a_bad_line_is_named(tmp_path: Path, row: Any, why: str) -> None:
    """A malformed line is refused with file and line number."""
    with pytest.raises(UserError, match=why):
        load_task("math", path=jsonl(tmp_path / "p.jsonl", PLAIN, row), split="all").prompt(0)


@needs_math
def test_a_split_without_rows_is_refused(tmp_path: Path) -> None:
    """A file whose rows all fall into the other split is a clear error."""
    with pytest.raises(UserError, match="no rows for this split"):
        load_task("math", path=jsonl(tmp_path / "p.jsonl", PLAIN), heldout_share=0.0, split="heldout")


def test_importing_the_data_plane_loads_nothing_heavy() -> None:
    """Every module of the data plane imports without torch, transformers, pyarrow or a task package."""
    code = (
        "import pkgutil, importlib, sys, echo2.runtime.data as d\n"
        "for m in pkgutil.walk_packages(d.__path__, 'echo2.runtime.data.'): importlib.import_module(m.name)\n"
        "heavy = {'torch', 'transformers', 'vllm', 'pyarrow', 'sympy', 'reasoning_gym', 'math_verify'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
