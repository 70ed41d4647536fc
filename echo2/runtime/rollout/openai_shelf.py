"""Where the openai engine leaves snapshots for its endpoint: one directory a version, the newest kept."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from echo2.errors import UserError
from echo2.runtime.rollout.engine import WeightUpdateError
from echo2.runtime.rollout.weights import files_of


class Shelf:
    """Directory `place`, written here and read by the endpoint as `seen_as` ("": the same path)."""

    def __init__(self, place: Path, seen_as: str = "") -> None:
        self._place, self._seen_as = place.absolute(), seen_as.rstrip("/")

    def make(self) -> None:
        """Make the directory. Raises UserError."""
        try:
            self._place.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(
                f"--endpoint-weights {self._place}: cannot be used ({error.strerror or error}); give a "
                "directory that this worker can write and the endpoint can read"
            ) from error

    def put(self, version: int, weights: Path) -> Path:
        """The snapshot's files in a directory of their own: linked where possible, else copied.

        Raises WeightUpdateError when there is no room.
        """
        made = self._place / f"version-{version}"
        try:
            shutil.rmtree(made, ignore_errors=True)
            made.mkdir(parents=True)
            for file in files_of(weights):
                try:
                    os.link(file, made / file.name)
                except OSError:
                    shutil.copyfile(file, made / file.name)
        except OSError as error:
            raise WeightUpdateError(
                f"weights refused: {made}: {error.strerror or error}; free some space or choose another "
                "place with --endpoint-weights"
            ) from error
        return made

    def seen(self, made: Path) -> str:
        """`made` as the endpoint sees it."""
        return f"{self._seen_as}/{made.name}" if self._seen_as else str(made)

    def keep_only(self, made: Path) -> None:
        """Remove every other version."""
        for other in self._place.glob("version-*"):
            if other != made:
                shutil.rmtree(other, ignore_errors=True)
