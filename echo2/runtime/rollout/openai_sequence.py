"""One rollout of the openai engine: how it is asked for on either route, and what has come of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from echo2.runtime.data.rollout import Segment
from echo2.runtime.rollout.openai_endpoint import EndpointError, Piece
from echo2.runtime.rollout.request import GeneratedRollout, GroupRequest, rollout_seed

FINISH_REASONS = ("stop", "length", "abort")


@dataclass(slots=True)
class Sequence:
    """A rollout as far as it has come. `began`: the version it was asked for under."""

    request: GroupRequest
    index: int
    began: int
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    later: list[Segment] = field(default_factory=list)
    finish_reason: str | None = None

    def tokens_body(self, model: str) -> dict[str, Any]:
        """The request on vLLM's tokens route."""
        return {
            "model": model,
            "token_ids": list(self.request.prompt_ids),
            "sampling_params": {**self._sampling(), "detokenize": False},
            "cache_salt": self._salt(),
        }

    def completion_body(self, model: str) -> dict[str, Any]:
        """The request on the completions route."""
        return {
            **self._sampling(),
            "model": model,
            "prompt": list(self.request.prompt_ids),
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            "cache_salt": self._salt(),
        }

    def add(self, piece: Piece) -> None:
        """Append what a stream has brought. Raises EndpointError for more tokens than were asked for."""
        most, count = self.request.sampling.max_tokens, len(self.token_ids) + len(piece.token_ids)
        if count > most:
            raise EndpointError(
                f"the endpoint gave a rollout {count} tokens where {most} were asked for; use one that "
                "keeps to max_tokens, such as vLLM"
            )
        self.token_ids += piece.token_ids
        self.logprobs += piece.logprobs
        self.finish_reason = piece.finish_reason or self.finish_reason

    def whole(self, piece: Piece) -> None:
        """Take a whole completion with its labels. Raises EndpointError for a label that is no version."""
        self.add(piece)
        try:
            segments = [Segment(at, int(version)) for at, version in piece.spans]
        except ValueError as error:
            raise EndpointError(
                f"the endpoint labels tokens {piece.spans}, not with versions this worker has set; one "
                "worker an endpoint"
            ) from error
        if segments:
            self.began, self.later = segments[0].version, segments[1:]

    def swapped(self, version: int) -> None:
        """What comes from now on is of `version`; a first token not seen yet counts as the older one's."""
        at = max(1, len(self.token_ids))
        self.later = [s for s in self.later if s.start < at] + [Segment(at, version)]

    def rollout(self) -> GeneratedRollout:
        """The finished rollout. Raises EndpointError for a finish reason that is none of ours."""
        if self.finish_reason not in FINISH_REASONS:
            raise EndpointError(f"the endpoint ended a rollout with {self.finish_reason!r}; see its log")
        segments = (Segment(0, self.began), *self.later)
        return GeneratedRollout(
            self.request.group_id,
            self.index,
            tuple(self.token_ids),
            tuple(self.logprobs),
            tuple(s for s in segments if s.start < len(self.token_ids)),
            str(self.finish_reason),
        )

    def _salt(self) -> str:
        """A prefix cached by other weights is never used."""
        return f"echo2-{self.began}"

    def _sampling(self) -> dict[str, Any]:
        sampling = self.request.sampling
        return {
            "temperature": sampling.distribution.temperature,
            "top_p": sampling.distribution.top_p,
            "top_k": sampling.distribution.top_k,
            "max_tokens": sampling.max_tokens,
            "stop_token_ids": list(sampling.stop_token_ids),
            "ignore_eos": True,  # only the request's own stop ids end a rollout, as in every engine
            "seed": rollout_seed(sampling.seed, self.index),
            "logprobs": 0,
        }
