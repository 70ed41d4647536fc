"""The simulated engine: sleeps as long as a measured profile says generation takes, and computes nothing.

For load tests of the control plane: hundreds fit in one process. Sequences share the worker as in the
simulator, so a rollout costs two events, not one for each token. Tokens and lengths follow from the seed.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from echo2.errors import UserError
from echo2.policy.generation import DecodeModel, TokenLengths
from echo2.runtime.data.rollout import Segment
from echo2.runtime.rollout.engine import EngineError, SwapMode, SwapReport, Weights
from echo2.runtime.rollout.frame import EngineFrame
from echo2.runtime.rollout.request import EngineLimits, GeneratedRollout, GroupRequest, rollout_seed
from echo2.runtime.rollout.sharing import Sequence, SharedWorker


@dataclass(frozen=True)
class SimulatedSettings:
    """Settings of the simulated engine.

    `decode` and `lengths` are the worker's profile; `max_running` sequences at a time. `time_scale`
    simulated seconds pass in one real second. A swap pauses for `swap_s` simulated seconds.
    """

    decode: DecodeModel
    lengths: TokenLengths
    max_running: int = 64
    time_scale: float = 1.0
    swap_s: float = 0.0
    first_version: int = 0
    limits: EngineLimits = field(default_factory=lambda: EngineLimits(32_000, 32_768))
    swap: SwapMode = SwapMode.KEEP

    def __post_init__(self) -> None:
        if self.max_running < 1:
            raise UserError(f"engine max_running is {self.max_running}; it must be at least 1")
        if not (math.isfinite(self.time_scale) and self.time_scale > 0):
            raise UserError(f"engine time_scale is {self.time_scale}; it must be above 0, 1 for real time")
        if not (math.isfinite(self.swap_s) and self.swap_s >= 0):
            raise UserError(f"engine swap_s is {self.swap_s}; it must be 0 or more seconds")


class SimulatedEngine(EngineFrame):
    """`Engine` that only sleeps. See `echo2.runtime.rollout.engine.Engine` for the contract.

    Weights are not looked at: give any path. Every other part of the contract holds.
    """

    def __init__(self, settings: SimulatedSettings) -> None:
        super().__init__(settings.first_version, settings.limits, settings.swap)
        self._settings = settings
        self._worker = SharedWorker(settings.decode, settings.max_running)
        self._admitting = True
        self._frozen = False
        self._wake = asyncio.Event()
        self._emptied = asyncio.Event()
        self._loop: asyncio.Task[None] | None = None
        self._began = 0.0

    async def start(self) -> None:
        """Begin to accept groups."""
        self._come_alive()
        self._began = time.monotonic()
        self._loop = asyncio.create_task(self._run(), name="echo2-simulated-engine")

    async def generate(self, request: GroupRequest) -> AsyncGenerator[GeneratedRollout, None]:
        """Each rollout of the group when its time is up."""
        stream = self._admit(request)
        self._let_time_pass()
        self._worker.waiting.extend(self._sequence(request, index) for index in range(request.rollouts))
        self._wake.set()
        try:
            async for rollout in stream:
                yield rollout
        finally:
            await stream.aclose()
            self._drop_unwanted()

    async def update_weights(
        self, version: int, weights: Weights, mode: SwapMode | None = None
    ) -> SwapReport:
        """Take on `version` after `swap_s`; `weights` is not read."""
        async with self._update(version, mode) as how:
            began = time.monotonic()
            self._let_time_pass()
            self._admitting = False
            try:
                if how is SwapMode.WAIT:
                    await self._drain()
                elif how is SwapMode.ABORT:
                    self._abort()
                self._frozen = True
                await asyncio.sleep(self._settings.swap_s / self._settings.time_scale)
                self._check_alive()
                self._take_on(version)
            finally:
                self._worker.skip_to(self._now_s())
                self._admitting, self._frozen = True, False
                self._wake.set()
            return SwapReport(version, 0.0, time.monotonic() - began)

    async def cancel(self, group_id: int) -> None:
        """End a group's stream and free its places."""
        self._streams.end(group_id)
        self._drop_unwanted()

    async def stop(self) -> None:
        """End the loop; running streams raise EngineError."""
        self._fail(EngineError("the engine was stopped"))
        self._wake.set()
        self._emptied.set()
        if self._loop is not None:
            await asyncio.gather(self._loop, return_exceptions=True)

    async def _run(self) -> None:
        try:
            await self._sleep_on()
        except Exception as error:
            self._fail(EngineError(f"the engine failed while generating: {error!r}"))
            self._emptied.set()

    async def _sleep_on(self) -> None:
        """Sleep until the next rollout ends, or something changes."""
        while self._dead is None:
            self._wake.clear()
            self._let_time_pass()
            if not self._worker.running:
                self._emptied.set()
            end_s = None if self._frozen else self._worker.next_end_s()
            wait_s = None if end_s is None else (end_s - self._now_s()) / self._settings.time_scale
            try:
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()
            except TimeoutError:
                pass

    def _let_time_pass(self) -> None:
        if self._frozen or self._dead is not None:
            return
        for sequence in self._worker.advance(self._now_s(), self._version, self._admitting):
            reason = "length" if sequence.tokens >= sequence.request.sampling.max_tokens else "stop"
            self._streams.deliver(sequence.request, self._rollout(sequence, sequence.tokens, reason))

    async def _drain(self) -> None:
        while self._worker.running:
            self._emptied.clear()
            self._wake.set()
            await self._emptied.wait()
            self._check_alive()

    def _abort(self) -> None:
        """End what runs; what has made no token waits again."""
        running = self._worker.running
        self._worker.remove({id(sequence) for sequence in running})
        for sequence in running:
            if made := self._worker.made(sequence):
                self._streams.deliver(sequence.request, self._rollout(sequence, made, "abort"))
            else:
                self._worker.waiting.appendleft(sequence)

    def _take_on(self, version: int) -> None:
        self._version = version
        for sequence in self._worker.running:
            made = self._worker.made(sequence)
            kept = [s for s in sequence.segments if s.start < made]
            sequence.segments = [*kept, Segment(made, version)]

    def _drop_unwanted(self) -> None:
        self._let_time_pass()
        held = [*self._worker.running, *self._worker.waiting]
        self._worker.remove({id(s) for s in held if not self._streams.running(s.request)})
        self._wake.set()

    def _sequence(self, request: GroupRequest, index: int) -> Sequence:
        share = random.Random(rollout_seed(request.sampling.seed, index)).random()
        tokens = round(float(self._settings.lengths.quantile(share)))
        return Sequence(request, index, max(1, min(request.sampling.max_tokens, tokens)))

    def _rollout(self, sequence: Sequence, tokens: int, reason: str) -> GeneratedRollout:
        """The rollout with uniformly drawn tokens, each of log-prob -log V."""
        request, vocab = sequence.request, self.limits.vocab_size
        draws = random.Random(rollout_seed(request.sampling.seed, sequence.index))
        ids = tuple(draws.choices(range(vocab), k=tokens))
        segments = tuple(s for s in sequence.segments if s.start < tokens)
        return GeneratedRollout(
            request.group_id, sequence.index, ids, (-math.log(vocab),) * tokens, segments, reason
        )

    def _now_s(self) -> float:
        """Simulated seconds since the start."""
        return (time.monotonic() - self._began) * self._settings.time_scale
