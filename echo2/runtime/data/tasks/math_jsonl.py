"""Maths problems from a JSON Lines file, judged by the package math-verify: `math:train.jsonl`.

Reads the fields of GSM8K (`question`, `answer` ending in "#### 42"), of DAPO-17k (`prompt`, a text or a
list of chat messages, and `reward_model.ground_truth`), and plain `problem`/`question` with `answer`.
"""

from __future__ import annotations

import importlib
import json
import logging
from functools import cached_property
from pathlib import Path
from typing import Any

from echo2.errors import UserError
from echo2.runtime.data.task import (
    HELDOUT_SHARE,
    EpochOrder,
    Prompt,
    SingleTurn,
    check_split,
    in_split,
)

INSTRUCTION = "Reason step by step and put the final answer within \\boxed{}."


class MathJsonl(SingleTurn):
    """Finite: the rows of a split, `epochs` times, shuffled by `seed`. Reward 1 for an equal answer, else 0.

    `split` "all" takes every row (for a file that is itself a test set).
    """

    deadline_s = 5.0

    def __init__(
        self,
        path: str,
        seed: int = 0,
        epochs: int = 1,
        split: str = "train",
        heldout_share: float = HELDOUT_SHARE,
        instruction: str = INSTRUCTION,
    ) -> None:
        if split != "all":
            check_split(split)
        self.name = f"math:{Path(path).name}"
        self._path, self._instruction = Path(path), instruction
        self._seed, self._epochs, self._split, self._share = seed, epochs, split, heldout_share
        if not self._path.is_file():
            raise UserError(f"task math: file {path} does not exist; give a JSON Lines file of problems")
        _library()

    @property
    def size(self) -> int | None:
        """Rows of the split times epochs."""
        return self._order.size

    def prompt(self, ordinal: int) -> Prompt:
        """The problem of an ordinal."""
        text, truth = self._rows[self._order.row(ordinal)]
        return Prompt(ordinal, text, truth, self._instruction)

    def reward(self, prompt: Prompt, completion: str) -> float:
        """1 where math-verify finds the last answer equal to the truth as mathematics, else 0."""
        library = _library()
        # No timeouts of the library's own: they need the main thread's alarm. The judge process is killed.
        truth = library.parse(f"\\boxed{{{prompt.truth}}}", parsing_timeout=None)
        answer = library.parse(completion, parsing_timeout=None)
        return float(library.verify(truth, answer, timeout_seconds=None))

    @cached_property
    def _order(self) -> EpochOrder:
        return EpochOrder(self.name, len(self._rows), self._epochs, self._seed)

    @cached_property
    def _rows(self) -> list[tuple[str, str]]:
        rows = []
        try:
            with self._path.open(encoding="utf-8") as lines:
                for number, line in enumerate(lines, 1):
                    if line.strip():
                        rows.append(_problem(line, f"{self._path}:{number}"))
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"task math: cannot read {self._path}: {error}; give a UTF-8 file") from error
        return [row for row in rows if self._split == "all" or in_split(row[0], self._split, self._share)]


def _problem(line: str, where: str) -> tuple[str, str]:
    """(problem, truth) of one line."""
    try:
        fields = json.loads(line)
    except ValueError as error:
        raise UserError(f"{where}: not JSON ({error}); each line must be one JSON object") from None
    if not isinstance(fields, dict):
        raise UserError(f"{where}: a {type(fields).__name__}; each line must be one JSON object")
    text = next((fields[name] for name in ("question", "problem", "prompt") if fields.get(name)), None)
    if isinstance(text, list):
        text = next((m["content"] for m in text if isinstance(m, dict) and m.get("role") == "user"), None)
    model = fields.get("reward_model")
    truth = model.get("ground_truth") if isinstance(model, dict) else fields.get("answer")
    if not isinstance(text, str) or not isinstance(truth, (str, int, float)) or isinstance(truth, bool):
        raise UserError(
            f"{where}: has fields {sorted(fields)}; needs question/problem/prompt and answer, or "
            "reward_model.ground_truth"
        )
    # GSM8K writes the worked solution, then "####" and the number, with commas for thousands.
    answer = str(truth)
    if "####" in answer:
        answer = answer.rpartition("####")[2].replace(",", "")
    return text.strip(), answer.strip()


def _library() -> Any:
    try:
        library = importlib.import_module("math_verify")
    except ImportError:
        raise UserError(
            "task math needs the package math-verify, which is not installed; pip install math-verify"
        ) from None
    # It warns at every call that its timeouts are off; the deadline of the judge process stands in.
    for name in ("math_verify.parser", "math_verify.grader"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return library
