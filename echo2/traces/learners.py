"""Training speed of a learner: a measured row where there is one, else one scaled from the nearest.

Called by the planner for `T_train` = trained tokens of a step / tokens per second.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from echo2.errors import UserError
from echo2.traces.engines import engine_rows
from echo2.traces.gpus import canonical, gpu
from echo2.traces.models import MODELS, ModelInfo, model_info
from echo2.traces.nearest import unknown

PREFERRED_CONTEXT = 16384
TUNINGS = ("full", "lora")
# Weights and gradients in bf16, weights, momentum and variance in fp32 (mixed-precision AdamW).
TRAIN_BYTES_PER_PARAMETER = 16


@dataclass(frozen=True)
class LearnerProfile:
    """Tokens/s of all GPUs of the learner together; `basis` measured or scaled, `source` says how.

    `fits_memory`: whether 16 bytes a parameter (full AdamW) fit 92 % of the cards without offloading.
    """

    tokens_per_s: float
    basis: str
    source: str
    fits_memory: bool


def learner_tokens_per_s(gpu_name: str, gpus: int, model: str, tuning: str = "full") -> LearnerProfile:
    """Training speed of `model` on `gpus` cards: RL steps, sequences packed to 16,384 where measured.

    Scaling (ours, when there is no row): in proportion to the number of GPUs; to 1/active parameters
    from the nearest dense or sparse model; a card without a row for the model takes another card's,
    times their ratio on a model measured on both. Unknown GPU or model: UserError.
    """
    card, info = canonical(gpu_name), model_info(model)
    if gpus < 1:
        raise UserError(f"learner gpus = {gpus} must be >= 1")
    if tuning not in TUNINGS:
        raise unknown("tuning", tuning, TUNINGS)
    rows = _rows(tuning)
    if card not in set(rows["gpu"]):
        raise unknown("training speed on GPU", card, rows["gpu"])
    fits = info.parameters * TRAIN_BYTES_PER_PARAMETER <= 0.92e9 * gpu(card).vram_gb * gpus
    row = _nearest(rows, card, gpus, info)
    rate, source, how = float(row["tokens_per_s"]), str(row["source"]), []
    if row["gpu"] != card:
        ratio, shared = _card_ratio(rows, card, str(row["gpu"]))
        rate *= ratio
        how.append(f"x {ratio:.3f} from {row['gpu']} to {card} (their ratio on {shared})")
    measured = model_info(str(row["model"]))
    if measured.name != info.name:
        factor = measured.active_parameters / info.active_parameters
        rate *= factor
        how.append(f"x {factor:.3f} for active parameters from {measured.name} to {info.name}")
    if int(row["gpus"]) != gpus:
        rate *= gpus / int(row["gpus"])
        how.append(f"x {gpus}/{int(row['gpus'])} GPUs")
    basis = "scaled" if how else "measured"
    start = f"{source}, {row['model']} on {int(row['gpus'])} x {row['gpu']}, {tuning}"
    start += f", sequences of {int(row['context_tokens'])}"
    return LearnerProfile(rate, basis, "; ".join([start, *how]), fits)


def _rows(tuning: str) -> Any:
    """RL rows of the models in the table, one sequence length per (gpu, gpus, model)."""
    rows = engine_rows()
    known = {m.name for m in MODELS}
    wanted = (rows["phase"] == "train") & (rows["tuning"] == tuning) & (rows["objective"] == "rl")
    rows = rows[wanted & rows["model"].isin(known)].copy()
    rows["distance"] = (rows["context_tokens"].astype(float) - PREFERRED_CONTEXT).abs()
    best = rows.sort_values(["distance", "tokens_per_s"], ascending=[True, False], kind="stable")
    return best.drop_duplicates(["gpu", "gpus", "model"])


def _nearest(rows: Any, card: str, gpus: int, info: ModelInfo) -> Any:
    """The row to start from: same kind of model, nearest size, same card, nearest number of GPUs."""

    def distance(row: Any) -> tuple[float, ...]:
        other = model_info(str(row["model"]))
        return (
            float(other.is_sparse != info.is_sparse),
            abs(math.log(other.active_parameters / info.active_parameters)),
            float(row["gpu"] != card),
            -gpu(str(row["gpu"])).vram_gb,
            abs(math.log(int(row["gpus"]) / gpus)),
        )

    return min((row for _, row in rows.iterrows()), key=distance)


def _card_ratio(rows: Any, card: str, other: str) -> tuple[float, str]:
    """(speed of `card` / speed of `other`, model) on the largest model measured on as many of both."""
    mine, theirs = rows[rows["gpu"] == card], rows[rows["gpu"] == other]
    both = mine.merge(theirs, on=["gpus", "model"])
    if both.empty:
        raise UserError(f"no model was trained on both {card} and {other}; take another GPU")
    row = max((r for _, r in both.iterrows()), key=lambda r: model_info(str(r["model"])).active_parameters)
    return float(row["tokens_per_s_x"]) / float(row["tokens_per_s_y"]), f"{row['model']} x{int(row['gpus'])}"
