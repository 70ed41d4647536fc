"""Reads a configuration: TOML, then `--set` overrides, then the checks. Called by every command."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from echo2.config.errors import as_user_error
from echo2.config.model import Config
from echo2.config.overrides import apply
from echo2.errors import UserError


@dataclass(frozen=True)
class LoadedConfig:
    """A checked configuration, where relative paths in it start, and what to call it in messages."""

    config: Config
    base_dir: Path
    source: str


def load(path: Path, overrides: Sequence[str] = ()) -> LoadedConfig:
    """The configuration of a file with `key.path=value` overrides. Any mistake: UserError, one line."""
    return LoadedConfig(parse(read_table(path), str(path), overrides), path.parent, str(path))


def read_table(path: Path) -> dict[str, Any]:
    """The TOML of a file as it stands. Missing, unreadable or not TOML: UserError."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; `echo2 init {path}` writes one") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text (byte {error.start}); save it as UTF-8") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); give a readable TOML file") from None
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path}: not TOML: {error}; texts need quotes, sections [brackets]") from None


def parse(table: dict[str, Any], source: str, overrides: Sequence[str] = ()) -> Config:
    """A table of the TOML form as a `Config`; `source` is what messages call it."""
    table, overridden = apply(table, overrides)
    try:
        return Config.model_validate(table)
    except ValidationError as error:
        raise as_user_error(error, source, overridden, table) from None
