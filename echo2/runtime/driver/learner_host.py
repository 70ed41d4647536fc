"""The learner in a thread of its own: claims a batch, trains, commits, checkpoints, copies weights out.

Called by the live world. One job at a time; torch gives the interpreter up while it computes, so the event
loop goes on answering workers. Under `torchrun` the other processes are told to do the same at the same time.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from echo2.config import Train
from echo2.errors import UserError
from echo2.runtime import vector_maths
from echo2.runtime.data.ledger import Ledger
from echo2.runtime.driver import torchrun
from echo2.runtime.driver.orders import Order, OrderName
from echo2.runtime.driver.setup import first_line
from echo2.runtime.driver.torchrun import LostRankError
from echo2.runtime.learning import checkpoint
from echo2.runtime.learning.learner import Learner
from echo2.runtime.learning.metrics import StepMetrics
from echo2.runtime.learning.sampling import Sampling
from echo2.runtime.learning.settings import LearnerSettings
from echo2.runtime.learning.weights import whole_weights

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True)
class Step:
    """A finished step: its metrics, the weights to publish (None: not this time), seconds by part."""

    metrics: StepMetrics
    weights: dict[str, Tensor] | None
    lengths: tuple[int, ...]
    seconds: float
    claim_s: float
    checkpoint_s: float


class LearnerHost:
    """Model, optimiser and ledger claims. Blocking; not for the event loop."""

    def __init__(
        self, train: Train, model_dir: Path, max_tokens: int, checkpoints: Path, staleness_bound: int
    ) -> None:
        """Load the model, on the GPU where there is one. Raises UserError for a model that cannot be had.

        Under torchrun this is the first process, and waits for the others.
        """
        where = torchrun.place()
        self._team = torchrun.Team(where) if where else None
        self.learner = made_learner(train, model_dir, max_tokens, where)
        self.vocab_size = int(self.learner.model.config.vocab_size)
        self._train, self._run, self._bound = train, checkpoints, staleness_bound
        self._saved = -1
        self._sound = True
        self.passed_over: list[str] = []

    @property
    def version(self) -> int:
        """Optimiser steps the weights have seen."""
        return self.learner.version

    def resume(self) -> dict[str, Any]:
        """Load the newest checkpoint that is whole; returns the state kept with it.

        Damaged ones after it are put aside, so that they are not counted among the kept, and told in
        `passed_over`. Raises UserError, of the newest, where none can be loaded: then all stay as they are.
        """
        found = self.checkpoints()
        if not found:
            raise UserError(f"{self._run}: no checkpoint is there to resume from; start the run anew")
        troubles: list[tuple[Path, UserError]] = []
        for path in found:
            try:
                with self._together("load", path=str(path.absolute())):
                    state = checkpoint.load(self.learner, path)
            except LostRankError:
                raise
            except UserError as error:
                troubles.append((path, error))
                continue
            self._saved = self.version
            for damaged, trouble in troubles:
                with contextlib.suppress(OSError):
                    damaged.rename(damaged.with_name(f"damaged-{damaged.name}.{time.time_ns()}"))
                self.passed_over.append(str(trouble))
            return state
        raise troubles[0][1]

    def checkpoints(self) -> list[Path]:
        """The checkpoints there are, newest first."""
        return sorted(self._run.glob("version-*"), reverse=True)

    def step(self, ledger: Ledger, version: int, groups: Sequence[int], publish: bool) -> Step:
        """Train on the claimed groups, in the order of their prompts, and commit.

        Whatever fails before the commit leaves the claim released and the ledger as it was. The weights are
        then saved no more if they may have changed: a checkpoint never runs ahead of the ledger.
        """
        began = time.perf_counter()
        rollouts = ledger.claim(version, groups, self._bound)
        # The order of arrival is chance; with the prompts' order the same batch gives the same bits.
        rollouts.sort(key=lambda rollout: (rollout.prompt, rollout.attempt, rollout.index))
        claim_s = time.perf_counter() - began
        try:
            with self._together("step", rollouts=rollouts):
                metrics = self.learner.step(rollouts)
        except BaseException as error:
            # UserError is raised before anything is changed, so says the learner.
            self._sound = isinstance(error, UserError) and not isinstance(error, LostRankError)
            with contextlib.suppress(UserError):  # a resumed run frees the claim as well
                ledger.release(version)
            raise
        self._sound = False
        ledger.commit(version, self.version)
        self._sound = True
        weights = self.weights() if publish else None
        return Step(
            metrics=metrics,
            weights=weights,
            lengths=tuple(rollout.generated for rollout in rollouts),
            seconds=time.perf_counter() - began,
            claim_s=claim_s,
            checkpoint_s=0.0,
        )

    def weights(self) -> dict[str, Tensor]:
        """A copy of the weights in the dtype they are published in."""
        kind = getattr(torch, self._train.snapshot_dtype)
        with self._together("weights"):
            weights = whole_weights(self.learner.model)
        return {name: t.detach().to("cpu", kind, copy=True) for name, t in weights.items()}

    def save(self, state: Mapping[str, Any]) -> float:
        """Write a checkpoint unless this version has one; keeps the newest few. Returns the seconds.

        Raises UserError when the disk cannot take it, or after a step that failed halfway.
        """
        began = time.perf_counter()
        if self.version != self._saved:
            if not self._sound:
                raise UserError(
                    f"version {self.version} is the result of a step that failed before it was recorded; the "
                    f"checkpoint of version {self._saved} stands"
                )
            with self._together("save", path=str(self._run.absolute())):
                checkpoint.save(self.learner, self._run, state)
            self._saved = self.version
            for old in self.checkpoints()[self._train.keep_checkpoints :]:
                shutil.rmtree(old, ignore_errors=True)
        return time.perf_counter() - began

    def on_loss(self, tell: Callable[[LostRankError], object]) -> None:
        """Under torchrun: `tell` is called, in another thread, when one of the other processes goes."""
        if self._team is not None:
            self._team.on_loss(tell)

    def lost(self) -> LostRankError | None:
        """Under torchrun: the error where one of the other processes has gone."""
        return self._team.lost() if self._team else None

    def close(self) -> None:
        """Let the other processes of torchrun go."""
        if self._team is not None:
            self._team.close()

    def _together(self, order: OrderName, **what: Any) -> AbstractContextManager[None]:
        if self._team is None:
            return contextlib.nullcontext()
        return self._team.together(Order(name=order, **what))


def made_learner(
    train: Train, model_dir: Path, max_tokens: int, where: torchrun.Place | None = None
) -> Learner:
    """The learner of a configuration, from the model's directory; this process's share of it at a place.

    Raises UserError for a model that cannot be had.
    """
    if train.threads:
        torch.set_num_threads(train.threads)

    def loaded() -> PreTrainedModel:
        if where is None:
            return load_model(model_dir)
        from echo2.runtime.learning.fsdp import shard

        return shard(load_model(model_dir))

    reference = loaded() if train.kl_coefficient > 0 else None
    return Learner(loaded(), learner_settings(train, max_tokens), reference=reference)


def load_model(path: Path) -> PreTrainedModel:
    """A causal language model in float32, on the GPU where there is one."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    vector_maths.settle()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, local_files_only=True)
    except Exception as error:  # whatever the loaders of a damaged or foreign file raise
        reason = first_line(error)
        raise UserError(
            f"train.model = {str(path)!r}: no model can be loaded from it ({reason}); give a directory that "
            "save_pretrained wrote"
        ) from error
    if torch.cuda.is_available():
        torch.nn.Module.to(model, "cuda")
    loaded: PreTrainedModel = model
    return loaded


def learner_settings(train: Train, max_tokens: int) -> LearnerSettings:
    """The learner's settings of a configuration."""
    return LearnerSettings(
        learning_rate=train.learning_rate,
        warmup_steps=train.warmup_steps,
        weight_decay=train.weight_decay,
        max_grad_norm=train.max_grad_norm,
        advantage=train.advantage,
        aggregation=train.aggregation,
        max_tokens=max_tokens,
        clip_low=train.clip_low,
        clip_high=train.clip_high,
        kl_coefficient=train.kl_coefficient,
        ratio_to=train.ratio_to,
        weight=train.weight,
        weight_cap=train.weight_cap,
        token_budget=train.token_budget,
        sampling=Sampling(train.temperature, train.top_k, train.top_p),
    )
