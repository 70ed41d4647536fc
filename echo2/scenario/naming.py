"""Says which key of the configuration an error comes from. Used all over this package."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from echo2.errors import InfeasibleError, UserError


@contextmanager
def key(path: str, value: object) -> Iterator[None]:
    """A UserError raised inside gets `path = value: ` in front of it."""
    try:
        yield
    except InfeasibleError:
        raise
    except UserError as error:
        raise UserError(f"{path} = {value!r}: {error}") from None


@contextmanager
def source(name: str) -> Iterator[None]:
    """A UserError raised inside gets the configuration's name in front of it."""
    try:
        yield
    except InfeasibleError:
        raise
    except UserError as error:
        raise UserError(f"{name}: {error}" if name else str(error)) from None


def resolved(id_or_path: str, base_dir: Path) -> str:
    """A trace's id as it stands; a path counted from the folder of the configuration."""
    path, hash_, series = id_or_path.partition("#")
    if "/" in path or path.endswith((".csv", ".csv.gz")):
        return f"{base_dir / path}{hash_}{series}"
    return id_or_path
