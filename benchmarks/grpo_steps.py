"""Real GRPO steps of a small model on rollouts that it samples itself. Used by `delta_ratio`."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from echo2.runtime.data.encode import encode_prompt
from echo2.runtime.data.rollout import Rollout
from echo2.runtime.data.task import SingleTurn
from echo2.runtime.delta.layout import Bytes
from echo2.runtime.learning.learner import Learner
from echo2.runtime.learning.settings import LearnerSettings
from echo2.runtime.learning.testing import make_rollout
from echo2.runtime.learning.weights import whole_weights

TRIES = 10


@dataclass(frozen=True)
class Subject:
    """A model with a task it partly solves.

    `spread`: its float32 weights come from coarser ones, so put them anywhere between two bf16 values, as
    trained ones are.
    """

    name: str
    folder: Path
    task: SingleTurn
    groups: int
    group_size: int
    max_tokens: int
    spread: bool = False


class NothingToLearn(Exception):  # noqa: N818
    """A model that was trained to pieces: no group's rewards differ any more."""


class Actor:
    """The learner and its own sampler: one GRPO step after another."""

    def __init__(self, subject: Subject, seed: int, device: str) -> None:
        torch.manual_seed(seed)
        self.subject = subject
        self.tokenizer = AutoTokenizer.from_pretrained(subject.folder)
        model = AutoModelForCausalLM.from_pretrained(subject.folder, dtype=torch.float32)
        model.to(device)  # type: ignore[arg-type]
        if subject.spread:
            spread(model)
        self.learner = Learner(model, LearnerSettings())
        self._group = 0

    def step(self, rate: float) -> tuple[float, float]:
        """Sample, train once; (mean reward, gradient norm)."""
        self.learner.settings = dataclasses.replace(self.learner.settings, learning_rate=rate)
        metrics = self.learner.step(self._rollouts())
        return metrics.reward_mean, metrics.grad_norm or 0.0

    def _rollouts(self) -> list[Rollout]:
        """Groups whose rewards differ, as many as a step takes: others would move nothing."""
        chosen: list[Rollout] = []
        for _ in range(TRIES * self.subject.groups):
            group = self._sampled()
            if len({rollout.reward for rollout in group}) > 1:
                chosen += group
            if len(chosen) == self.subject.groups * self.subject.group_size:
                return chosen
        raise NothingToLearn(f"{self.subject.name} earns the same reward whatever it samples")

    @torch.no_grad()
    def _sampled(self) -> list[Rollout]:
        """One group at temperature 1, up to the end of the sequence."""
        subject, self._group = self.subject, self._group + 1
        prompt = subject.task.prompt(self._group)  # type: ignore[attr-defined]
        prompt_ids = encode_prompt(self.tokenizer, prompt, "plain")
        ids = torch.tensor([list(prompt_ids)] * subject.group_size, device=self.learner.model.device)
        out = self.learner.model.generate(  # type: ignore[operator]
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            repetition_penalty=1.0,
            max_new_tokens=subject.max_tokens,
            return_dict_in_generate=True,
            output_scores=True,
        )
        chosen = out.sequences[:, ids.shape[1] :]
        scores = torch.stack(out.scores, dim=1).log_softmax(dim=-1)
        logprobs = scores.gather(-1, chosen[:, :, None])[:, :, 0]
        rollouts = []
        for index, (tokens, probabilities) in enumerate(zip(chosen.tolist(), logprobs.tolist())):
            ends = tokens.index(self.tokenizer.eos_token_id) + 1 if self._ends(tokens) else len(tokens)
            text = self.tokenizer.decode(tokens[:ends], skip_special_tokens=True)
            reward = subject.task.reward(prompt, text)  # type: ignore[attr-defined]
            made = make_rollout(
                self._group,
                index,
                tokens[:ends],
                reward,
                prompt_ids=prompt_ids,
                logprobs=probabilities[:ends],
                version=self.learner.version,
            )
            rollouts.append(made)
        return rollouts

    def _ends(self, tokens: list[int]) -> bool:
        return self.tokenizer.eos_token_id in tokens

    def published(self, dtype: torch.dtype) -> dict[str, Bytes]:
        """Every tensor's bytes in a dtype, a copy."""
        return {
            name: tensor.to(dtype, copy=True).reshape(-1).view(torch.uint8).numpy()
            for name, tensor in whole_weights(self.learner.model).items()
        }

    def save(self, path: Path) -> None:
        """Weights and optimiser to a file."""
        learner = self.learner
        torch.save((learner.model.state_dict(), learner.optimizer.state_dict(), learner.version), path)

    def restore(self, path: Path) -> None:
        """Back to what was saved."""
        learner = self.learner
        saved = torch.load(path, mmap=True, weights_only=True, map_location="cpu")
        weights, optimizer, learner.version = saved
        learner.model.load_state_dict(weights)
        learner.optimizer.load_state_dict(optimizer)


@torch.no_grad()
def spread(model: torch.nn.Module) -> None:
    """Move every weight by up to half the distance of bf16 values, evenly."""
    for weight in model.parameters():
        unit = torch.exp2(weight.abs().clamp_min(1e-30).log2().floor() - 7)
        weight.add_((torch.rand_like(weight) - 0.5) * unit)
