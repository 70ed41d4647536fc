"""Rollouts as the ledger's columns, and back: token arrays as little-endian blobs with a checksum.

Called by `ledger` and `export`. float64 log-probs come back bit for bit, so that a resumed step trains on
exactly what the crashed one did.
"""

from __future__ import annotations

import math
import sys
import zlib
from array import array
from collections.abc import Sequence
from itertools import chain
from typing import Any

from echo2.errors import UserError
from echo2.runtime.data.rollout import Rollout, Segment, Span

# The columns a finished rollout fills, in the order of `pack`.
PAYLOAD_COLUMNS = (
    "oldest_version",
    "newest_version",
    "tokens",
    "finish_reason",
    "reward",
    "prompt_ids",
    "token_ids",
    "logprobs",
    "segments",
    "environment",
    "checksum",
)
IDENTITY_COLUMNS = ("rollout_id", "group_id", "idx", "prompt", "attempt", "worker_id")

Column = int | float | str | bytes | None


def pack(rollout: Rollout) -> tuple[Column, ...]:
    """The payload columns of a rollout. An unset reward becomes NULL."""
    blobs = (
        _bytes("i", rollout.prompt_ids),
        _bytes("i", rollout.token_ids),
        _bytes("d", rollout.logprobs),
        _bytes("q", tuple(chain.from_iterable((s.start, s.version) for s in rollout.segments))),
        _bytes("i", tuple(chain.from_iterable((s.start, s.end) for s in rollout.environment))),
    )
    reward = rollout.reward if math.isfinite(rollout.reward) else None
    return (
        rollout.oldest_version,
        rollout.newest_version,
        rollout.generated,
        rollout.finish_reason,
        reward,
        *blobs,
        _checksum(blobs),
    )


def unpack(row: Sequence[Any]) -> Rollout:
    """The rollout of a row of identity and payload columns. Raises UserError when the blobs were damaged."""
    rollout_id, group_id, index, prompt, attempt, worker_id, _, _, _, finish_reason, reward = row[:11]
    blobs = tuple(bytes(blob) for blob in row[11:16])
    if _checksum(blobs) != row[16]:
        raise UserError(
            f"ledger: rollout {rollout_id!r} does not match its checksum, the file was damaged on disk; "
            "restore it from a backup, or resume in a new run directory from the checkpoint alone"
        )
    flat, spans = _numbers("q", blobs[3]), _numbers("i", blobs[4])
    return Rollout(
        rollout_id=rollout_id,
        group_id=group_id,
        index=index,
        prompt=prompt,
        attempt=attempt,
        worker_id=worker_id,
        prompt_ids=tuple(_numbers("i", blobs[0])),
        token_ids=tuple(_numbers("i", blobs[1])),
        logprobs=tuple(_numbers("d", blobs[2])),
        segments=tuple(Segment(start, version) for start, version in zip(flat[::2], flat[1::2])),
        finish_reason=finish_reason,
        reward=math.nan if reward is None else reward,
        environment=tuple(Span(start, end) for start, end in zip(spans[::2], spans[1::2])),
    )


def _bytes(code: str, values: Sequence[float]) -> bytes:
    numbers: array[Any] = array(code, values)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def _numbers(code: str, blob: bytes) -> list[Any]:
    numbers: array[Any] = array(code)
    numbers.frombytes(blob)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tolist()


def _checksum(blobs: Sequence[bytes]) -> int:
    checksum = 0
    for blob in blobs:
        checksum = zlib.crc32(blob, checksum)
    return checksum
