"""Which files of a model directory travel with a snapshot: configuration and tokenizer, no code.

Called where a snapshot store is made, and by the receiver, which takes no other kind of file.
"""

from __future__ import annotations

import re
from pathlib import Path

from echo2.errors import UserError

WEIGHTS_FILE = "model.safetensors"
DELTA_FILE = "delta.echo2"

KNOWN = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "spiece.model",
    "tekken.json",
    "tiktoken.model",
    "chat_template.jinja",
    "chat_template.json",
    "preprocessor_config.json",
)

_TOKENIZERS = (
    {"tokenizer.json"},
    {"tokenizer.model"},
    {"vocab.json", "merges.txt"},
    {"vocab.txt"},
    {"spiece.model"},
    {"tekken.json"},
    {"tiktoken.model"},
)
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")
_SUFFIXES = {".json", ".jinja", ".txt", ".model"}


def model_files_of(model_dir: Path, tokenizer: bool = True) -> list[Path]:
    """The files of a Hugging Face model directory that an engine needs beside the weights.

    Raises UserError without a config.json, or without a tokenizer unless `tokenizer` is False.
    """
    found = [model_dir / name for name in KNOWN if (model_dir / name).is_file()]
    names = {file.name for file in found}
    if "config.json" not in names:
        raise UserError(
            f"model directory {str(model_dir)!r} has no config.json; give a directory written by "
            "save_pretrained"
        )
    if tokenizer and not any(needed <= names for needed in _TOKENIZERS):
        raise UserError(
            f"model directory {str(model_dir)!r} has no tokenizer (tokenizer.json or a like file); save the "
            "tokenizer there with save_pretrained"
        )
    return found


def harmless(name: str) -> bool:
    """Whether a file of this name may go into a model directory: text or a vocabulary; no path, no code."""
    return bool(_NAME.fullmatch(name)) and Path(name).suffix in _SUFFIXES
