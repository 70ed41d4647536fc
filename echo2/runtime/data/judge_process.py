"""The process in which an isolated verifier runs: `python -m echo2.runtime.data.judge_process FD SPEC`.

Started by `verify.Judge`, one request and one answer at a time over an inherited socket, JSON both ways. It
ends when its parent does. Whatever the verifier prints is thrown away.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from multiprocessing.connection import Connection
from typing import Any

from echo2.runtime.data.registry import TaskSpec
from echo2.runtime.data.task import Prompt, Task
from echo2.runtime.data.verify import play

# An answer such as 9^9^9^9 must not take the learner's host down with it.
MEMORY_BYTES = 8 * 2**30


def main() -> None:
    """Load the task, say so, then judge until the parent hangs up."""
    connection = Connection(int(sys.argv[1]))
    spec = json.loads(sys.argv[2])
    sys.path[:] = spec["path"]
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    try:
        task = TaskSpec(spec["factory"], spec["options"]).load()
        _warm_up(task)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        answer: dict[str, Any] = {"ready": True}
    except BaseException as error:
        answer = {"failed": f"{type(error).__name__}: {error}"}
    _send(connection, answer)
    while "failed" not in answer:
        try:
            request = json.loads(connection.recv_bytes())
        except (EOFError, OSError):
            return
        _send(connection, _judge(task, request))


def _judge(task: Task, request: dict[str, Any]) -> dict[str, Any]:
    prompt = Prompt(**request["prompt"])
    try:
        if "completions" in request:
            answers, reward = play(task, prompt, request["completions"])
            return {"answers": answers, "reward": reward}
        return {"reward": float(task.reward(prompt, request["completion"]))}
    except Exception as error:
        return {"raised": f"{type(error).__name__}: {error}"[:500]}


def _warm_up(task: Task) -> None:
    """Let the verifier import what it needs now, not on the first answer's time."""
    try:
        task.reward(task.prompt(0), "")
    except Exception:
        return


def _send(connection: Connection, answer: dict[str, Any]) -> None:
    try:
        connection.send_bytes(json.dumps(answer).encode())
    except OSError:
        sys.exit(0)


if __name__ == "__main__":
    main()
