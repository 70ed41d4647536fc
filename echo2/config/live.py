"""The [train] section: what a live run needs beyond the plan. `plan` and `simulate` ignore it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from echo2.config.sections import Section, Text

Positive = Annotated[float, Field(gt=0, le=1e9)]


class Train(Section):
    """The live run: model, task, learning and the learner's host (`echo2 train`)."""

    model: Text | None = None
    """Hugging Face model directory (weights, tokenizer); a relative path starts at this file's folder."""
    task: Text = "digit_sort"
    """The task: digit_sort, addition, poker, reasoning_gym:NAME, math:FILE, or one a package adds."""
    task_options: dict[str, Any] = Field(default_factory=dict)
    """Options of the task (seed, split, ...)."""
    template: Literal["auto", "chat", "plain"] = "auto"
    """Whether prompts go through the tokenizer's chat template; auto: where there is one."""
    max_prompt_tokens: int = Field(default=1024, ge=1, le=1_000_000)
    """Longer prompts are left out; with rollout.max_tokens this is the context engines are started with."""
    temperature: float = Field(default=1.0, gt=0, le=10)
    """Sampling temperature; behaviour log-probs are taken under it."""
    top_k: int = Field(default=0, ge=0)
    """Sample from the k likeliest tokens (0: from all)."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Sample from the smallest set of tokens with this probability (1: from all)."""
    learning_rate: float = Field(default=1e-6, gt=0, le=1)
    """Of AdamW."""
    warmup_steps: int = Field(default=0, ge=0)
    """Steps over which the learning rate rises."""
    weight_decay: float = Field(default=0.0, ge=0, le=1)
    """Of AdamW, on matrices."""
    max_grad_norm: Positive = 1.0
    """The gradient is clipped to this norm."""
    advantage: Literal["std", "none"] = "std"
    """std: GRPO; none: Dr. GRPO, without dividing by the group's deviation."""
    aggregation: Literal["token", "sequence", "constant"] = "token"
    """How the loss is averaged: over tokens (DAPO), per sequence (GRPO), by max_tokens (Dr. GRPO)."""
    clip_low: float = Field(default=0.2, gt=0, le=1)
    """The ratio counts from 1 - clip_low ..."""
    clip_high: float = Field(default=0.28, gt=0, le=10)
    """... to 1 + clip_high."""
    kl_coefficient: float = Field(default=0.0, ge=0, le=10)
    """Weight of the KL to the first version (0: none, and no second model in memory)."""
    ratio_to: Literal["behaviour", "proximal"] = "behaviour"
    """behaviour: policy / engine's log-probs. proximal: decoupled (AReaL), weighted by `weight`."""
    weight: Literal["none", "truncate", "mask"] = "truncate"
    """With ratio_to = "proximal": truncate (TIS), mask, or none."""
    weight_cap: Positive = 2.0
    """The importance weight is cut or masked above this."""
    token_budget: int = Field(default=16384, ge=1)
    """Padded tokens in a micro-batch: less takes less memory."""
    snapshot_dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the weights that are published."""
    swap: Literal["keep", "wait", "abort"] = "keep"
    """Running rollouts at a swap: continued on the new weights, finished on the old, or cut short."""
    checkpoint_every: int = Field(default=10, ge=1)
    """Steps between checkpoints; there is one at the end in any case."""
    keep_checkpoints: int = Field(default=2, ge=1, le=1000)
    """How many of the newest are kept."""
    host: Text = "127.0.0.1"
    """Address to listen on; 0.0.0.0 for workers on other machines."""
    port: int = Field(default=0, ge=0, le=65535)
    """Port to listen on (0: any free one)."""
    tls_cert: Text | None = None
    """PEM file with the certificate; with tls_key, workers come by https."""
    tls_key: Text | None = None
    """PEM file with the certificate's key."""
    uplink_mbps: float = Field(default=0.0, ge=0, le=1e6)
    """Cap on what the learner sends snapshots with (0: none); chunks then leave in the plan's order."""
    relay_mbps: float = Field(default=0.0, ge=0, le=1e6)
    """Cap on what each local worker passes on (0: none); remote ones have `echo2 worker --relay-mbps`."""
    lease_s: float = Field(default=30.0, ge=1, le=3600)
    """A worker that is silent this long is lost."""
    patience_s: float = Field(default=600.0, ge=10, le=1e6)
    """A run in which nothing happens for this long, or no worker comes up, is ended, to be resumed."""
    verifiers: int = Field(default=1, ge=1, le=64)
    """Processes that judge completions, for tasks whose verifier needs one."""
    threads: int = Field(default=0, ge=0, le=1024)
    """CPU threads of the learner (0: torch's choice)."""
    wandb: Text | None = None
    """Weights & Biases project, where the package is installed."""
