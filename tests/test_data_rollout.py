"""The check at the door: what a rollout may look like."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from echo2.errors import UserError
from echo2.runtime.data.packing import pack, unpack
from echo2.runtime.data.rollout import Rollout, Segment, check

GOOD = Rollout(
    rollout_id="7:2",
    group_id=7,
    index=2,
    prompt=3,
    attempt=0,
    worker_id="w0",
    prompt_ids=(4, 5),
    token_ids=(1, 2, 3),
    logprobs=(-0.1, 0.0, -1e300),
    segments=(Segment(0, 4), Segment(2, 6)),
    finish_reason="stop",
)


def test_a_sound_rollout_passes_and_knows_its_versions() -> None:
    """A sound rollout passes, and its staleness counts from the oldest version of its segments."""
    check(GOOD, vocab_size=6, max_tokens=3, max_prompt_tokens=2, newest_version=6)
    assert (GOOD.oldest_version, GOOD.newest_version, GOOD.tokens, GOOD.judged) == (4, 6, 3, False)


@pytest.mark.parametrize(
    ("change", "field", "value"),
    [
        ({"rollout_id": "7:3"}, "rollout_id", "7:3"),
        ({"group_id": -1, "rollout_id": "-1:2"}, "group_id", "-1"),
        ({"prompt": True}, "prompt", "True"),
        ({"worker_id": ""}, "worker_id", "''"),
        ({"prompt_ids": ()}, "prompt_ids", "0 tokens"),
        ({"prompt_ids": (1, 2, 3)}, "prompt_ids", "3 tokens"),
        ({"prompt_ids": (4, 6)}, "prompt_ids[1]", "6"),
        ({"token_ids": ()}, "token_ids", "0 tokens"),
        ({"token_ids": (1, 2, 3, 4)}, "token_ids", "4 tokens"),
        ({"token_ids": (1, 2, 6)}, "token_ids[2]", "6"),
        ({"token_ids": (1, -2, 3)}, "token_ids[1]", "-2"),
        ({"token_ids": (1, 2.0, 3)}, "token_ids[1]", "2.0"),
        ({"logprobs": (-1.0, -1.0)}, "logprobs", "2 values"),
        ({"logprobs": (-1.0, 0.01, -1.0)}, "logprobs[1]", "0.01"),
        ({"logprobs": (math.nan, -1.0, -1.0)}, "logprobs[0]", "nan"),
        ({"logprobs": (-1.0, -1.0, -math.inf)}, "logprobs[2]", "-inf"),
        ({"logprobs": (-1.0, None, -1.0)}, "logprobs[1]", "None"),
        ({"segments": ()}, "segments[0].start", "none"),
        ({"segments": (Segment(1, 4),)}, "segments[0].start", "1"),
        ({"segments": (Segment(0, 4), Segment(0, 5))}, "segments[1].start", "0"),
        ({"segments": (Segment(0, 4), Segment(3, 5))}, "segments[1].start", "3"),
        ({"segments": (Segment(0, 4), Segment(1, 3))}, "segments[1].version", "3"),
        ({"segments": (Segment(0, -1),)}, "segments[0].version", "-1"),
        ({"segments": (Segment(0, 7),)}, "segments[0].version", "7"),
        ({"finish_reason": "tired"}, "finish_reason", "tired"),
        ({"reward": math.inf}, "reward", "inf"),
        ({"reward": "1"}, "reward", "'1'"),
    ],
)
def test_a_malformed_rollout_is_refused_by_name(change: dict[str, Any], field: str, value: str) -> None:
    """Each malformed field is refused by an error that names the rollout, the field and the value."""
    bad = replace(GOOD, **change)
    with pytest.raises(UserError) as caught:
        check(bad, vocab_size=6, max_tokens=3, max_prompt_tokens=2, newest_version=6)
    message = str(caught.value)
    assert f"{bad.rollout_id!r}: {field} is " in message
    assert value in message


def test_packing_returns_the_same_rollout() -> None:
    """A rollout comes back from its columns bit for bit, unset reward included."""
    identity = (GOOD.rollout_id, GOOD.group_id, GOOD.index, GOOD.prompt, GOOD.attempt, GOOD.worker_id)
    back = unpack([*identity, *pack(GOOD)])
    assert math.isnan(back.reward)
    assert replace(back, reward=0.0) == replace(GOOD, reward=0.0)


def test_a_damaged_blob_is_noticed() -> None:
    """A token that changed on disk is refused by an error that names the rollout."""
    columns = list(pack(GOOD))
    columns[6] = bytes([9]) + bytes(columns[6])[1:]  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"7:2.*checksum"):
        unpack(["7:2", 7, 2, 3, 0, "w0", *columns])
