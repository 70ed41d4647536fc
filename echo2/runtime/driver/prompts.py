"""The task's prompts as token ids. Called by the live world for every group that starts.

A prompt that cannot be asked (too long, empty) is left out and counted; where so many in a row are left out
that the data or a limit must be wrong, the run ends with an error instead of going through all there is.
"""

from __future__ import annotations

from typing import Any

from echo2.errors import UserError
from echo2.runtime.data.encode import encode_prompt
from echo2.runtime.data.task import DataExhausted, Prompt, Task

PATIENCE = 100


class BrokenTaskError(UserError):
    """The task cannot go on: it raises, says it is exhausted too early, or no prompt of it can be asked."""


class PromptReader:
    """Prompts of one `task` for one tokenizer. `left_out` are the ordinals that could not be asked."""

    def __init__(self, task: Task, tokenizer: Any, template: str, max_tokens: int) -> None:
        self.left_out: set[int] = set()
        self.asked = 0
        self.task, self._tokenizer = task, tokenizer
        self._template, self._max_tokens = template, max_tokens
        self._in_a_row = 0

    def prompt(self, ordinal: int) -> Prompt:
        """The prompt of an ordinal. Raises BrokenTaskError."""
        try:
            return self.task.prompt(ordinal)
        except DataExhausted as end:
            raise BrokenTaskError(f"{end}; the task must say so by its size") from end
        except UserError:
            raise
        except Exception as error:
            raise BrokenTaskError(
                f"task {self.task.name}: prompt {ordinal} cannot be made ({type(error).__name__}: {error}); "
                "correct the task or its data"
            ) from error

    def encoded(self, ordinal: int) -> tuple[Prompt, tuple[int, ...]]:
        """A prompt and its token ids. Raises UserError for one that is left out, BrokenTaskError for good."""
        prompt = self.prompt(ordinal)
        try:
            ids = encode_prompt(self._tokenizer, prompt, self._template, self._max_tokens)
        except UserError as error:
            self.left_out.add(ordinal)
            self._in_a_row += 1
            if self._in_a_row >= PATIENCE:
                raise BrokenTaskError(f"{self.trouble()}: {error}; raise train.max_prompt_tokens") from error
            raise
        self._in_a_row = 0
        self.asked += 1
        return prompt, ids

    def trouble(self) -> str:
        """What was left out, in words; empty where nothing was."""
        return f"{len(self.left_out)} prompts could not be asked" if self.left_out else ""
