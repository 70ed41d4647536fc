"""Writing results: JSON alone on stdout, files whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from echo2.errors import UserError


def print_json(data: Any) -> None:
    """One JSON document on standard output."""
    sys.stdout.write(json.dumps(data, indent=2, allow_nan=False, default=str) + "\n")
    sys.stdout.flush()


def usd_text(usd: float, places: int = 3) -> str:
    """An amount with so many places, or, where these would show nothing of it, with two digits."""
    return f"{usd:.{places}f}" if usd == 0 or abs(usd) >= 5 * 10.0**-places else f"{usd:.2g}"


def warn(message: str) -> None:
    """One line on standard error."""
    sys.stderr.write(f"warning: {' '.join(message.split())}\n")


def write_file(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a temporary neighbour, then rename it to `path`.

    A device or pipe is written to directly. What cannot be written: UserError, and no file is left.
    """
    with _writing(path):
        if path.exists() and not path.is_file():
            if path.is_dir():
                raise UserError(f"{path}: is a folder; give the name of a file")
            write(path)
            return
        part = path.with_name(f".{path.name}.{os.getpid()}.part{path.suffix}")
        try:
            write(part)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file, whole or not at all."""
    write_file(path, lambda part: _put(part, text))


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A temporary folder that becomes `path` when the block ends well, and is removed otherwise.

    A folder that has something in it is refused.
    """
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UserError(f"{path}: exists already; give a new folder, or remove it first")
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    with _writing(path):
        part.mkdir(parents=True)
        try:
            yield part
            if path.exists():
                path.rmdir()
            part.replace(path)
        except UserError as error:  # the user has never seen the temporary folder
            raise type(error)(str(error).replace(str(part), str(path))) from None
        finally:
            shutil.rmtree(part, ignore_errors=True)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise unwritable(path, error) from None


def unwritable(path: Path, error: OSError) -> UserError:
    """That an output cannot be written: a folder that is missing, a disk that is full, or what it is."""
    if error.errno == errno.ENOENT and not path.absolute().parent.exists():
        return UserError(f"{path}: the folder {path.parent} does not exist; make it, or choose another")
    return UserError(f"{path}: cannot be written ({error.strerror or error}); {remedy(error)}")


def remedy(error: OSError) -> str:
    """What to do about an output that cannot be written."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return "free some space, or choose another place" if full else "choose another place"


def _put(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as stream:
        stream.write(text)
