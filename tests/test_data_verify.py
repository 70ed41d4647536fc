"""Judging: deadlines that hold, verifiers that misbehave, and what is counted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from echo2.errors import UserError
from echo2.runtime.data.registry import TaskSpec, task_spec
from echo2.runtime.data.verify import PATIENCE, Verifier, VerifierError

SPEC = TaskSpec("bad_verifiers:Misbehaving")


@pytest.fixture(scope="module")
def shared() -> Iterator[Verifier]:
    verifier = Verifier(SPEC)
    yield verifier
    verifier.close()


def test_a_misbehaving_verifier_costs_only_its_own_rollout(shared: Verifier) -> None:
    """Raising, hanging, dying and hogging memory each earn 0, counted by reason; the next one is judged."""
    prompt = shared.task.prompt(0)
    expected = {"raise": "raised", "hang": "timed_out", "exit": "died", "memory": "raised"}
    for completion, reason in expected.items():
        verdict = shared.judge(prompt, completion)
        assert (verdict.reward, verdict.reason) == (0.0, reason)
        assert shared.judge(prompt, "fine").reward == 1.0
    assert shared.counts == {"judged": 4, "raised": 2, "timed_out": 1, "died": 1}
    assert "ValueError: no such answer" in shared.judge(prompt, "raise").detail


def test_truth_and_noise_pass_the_process_border(shared: Verifier) -> None:
    """The verifier sees the prompt's truth as it was, and what it prints does not disturb the verdict."""
    prompt = shared.task.prompt(0)
    assert [shared.judge(prompt, c).reward for c in ("truth", "print", "\ud800 lone")] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("isolated", [True, False])
@pytest.mark.parametrize("value", ["nan", "inf"])
def test_a_reward_that_is_no_number_stops_the_run(shared: Verifier, isolated: bool, value: str) -> None:
    """A reward that is not finite is the verifier's fault: an error naming task, prompt and value."""
    verifier = shared if isolated else Verifier(TaskSpec(SPEC.factory, {"isolated": False}))
    with pytest.raises(VerifierError, match=f"misbehaving: the reward of prompt 3 is {value}"):
        verifier.judge(verifier.task.prompt(3), value)


def test_a_verifier_that_always_fails_is_found_out() -> None:
    """Failing PATIENCE times in a row stops the run; one success between starts the count anew."""
    verifier = Verifier(TaskSpec(SPEC.factory, {"isolated": False}))
    prompt = verifier.task.prompt(0)
    for completion in ["raise"] * (PATIENCE - 1) + ["fine"] + ["raise"] * (PATIENCE - 1):
        verifier.judge(prompt, completion)
    with pytest.raises(VerifierError, match=r"failed 20 times in a row.*no such answer"):
        verifier.judge(prompt, "raise")


def test_a_verifier_that_cannot_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """What stops the judge process from loading the task is in the error."""
    monkeypatch.setenv("JUDGE_PARENT", str(os.getpid()))
    verifier = Verifier(TaskSpec("bad_verifiers:CannotStart"))
    with pytest.raises(VerifierError, match="needs a licence server"):
        verifier.judge(verifier.task.prompt(0), "x")


def test_many_threads_share_the_judges(shared: Verifier) -> None:
    """Verdicts asked for by eight threads at once go to the completion they belong to."""
    prompt = shared.task.prompt(0)
    completions = ["fine", "raise"] * 20
    with ThreadPoolExecutor(8) as pool:
        rewards = list(pool.map(lambda c: shared.judge(prompt, c).reward, completions))
    assert rewards == [1.0, 0.0] * 20


def test_math_verify_is_killed_at_the_deadline(tmp_path: Path) -> None:
    """An answer that makes computer algebra run for ever, or fill the memory, is 0 within the deadline."""
    pytest.importorskip("math_verify")
    (tmp_path / "p.jsonl").write_text('{"question": "?", "answer": 72}')
    verifier = Verifier(task_spec(f"math:{tmp_path}/p.jsonl", {"split": "all"}), deadline_s=1.0)
    try:
        prompt = verifier.task.prompt(0)
        assert verifier.judge(prompt, "so \\boxed{72.0}").reward == 1.0
        assert verifier.judge(prompt, "\\boxed{9^{9^{9^{9^{9}}}}}").reward == 0.0
        assert verifier.judge(prompt, "\\boxed{72}").reward == 1.0
    finally:
        verifier.close()


def test_bad_settings_are_refused() -> None:
    """A deadline of 0 or no process is refused."""
    with pytest.raises(UserError, match="deadline_s 0"):
        Verifier(SPEC, deadline_s=0)
    with pytest.raises(UserError, match="processes 0"):
        Verifier(SPEC, processes=0)
