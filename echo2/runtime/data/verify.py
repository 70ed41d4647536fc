"""Judging completions: a task's verifier under a deadline, and what happens when it misbehaves.

Called by the driver for each rollout that arrives. A completion is untrusted, and verifiers (parsers,
computer algebra) can raise or hang on one. Our rule: the completion that breaks its verifier earns reward 0,
with a counted reason; a verifier that breaks on `PATIENCE` completions in a row, or gives a reward that is
not a finite number even once, is itself at fault and stops the run with a VerifierError.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import asdict, dataclass
from multiprocessing import Pipe
from queue import Empty, LifoQueue

from echo2.errors import UserError
from echo2.runtime.data.registry import TaskSpec
from echo2.runtime.data.task import Prompt, Task

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


class Judge:
    """One judge process: started when needed, killed at the deadline and started anew."""

    def __init__(self, spec: TaskSpec, name: str) -> None:
        self._spec, self._name = spec, name
        self._process: subprocess.Popen[bytes] | None = None

    def judge(self, prompt: Prompt, completion: str, deadline_s: float) -> Verdict:
        """The verdict on one completion, within `deadline_s` seconds of a process that is up."""
        if self._process is None:
            self._start()
        assert self._process is not None
        request = {"prompt": asdict(prompt), "completion": completion}
        try:
            self._connection.send_bytes(json.dumps(request).encode())
            if not self._connection.poll(deadline_s):
                self.stop()
                return Verdict(0.0, TIMED_OUT, f"no verdict within {deadline_s} s")
            answer = json.loads(self._connection.recv_bytes())
        except (EOFError, OSError):
            self._process.wait()
            code = self._process.returncode
            self.stop()
            return Verdict(0.0, DIED, f"the verifier's process ended with code {code}")
        if "raised" in answer:
            return Verdict(0.0, RAISED, answer["raised"])
        return Verdict(answer["reward"])

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
        verdict = self._isolated(prompt, completion) if self._all else self._here(prompt, completion)
        self._account(prompt, verdict)
        return verdict

    def close(self) -> None:
        """Kill the judge processes."""
        for judge in self._all:
            judge.stop()

    def _isolated(self, prompt: Prompt, completion: str) -> Verdict:
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
            return judge.judge(prompt, completion, self.deadline_s)
        finally:
            self._judges.put(judge)

    def _here(self, prompt: Prompt, completion: str) -> Verdict:
        try:
            return Verdict(float(self.task.reward(prompt, completion)))
        except Exception as error:
            return Verdict(0.0, RAISED, f"{type(error).__name__}: {error}"[:500])

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
