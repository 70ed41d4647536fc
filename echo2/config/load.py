"""Reads a configuration: TOML, then `--set` overrides, then the checks. Called by every command."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from echo2.config.errors import as_user_error, blamed
from echo2.config.model import Config
from echo2.config.overrides import apply
from echo2.errors import UserError


@dataclass(frozen=True)
class LoadedConfig:
    """A checked configuration, where relative paths in it start, and what to call it in messages.

    `overridden` maps key paths to the command-line option that set them.
    """

    config: Config
    base_dir: Path
    source: str
    overridden: Mapping[str, str] = field(default_factory=dict)

    def blame(self, message: str) -> str:
        """A message that begins with a key, after the option that set the key, or else the file."""
        return blamed(message, self.source, self.overridden)


def load(path: Path, overrides: Sequence[str] = ()) -> LoadedConfig:
    """The configuration of a file with `key.path=value` overrides. Any mistake: UserError, one line."""
    return checked(read_table(path), path, overrides)


def read_table(path: Path) -> dict[str, Any]:
    """The TOML of a file as it stands. Missing, unreadable or not TOML: UserError."""
    try:
        text = path.read_text(encoding="utf-8-sig")  # with or without the mark of Windows
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; `echo2 init {path}` writes one") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text (byte {error.start}); save it as UTF-8") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); give a readable TOML file") from None
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise UserError(f"{path}: not TOML of ours: lists too deep in one another") from None
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path}: not TOML: {error}; texts need quotes, sections [brackets]") from None


def parse(table: dict[str, Any], source: str, overrides: Sequence[str] = ()) -> Config:
    """A table of the TOML form as a `Config`; `source` is what messages call it."""
    return _parsed(table, source, overrides, ())[0]


def checked(
    table: dict[str, Any], path: Path, overrides: Sequence[str] = (), grid: Sequence[str] = ()
) -> LoadedConfig:
    """A table read from `path`, changed by the overrides of `--set`, then by those of a sweep's `--grid`."""
    config, overridden = _parsed(table, str(path), overrides, grid)
    return LoadedConfig(config, path.parent, str(path), overridden)


def _parsed(
    table: dict[str, Any], source: str, overrides: Sequence[str], grid: Sequence[str]
) -> tuple[Config, dict[str, str]]:
    table, by_set = apply(table, overrides)
    table, by_grid = apply(table, grid, "--grid")
    overridden = {**by_set, **by_grid}
    try:
        return Config.model_validate(table), overridden
    except ValidationError as error:
        raise as_user_error(error, source, overridden, table) from None
