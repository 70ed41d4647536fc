"""Judging completions and episodes: a task's verifier under a deadline, and when it misbehaves.

Called by the driver for each rollout that arrives. A completion is untrusted, and verifiers (parsers,
computer algebra) can raise or hang on one. Our rule: the completion that breaks its verifier earns reward 0,
with a counted reason; a verifier that breaks on `PATIENCE` completions in a row, or gives a reward that is
not a finite number even once, is itself at fault and stops the run with a VerifierError. The same holds for
the episodes of a task of several turns, which a worker plays and the learner plays again.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from multiprocessing import Pipe
from queue import Empty, LifoQueue
from typing import Any, TypeVar

from echo2.errors import UserError
from echo2.runtime.data.registry import TaskSpec
from echo2.runtime.data.task import Episode, Prompt, Task

T = TypeVar("T")
START_S = 120.0
PATIENCE = 20
JUDGED, RAISED, TIMED_OUT, DIED = "judged", "raised", "timed_out", "died"


class VerifierError(UserError):
    """The verifier itself is broken: the task, the prompt, and what it did."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A reward, and how it came about: judged, or 0 because the verifier raised, timed_out or died."""

    reward: float
    reason: str = JUDGED
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Played:
    """An episode as far as it went: the environment's answer to each completion, and the verdict.

    An answer of None ended the episode. Without a judged verdict there are no answers.
    """

    answers: tuple[str | None, ...]
    verdict: Verdict


def play(task: Task, prompt: Prompt, completions: Sequence[str]) -> tuple[tuple[str | None, ...], float]:
    """The environment's answers to `completions` and the reward. Raises what the task raises.

    Completions after the end are not told, and have no answer: who sent them is at fault, not the task.
    """
    episode = task.episode(prompt)
    answers: list[str | None] = []
    for completion in completions:
        if answers and answers[-1] is None:
            break
        answers.append(episode.turn(completion))
    return tuple(answers), float(episode.reward())


