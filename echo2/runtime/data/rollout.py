"""One rollout: the tokens a worker generated for a prompt, how likely they were, and on which versions.

Made by the rollout plane's engines, checked at the learner's door, kept by the ledger and read by the
learner. Plain tuples and numbers, so that it crosses process and machine borders as it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from echo2.errors import UserError

FINISH_REASONS = ("stop", "length", "abort")
# A log-probability is <= 0; engines that compute log_softmax in float32 overshoot by rounding.
LOGPROB_SLACK = 1e-4


@dataclass(frozen=True, slots=True)
class Segment:
    """From completion token `start` on, `version` generated the tokens. The first segment starts at 0."""

    start: int
    version: int


@dataclass(frozen=True, slots=True)
class Span:
    """Completion tokens `start` to `end` - 1: what an environment wrote between two turns of the model."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Rollout:
    """One completion of one prompt, or of several turns: then all that follows the prompt.

    `rollout_id` is "{group_id}:{index}", the same however often it is sent. `prompt` is the ordinal in the
    data set. `logprobs[i]` is log p(token_ids[i]) in nats under the distribution it was sampled from
    (temperature and truncation applied), and 0 in the spans of `environment`, which no policy chose: they
    are in the context and never in a loss or a statistic. Segments cover both, an environment's tokens
    belong to the one before. `reward` is nan until the data plane has judged it.
    """

    rollout_id: str
    group_id: int
    index: int
    prompt: int
    attempt: int
    worker_id: str
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    segments: tuple[Segment, ...]
    finish_reason: str
    reward: float = math.nan
    environment: tuple[Span, ...] = ()

    @property
    def tokens(self) -> int:
        """Completion tokens, the environment's among them."""
        return len(self.token_ids)

    @property
    def generated(self) -> int:
        """Tokens that the model generated: what lengths and rates count."""
        return generated_tokens(self.tokens, self.environment)

    @property
    def chosen(self) -> list[bool]:
        """For each completion token whether the policy chose it."""
        flags = [True] * self.tokens
        for span in self.environment:
            flags[span.start : span.end] = [False] * (span.end - span.start)
        return flags

    @property
    def oldest_version(self) -> int:
        """The oldest version that generated any of its tokens: what its staleness is counted from."""
        return min(segment.version for segment in self.segments)

    @property
    def newest_version(self) -> int:
        """The newest version that generated any of its tokens."""
        return max(segment.version for segment in self.segments)

    @property
    def judged(self) -> bool:
        """Whether a reward has been set."""
        return not math.isnan(self.reward)


def generated_tokens(tokens: int, environment: Sequence[Span]) -> int:
    """Tokens of a completion without those of the environment."""
    return tokens - sum(span.end - span.start for span in environment)


def rollout_id(group_id: int, index: int) -> str:
    """The id of the `index`-th rollout of a group."""
    return f"{group_id}:{index}"


def check(
    rollout: Rollout,
    vocab_size: int,
    max_tokens: int,
    max_prompt_tokens: int | None = None,
    newest_version: int | None = None,
) -> None:
    """Refuse a malformed rollout: UserError naming the rollout, the field and the value.

    `max_tokens` bounds the completion, `max_prompt_tokens` the prompt (tokens). `newest_version` is the
    newest version the learner has published: a worker cannot have generated with a later one.
    """
    _check_identity(rollout)
    limit = max_prompt_tokens if max_prompt_tokens is not None else len(rollout.prompt_ids)
    if not 1 <= len(rollout.prompt_ids) <= limit:
        raise _refused(rollout, "prompt_ids", f"{len(rollout.prompt_ids)} tokens", f"1 to {max(1, limit)}")
    if not 1 <= rollout.tokens <= max_tokens:
        raise _refused(rollout, "token_ids", f"{rollout.tokens} tokens", f"1 to {max_tokens}")
    if len(rollout.logprobs) != rollout.tokens:
        raise _refused(
            rollout, "logprobs", f"{len(rollout.logprobs)} values", f"one per token, {rollout.tokens}"
        )
    _check_ids(rollout, "prompt_ids", rollout.prompt_ids, vocab_size)
    _check_ids(rollout, "token_ids", rollout.token_ids, vocab_size)
    _check_logprobs(rollout)
    _check_segments(rollout, newest_version)
    _check_environment(rollout)
    if rollout.finish_reason not in FINISH_REASONS:
        raise _refused(rollout, "finish_reason", rollout.finish_reason, f"one of {', '.join(FINISH_REASONS)}")
    if not _is_real(rollout.reward) or math.isinf(rollout.reward):
        raise _refused(rollout, "reward", rollout.reward, "a finite number, or nan while it is not judged")


