"""Tasks whose verifiers misbehave on demand, for test_data_verify.py. Imported by judge processes too."""

from __future__ import annotations

import os
import time

from echo2.runtime.data.task import Prompt, SingleTurn


class Misbehaving(SingleTurn):
    """Does to a completion what the completion says."""

    name = "misbehaving"
    size = None

    def __init__(self, isolated: bool = True, deadline_s: float = 0.5) -> None:
        self.isolated, self.deadline_s = isolated, deadline_s

    def prompt(self, ordinal: int) -> Prompt:
        return Prompt(ordinal, "?", {"list": [1, "é"]})

    def reward(self, prompt: Prompt, completion: str) -> float:
        if completion == "hang":
            time.sleep(3600)
        if completion == "raise":
            raise ValueError("no such answer")
        if completion == "exit":
            os._exit(7)
        if completion == "print":
            print("noise on stdout" * 1000)
        if completion == "memory":
            bytearray(32 * 2**30)
        if completion == "truth":
            return float(prompt.truth == {"list": [1, "é"]})
        return {"nan": float("nan"), "inf": float("inf")}.get(completion, 1.0)


class CannotStart(Misbehaving):
    """Works in the parent, fails in the judge process."""

    def __init__(self) -> None:
        super().__init__()
        if "PYTEST_CURRENT_TEST" not in os.environ or os.getppid() == int(os.environ["JUDGE_PARENT"]):
            raise RuntimeError("needs a licence server")


class Nothing:
    """No task at all."""
