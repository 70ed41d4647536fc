"""Which code made a result: the package's version and a digest of everything a result depends on."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

import echo2

PARTS = ("config", "policy", "scenario", "sim", "traces")


@lru_cache(maxsize=1)
def code_version() -> str:
    """For example 0.1.0+3f9ac2d41b70. Two results with the same one come from the same sources and data."""
    from echo2.traces import data_folder

    root = Path(echo2.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(path for part in PARTS for path in (root / part).rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + path.read_bytes())
    digest.update((data_folder() / "index.csv").read_bytes())
    return f"{echo2.__version__}+{digest.hexdigest()[:12]}"
