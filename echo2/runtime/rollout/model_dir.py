"""Reads what an engine needs to know of a Hugging Face model directory before loading it. No torch here."""

from __future__ import annotations

import json
from pathlib import Path

from echo2.errors import UserError
from echo2.runtime.rollout.request import EngineLimits


def read_limits(model: Path, context_tokens: int = 0) -> EngineLimits:
    """Vocabulary and context of the model in directory `model`; `context_tokens` > 0 lowers the context.

    Raises UserError for a missing directory or configuration, or a context beyond the model's own.
    """
    config_file = model / "config.json"
    if not config_file.is_file():
        raise UserError(
            f"model directory {str(model)!r} has no config.json; give a directory written by save_pretrained"
        )
    try:
        config = json.loads(config_file.read_text(encoding="utf-8"))
        config = config.get("text_config") or config
        vocab, longest = int(config["vocab_size"]), int(config["max_position_embeddings"])
    except (ValueError, KeyError, AttributeError) as error:
        raise UserError(
            f"config.json of model {model.name!r} is unusable ({error!r}); it needs vocab_size and "
            "max_position_embeddings"
        ) from error
    if context_tokens > longest:
        raise UserError(
            f"engine context_tokens is {context_tokens}, but model {model.name!r} has {longest}; lower it"
        )
    return EngineLimits(vocab, context_tokens or longest)
