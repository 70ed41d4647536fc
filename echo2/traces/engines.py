"""Decode speed of a GPU with a model: the policy's `DecodeModel`, fitted to engine rows.

Called by the planner and the simulator; the live driver replaces it by what it measures. Every profile
carries its basis: only `measured` and `derived` rest on timings of that card.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from echo2.errors import UserError
from echo2.traces.catalogue import of_kind, open_trace
from echo2.traces.gpus import canonical
from echo2.traces.models import model_info
from echo2.traces.schema import BASES

if TYPE_CHECKING:
    from echo2.policy.generation import DecodeModel


@dataclass(frozen=True)
class EngineProfile:
    """A worker's decode model; the worker is `gpus` cards. `basis`: measured, derived, estimate or scaled."""

    model: DecodeModel
    gpus: int
    basis: str
    source: str
    gpu: str = ""
    model_name: str = ""


@dataclass(frozen=True)
class StepFit:
    """Least-squares lines `base_s + slope_s * context` by batch; `worst` is the largest relative miss."""

    batch: tuple[float, ...]
    base_s: tuple[float, ...]
    slope_s: tuple[float, ...]
    worst: float


def engine_rows(path: str | Path | None = None) -> Any:
    """All engine rows, shipped or of your own file, with canonical GPU names."""
    import pandas as pd

    if path is not None:
        return open_trace(path, "engine").frame
    return pd.concat([loaded.frame for loaded in of_kind("engine")], ignore_index=True)


def decode_model(gpu: str, model: str, max_running: int = 0, path: str | Path | None = None) -> EngineProfile:
    """Decode steps of `model` on `gpu` from the best basis there is (measured before derived, ...).

    `max_running` caps the running sequences (0: only the KV pool does). `path`: your own engine file
    instead of the shipped ones. Unknown combination: UserError listing the GPUs known for the model.
    """
    from echo2.policy.generation import DecodeModel

    card, name = canonical(gpu), (model if path is not None else model_info(model).name)
    rows = engine_rows(path)
    rows = rows[(rows["phase"] == "decode") & (rows["model"] == name)]
    mine = rows[rows["gpu"] == card]
    if mine.empty:
        known = ", ".join(sorted(set(rows["gpu"]))) or "none"
        raise UserError(
            f"decode speed of {name} on GPU {card!r} is not known (or its weights do not fit the card); "
            f"known GPUs for {name}: {known}"
        )
    basis = min(mine["basis"], key=BASES.index)
    mine = mine[mine["basis"] == basis]
    gpus = int(mine["gpus"].min())
    mine = mine[mine["gpus"] == gpus]
    pool = float(mine["kv_pool_tokens"].min())
    if pool != pool:
        raise UserError(f"engine rows of {name} on {card} give no kv_pool_tokens; fill the column in")
    fit = fit_steps(mine, pool)
    decode = DecodeModel(fit.batch, fit.base_s, fit.slope_s, kv_pool_tokens=pool, max_running=max_running)
    return EngineProfile(decode, gpus, basis, "; ".join(sorted(set(mine["source"]))), card, name)


def fit_steps(rows: Any, pool_tokens: float) -> StepFit:
    """Lines through the steps of each batch, over the contexts that fit the KV pool.

    Where fewer than two contexts fit, the two shortest are used, and batches stop after the first that
    does not fit even at its shortest context: it serves as the upper end for interpolation.
    """
    batches, bases, slopes, worst = [], [], [], 0.0
    for batch, part in rows.sort_values("context_tokens").groupby("batch"):
        context = part["context_tokens"].to_numpy(dtype=float)
        step = part["step_ms"].to_numpy(dtype=float) / 1e3
        fits = max(2, int((context * batch <= pool_tokens).sum()))
        base, slope, miss = _line(context[:fits], step[:fits])
        batches.append(float(batch))
        bases.append(base)
        slopes.append(slope)
        worst = max(worst, miss)
        if batch * context[0] > pool_tokens:
            break
    return StepFit(tuple(batches), tuple(bases), tuple(slopes), worst)


def _line(context: Any, step: Any) -> tuple[float, float, float]:
    """(base, slope, largest relative miss) of the line with least relative squares, neither negative."""
    import numpy as np

    if len(context) == 1:
        return float(step[0]), 0.0, 0.0
    design = np.column_stack([1 / step, context / step])
    (base, slope), *_ = np.linalg.lstsq(design, np.ones(len(step)), rcond=None)
    if slope < 0:
        base, slope = float(np.mean(step)), 0.0
    elif base < 0:
        base, slope = 0.0, float(np.mean(step / context))
    miss = np.abs((base + slope * context) / step - 1)
    return float(base), float(slope), float(miss.max())