class Judge:
    """One judge process: started when needed, killed at the deadline and started anew."""

    def __init__(self, spec: TaskSpec, name: str) -> None:
        self._spec, self._name = spec, name
        self._process: subprocess.Popen[bytes] | None = None

    def judge(self, prompt: Prompt, completion: str, deadline_s: float) -> Verdict:
        """The verdict on one completion, within `deadline_s` seconds of a process that is up."""
        answer = self._ask({"prompt": asdict(prompt), "completion": completion}, deadline_s)
        return answer if isinstance(answer, Verdict) else Verdict(answer["reward"])

    def play(self, prompt: Prompt, completions: Sequence[str], deadline_s: float) -> Played:
        """An episode, within `deadline_s` seconds in all."""
        answer = self._ask({"prompt": asdict(prompt), "completions": list(completions)}, deadline_s)
        if isinstance(answer, Verdict):
            return Played((), answer)
        return Played(tuple(answer["answers"]), Verdict(answer["reward"]))

    def _ask(self, request: dict[str, Any], deadline_s: float) -> dict[str, Any] | Verdict:
        """The process's answer, or the verdict that there is none."""
        if self._process is None:
            self._start()
        assert self._process is not None
        try:
            self._connection.send_bytes(json.dumps(request).encode())
            if not self._connection.poll(deadline_s):
                self.stop()
                return Verdict(0.0, TIMED_OUT, f"no verdict within {deadline_s} s")
            answer: dict[str, Any] = json.loads(self._connection.recv_bytes())
        except (EOFError, OSError):
            self._process.wait()
            code = self._process.returncode
            self.stop()
            return Verdict(0.0, DIED, f"the verifier's process ended with code {code}")
        return Verdict(0.0, RAISED, answer["raised"]) if "raised" in answer else answer

    def stop(self) -> None:
        """Kill the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._connection.close()
            self._process = None

    def _start(self) -> None:
        self._connection, theirs = Pipe()
        spec = {"factory": self._spec.factory, "options": dict(self._spec.options), "path": sys.path}
        command = [sys.executable, "-m", "echo2.runtime.data.judge_process", str(theirs.fileno())]
        # Its own session: Ctrl-C in the terminal is the driver's to handle.
        self._process = subprocess.Popen(
            [*command, json.dumps(spec)], pass_fds=[theirs.fileno()], start_new_session=True
        )
        theirs.close()
        answer: dict[str, str] = {"failed": f"it did not start within {START_S} s"}
        try:
            if self._connection.poll(START_S):
                answer = json.loads(self._connection.recv_bytes())
        except (EOFError, OSError):
            answer = {"failed": f"its process ended with code {self._process.wait()}"}
        if "failed" in answer:
            self.stop()
            raise VerifierError(f"task {self._name}: the verifier cannot run: {answer['failed']}")


class Verifier:
    """Judges completions of one task, from any thread; `processes` of them at a time where it is isolated.

    `counts` has the verdicts by reason since the start, for metrics.
    """

    def __init__(self, spec: TaskSpec, processes: int = 1, deadline_s: float | None = None) -> None:
        """`deadline_s` replaces the task's own. Raises UserError when the task cannot be loaded."""
        self.task: Task = spec.load()
        self.deadline_s = self.task.deadline_s if deadline_s is None else deadline_s
        if not self.deadline_s > 0 or processes < 1:
            raise UserError(
                f"task {self.task.name}: deadline_s {self.deadline_s} must be > 0 and processes "
                f"{processes} at least 1"
            )
        self.counts: Counter[str] = Counter()
        self._failures = 0
        self._lock = threading.Lock()
        self._judges: LifoQueue[Judge] = LifoQueue()
        self._all = [Judge(spec, self.task.name) for _ in range(processes if self.task.isolated else 0)]
        for judge in self._all:
            self._judges.put(judge)

    def judge(self, prompt: Prompt, completion: str) -> Verdict:
        """The verdict on one completion. Raises VerifierError when the verifier is at fault."""
        if self._all:
            verdict = self._isolated(lambda judge: judge.judge(prompt, completion, self.deadline_s))
        else:
            verdict = self._here(prompt, completion)
        self._account(prompt, verdict)
        return verdict

    def play(self, prompt: Prompt, completions: Sequence[str]) -> Played:
        """An episode from its start, each turn's completion told. Raises VerifierError as `judge` does."""
        if self._all:
            played = self._isolated(lambda judge: judge.play(prompt, completions, self.deadline_s))
        else:
            played = self._played_here(prompt, completions)
        self._account(prompt, played.verdict)
        return played

    def environment(self, prompt: Prompt) -> Callable[[str], str | None]:
        """The environment's side of one new episode: called with each completion, answers as `turn` does.

        Raises UserError where the task raises, hangs or dies. An isolated one is played from its start in
        every turn, since its process may be another one by then.
        """
        told: list[str] = []
        episode: Episode | None = None

        def answer(completion: str) -> str | None:
            nonlocal episode
            told.append(completion)
            if self._all:
                played = self.play(prompt, told)
                if played.verdict.reason == JUDGED:
                    return played.answers[-1]
                trouble = f"{played.verdict.reason}, {played.verdict.detail}"
            else:
                try:
                    episode = episode or self.task.episode(prompt)
                    return episode.turn(completion)
                except Exception as error:
                    trouble = f"{type(error).__name__}: {error}"
            raise UserError(
                f"task {self.task.name}: turn {len(told)} of prompt {prompt.ordinal} failed: {trouble}"
            )

        return answer

    def close(self) -> None:
        """Kill the judge processes."""
        for judge in self._all:
            judge.stop()

    def _isolated(self, ask: Callable[[Judge], T]) -> T:
        # All judges busy: each frees itself within a start and a deadline, or something is very wrong.
        wait_s = START_S + len(self._all) * self.deadline_s + 60.0
        try:
            judge = self._judges.get(timeout=wait_s)
        except Empty:
            raise VerifierError(
                f"task {self.task.name}: no free judge process within {wait_s:.0f} s; more completions "
                "arrive than can be judged, give it more processes or a shorter deadline"
            ) from None
        try:
            return ask(judge)
        finally:
            self._judges.put(judge)

    def _here(self, prompt: Prompt, completion: str) -> Verdict:
        try:
            return Verdict(float(self.task.reward(prompt, completion)))
        except Exception as error:
            return Verdict(0.0, RAISED, f"{type(error).__name__}: {error}"[:500])

    def _played_here(self, prompt: Prompt, completions: Sequence[str]) -> Played:
        try:
            answers, reward = play(self.task, prompt, completions)
            return Played(answers, Verdict(reward))
        except Exception as error:
            return Played((), Verdict(0.0, RAISED, f"{type(error).__name__}: {error}"[:500]))

    def _account(self, prompt: Prompt, verdict: Verdict) -> None:
        if not math.isfinite(verdict.reward):
            raise VerifierError(
                f"task {self.task.name}: the reward of prompt {prompt.ordinal} is {verdict.reward}; "
                "a verifier must return a finite number, correct it"
            )
        with self._lock:
            self.counts[verdict.reason] += 1
            self._failures = 0 if verdict.reason == JUDGED else self._failures + 1
            failures = self._failures
        if failures >= PATIENCE:
            raise VerifierError(
                f"task {self.task.name}: the verifier has failed {failures} times in a row, last on prompt "
                f"{prompt.ordinal}: {verdict.reason}, {verdict.detail}; correct the verifier or its deadline"
            )
