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
