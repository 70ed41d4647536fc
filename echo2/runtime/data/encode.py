"""From a prompt to token ids, by the model's own tokenizer and chat template. Called by the driver."""

from __future__ import annotations

from typing import Any

from echo2.errors import UserError
from echo2.runtime.data.task import Prompt

TEMPLATES = ("auto", "chat", "plain")


def encode_prompt(
    tokenizer: Any, prompt: Prompt, template: str = "auto", max_tokens: int | None = None
) -> tuple[int, ...]:
    """Token ids of a prompt. `tokenizer` is a transformers tokenizer.

    "chat" applies the tokenizer's chat template to the system and user messages, "plain" puts the texts one
    after the other, "auto" is chat where there is a template. Raises UserError for a prompt of more than
    `max_tokens` (a model's context less the completion's share), an empty one, or a missing template.
    """
    if template not in TEMPLATES:
        raise UserError(f"prompt template is {template!r}; choose one of {', '.join(TEMPLATES)}")
    has_template = bool(getattr(tokenizer, "chat_template", None))
    if template == "chat" and not has_template:
        raise UserError("prompt template is 'chat', but the model's tokenizer has none; choose 'plain'")
    if has_template and template != "plain":
        messages = [{"role": "system", "content": prompt.system}] if prompt.system else []
        messages.append({"role": "user", "content": prompt.text})
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        # The template writes the special tokens itself.
        ids = tokenizer.encode(text, add_special_tokens=False)
    else:
        ids = tokenizer.encode("\n\n".join(part for part in (prompt.system, prompt.text) if part))
    if not 1 <= len(ids) <= (max_tokens or len(ids)):
        raise UserError(
            f"prompt {prompt.ordinal} has {len(ids)} tokens; it must have 1 to {max_tokens or 'any'}: "
            "use a model with a longer context, a smaller max_tokens, or leave the prompt out"
        )
    return tuple(int(token) for token in ids)


def encode_answer(
    tokenizer: Any, text: str, template: str = "auto", stopped: int | None = None
) -> tuple[int, ...]:
    """Token ids of an environment's answer, to be put after a turn of the model.

    `stopped` is the stop token the turn ended with, None where it was cut off. "plain" is the text alone.
    "chat" is what the template writes between a turn of the assistant and the next one with the text as
    user message; what closes the turn comes first, unless the model wrote it. Raises UserError for an answer
    without tokens, or a template that rewrites earlier messages.
    """
    has_template = bool(getattr(tokenizer, "chat_template", None))
    if has_template and template != "plain":
        text = _between_turns(tokenizer, text, stopped)
    ids = tokenizer.encode(text, add_special_tokens=False)
    if not ids:
        raise UserError(
            "the environment's answer is empty; a turn of a task must say something or end with None"
        )
    return tuple(int(token) for token in ids)


def _between_turns(tokenizer: Any, text: str, stopped: int | None) -> str:
    """What the chat template writes from the end of an assistant's message to the next one's start."""
    mark = "\u241e"
    told = [{"role": "user", "content": "."}, {"role": "assistant", "content": mark}]
    before = tokenizer.apply_chat_template(told, tokenize=False)
    told.append({"role": "user", "content": text})
    after = tokenizer.apply_chat_template(told, tokenize=False, add_generation_prompt=True)
    place = after.find(mark)
    if before.count(mark) != 1 or place < 0 or not after.startswith(before[: before.index(mark) + 1]):
        raise UserError(
            "the model's chat template rewrites earlier messages, so turns cannot follow each other as they "
            "are; choose train.template = 'plain'"
        )
    written = after[place + 1 :]
    closing = "" if stopped is None else tokenizer.decode([stopped])
    return str(written.removeprefix(closing)) if closing else str(written)