def _check_identity(rollout: Rollout) -> None:
    for name in ("group_id", "index", "prompt", "attempt"):
        value = getattr(rollout, name)
        if not _is_int(value) or value < 0:
            raise _refused(rollout, name, value, "a whole number >= 0")
    expected = rollout_id(rollout.group_id, rollout.index)
    if rollout.rollout_id != expected:
        raise _refused(rollout, "rollout_id", rollout.rollout_id, f"{expected!r} (group_id:index)")
    if not isinstance(rollout.worker_id, str) or not rollout.worker_id:
        raise _refused(rollout, "worker_id", rollout.worker_id, "a name")


def _check_ids(rollout: Rollout, name: str, ids: Sequence[int], vocab_size: int) -> None:
    # The whole tuple at once first: the door sees hundreds of rollouts a second, nearly all of them good.
    if set(map(type, ids)) == {int} and min(ids) >= 0 and max(ids) < vocab_size:
        return
    for place, token in enumerate(ids):
        if not _is_int(token) or not 0 <= token < vocab_size:
            raise _refused(rollout, f"{name}[{place}]", token, f"0 to {vocab_size - 1}, the vocabulary")


def _check_logprobs(rollout: Rollout) -> None:
    values = rollout.logprobs
    if set(map(type, values)) == {float} and max(values) <= LOGPROB_SLACK and math.isfinite(sum(values)):
        return
    for place, value in enumerate(values):
        if not (_is_real(value) and math.isfinite(value) and value <= LOGPROB_SLACK):
            raise _refused(rollout, f"logprobs[{place}]", value, "finite and <= 0")


def _check_segments(rollout: Rollout, newest_version: int | None) -> None:
    """Segments start at 0, ascend strictly, stay inside the completion; versions never go back."""
    if not rollout.segments or rollout.segments[0].start != 0:
        first = rollout.segments[0].start if rollout.segments else "none"
        raise _refused(rollout, "segments[0].start", first, "0")
    last = Segment(-1, 0)
    for place, segment in enumerate(rollout.segments):
        name = f"segments[{place}]"
        if not _is_int(segment.start) or not last.start < segment.start < rollout.tokens:
            raise _refused(
                rollout, f"{name}.start", segment.start, f"{last.start + 1} to {rollout.tokens - 1}"
            )
        if not _is_int(segment.version) or segment.version < last.version:
            raise _refused(
                rollout, f"{name}.version", segment.version, f">= {last.version}: versions never go back"
            )
        if newest_version is not None and segment.version > newest_version:
            raise _refused(
                rollout, f"{name}.version", segment.version, f"<= {newest_version}, the newest published"
            )
        last = segment


def _check_environment(rollout: Rollout) -> None:
    """Spans ascend with a turn of the model before, between and after them; their log-probs are 0."""
    last = 0
    for place, span in enumerate(rollout.environment):
        name = f"environment[{place}]"
        if not _is_int(span.start) or not last < span.start < rollout.tokens:
            raise _refused(rollout, f"{name}.start", span.start, f"{last + 1} to {rollout.tokens - 1}")
        if not _is_int(span.end) or not span.start < span.end < rollout.tokens:
            raise _refused(rollout, f"{name}.end", span.end, f"{span.start + 1} to {rollout.tokens - 1}")
        if any(rollout.logprobs[span.start : span.end]):
            raise _refused(rollout, f"{name}'s log-probs", "not 0", "0: no policy chose these tokens")
        last = span.end


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_real(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _refused(rollout: Rollout, name: str, value: object, allowed: str) -> UserError:
    shown = repr(value)
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    return UserError(
        f"rollout {str(rollout.rollout_id)[:80]!r}: {name} is {shown}, allowed is {allowed}; "
        "the worker sent something it cannot have generated, check its version of echo2 and its model"
    )
