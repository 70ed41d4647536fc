"""Engine and learner speeds: estimates, derived and measured rows, and rows scaled from them.

KV pool of a worker: (0.92 x memory as sold - bf16 weights) / bytes a token, except where a pool was logged.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from conversion.output import Origin, Shipment
from echo2.traces.engines import fit_steps
from echo2.traces.gpus import canonical, gpu
from echo2.traces.models import model_info

AICONFIGURATOR = Origin(
    "computed with aiconfigurator (github.com/ai-dynamo/aiconfigurator)", "0.12.0", "Apache-2.0"
)
LLMSERVINGSIM = Origin(
    "github.com/casys-kaist/LLMServingSim", "5daddb21a545658d5150b535712d0494584b5278", "MIT"
)
PRIME_RL = Origin(
    "github.com/PrimeIntellect-ai/prime-rl", "559b44772e471d1538537b8805cc77f3824a5e64", "Apache-2.0"
)
SCALED = Origin("ours, from the other engine files", "", "Apache-2.0")
COLUMNS = [
    "gpu",
    "gpus",
    "model",
    "dtype",
    "engine",
    "phase",
    "batch",
    "context_tokens",
    "step_ms",
    "tokens_per_s",
    "kv_pool_tokens",
    "basis",
    "source",
]
ORDER = ["model", "gpu", "phase", "batch", "context_tokens"]
USABLE_MEMORY = 0.92
# As logged by vLLM on the 4090; assumed from 96 GB in the staged extract on the PRO 6000.
LOGGED_POOLS = {"RTX 4090": 41_408, "RTX PRO 6000": 520_000}
# Qwen3-Coder-30B-A3B AWQ, 1,000/1,000 tokens, one card: 2,288 against 1,131 tok/s (cloudrift, facts only).
SPEED_5090_OVER_4090 = 2288 / 1131


def convert(raw: Path, out: Shipment) -> None:
    """Write engines/."""
    estimates = _estimates(raw / "aiconfigurator-estimates", out)
    derived = _derived(raw / "llmservingsim", out)
    _scaled(estimates, derived, out)
    _learners(raw / "prime-rl-training", out)


def _pool(card: str, gpus: int, model: str) -> int:
    """KV tokens that fit beside the weights; 0 or less: the model does not fit."""
    info = model_info(model)
    memory = USABLE_MEMORY * gpu(card).vram_gb * 1e9 * gpus
    return int((memory - info.bf16_bytes) / info.kv_bytes_per_token)


def _estimates(raw: Path, out: Shipment) -> pd.DataFrame:
    rows = pd.read_csv(raw / "engine_estimates.csv")
    frame = pd.DataFrame(
        {
            "gpu": rows["system"].map(canonical),
            "gpus": rows["tp"],
            "model": rows["model"].str.split("/").str[1],
            "dtype": "bf16",
            "engine": rows["backend"] + " " + rows["backend_version"],
            "phase": rows["phase"],
            "batch": rows["batch"],
            "context_tokens": rows["context_tokens"],
            "step_ms": rows["latency_ms"],
            "tokens_per_s": rows["tokens_per_s"],
            "basis": "estimate",
            "source": "aiconfigurator 0.12.0",
            "fits": rows["fits"].astype(int),
        }
    )
    frame["kv_pool_tokens"] = [_pool(*key) for key in zip(frame["gpu"], frame["gpus"], frame["model"])]
    frame = frame[frame["kv_pool_tokens"] > 0].sort_values(ORDER)
    written = out.write("engines/aiconfigurator", frame[[*COLUMNS, "fits"]])
    notes = (
        "Model output, not a measurement: kernel tables composed into step times by aiconfigurator. fits is "
        "its own "
        "memory estimate (92 % of the card); kv_pool_tokens is (0.92 x GB - weights) / bytes a token, our "
        "estimate. "
        "Cards too small for the weights are left out."
    )
    out.add(written, "engines-aiconfigurator", "engine", AICONFIGURATOR, ("", ""), "estimate", "", notes)
    return frame


def _derived(raw: Path, out: Shipment) -> pd.DataFrame:
    rows = pd.read_csv(raw / "derived_decode_step.csv")
    frame = pd.DataFrame(
        {
            "gpu": rows["gpu"].map(canonical),
            "gpus": rows["tp"],
            "model": rows["model"],
            "dtype": rows["dtype"],
            "engine": "vllm 0.19.0 kernels",
            "phase": "decode",
            "batch": rows["batch"],
            "context_tokens": rows["context_tokens"],
            "step_ms": rows["step_ms"],
            "tokens_per_s": rows["tokens_per_s"],
            "basis": "derived",
            "source": "LLMServingSim kernel profiles",
            "fits": rows["fits"].astype(int),
        }
    )
    frame["kv_pool_tokens"] = frame["gpu"].map(LOGGED_POOLS)
    frame = frame.sort_values(ORDER)
    written = out.write("engines/llmservingsim", frame[[*COLUMNS, "fits"]])
    notes = (
        "Decode steps put together from measured kernel times (32 layers x (dense + attention) + lm_head + "
        "sampler), "
        "no scheduler overhead. KV pool: RTX 4090 as logged by vLLM, RTX PRO 6000 assumed from 96 GB."
    )
    span = ("2026-08", "2026-08")
    out.add(written, "engines-llmservingsim", "engine", LLMSERVINGSIM, span, "derived", "", notes)
    return frame


def _scaled(estimates: pd.DataFrame, derived: pd.DataFrame, out: Shipment) -> None:
    llama = derived[derived["gpu"] == "RTX 4090"]
    small = _consumer(llama, "Qwen3-8B")
    frames = [small, _faster(small), _faster(llama)]
    frames += [_other_size(part, "Qwen3-4B") for part in frames[:2]]
    decode = estimates[(estimates["phase"] == "decode") & (estimates["model"] == "Qwen3-8B")]
    for _, part in decode.groupby("gpu"):
        for model in ("Qwen3-4B", "Qwen3-14B"):
            if _pool(str(part["gpu"].iloc[0]), 1, model) > 0:
                frames.append(_other_size(part, model))
    frame = pd.concat(frames).sort_values(ORDER)
    frame["step_ms"] = frame["step_ms"].round(4)
    frame["tokens_per_s"] = (frame["batch"] / frame["step_ms"] * 1e3).round(2)
    written = out.write("engines/scaled", frame[COLUMNS])
    notes = (
        "Not measured. Qwen3-8B on the RTX 4090: Llama-3.1-8B's step x 36/32 (layers). RTX 5090: the 4090's "
        "step "
        "/ 2.02 (2,288 against 1,131 tok/s, cloudrift facts), 8 GB more. Qwen3-4B and 14B: base of the step "
        "x ratio "
        "of parameters, slope x ratio of KV bytes, from Qwen3-8B. KV pools from the logged 41,408 tokens, by "
        "bytes."
    )
    out.add(written, "engines-scaled", "engine", SCALED, ("", ""), "scaled", "", notes)


def _consumer_pool(card: str, model: str) -> int:
    """The 4090's logged pool in bytes, plus what the card has more, less what the weights take more."""
    logged, llama, info = LOGGED_POOLS["RTX 4090"], model_info("Llama-3.1-8B"), model_info(model)
    room = logged * llama.kv_bytes_per_token + llama.bf16_bytes
    room += USABLE_MEMORY * 1e9 * (gpu(card).vram_gb - gpu("RTX 4090").vram_gb)
    return int((room - info.bf16_bytes) / info.kv_bytes_per_token)


def _consumer(llama: pd.DataFrame, model: str) -> pd.DataFrame:
    layers = model_info(model).layers / model_info("Llama-3.1-8B").layers
    return llama.assign(
        model=model,
        step_ms=llama["step_ms"] * layers,
        kv_pool_tokens=_consumer_pool("RTX 4090", model),
        basis="scaled",
        source="RTX 4090 Llama-3.1-8B step x 36/32 layers",
    )


def _faster(rows: pd.DataFrame) -> pd.DataFrame:
    model = str(rows["model"].iloc[0])
    start = "RTX 4090 Llama-3.1-8B" if model == "Llama-3.1-8B" else str(rows["source"].iloc[0])
    return rows.assign(
        gpu="RTX 5090",
        step_ms=rows["step_ms"] / SPEED_5090_OVER_4090,
        kv_pool_tokens=_consumer_pool("RTX 5090", model),
        basis="scaled",
        source=f"{start} / {SPEED_5090_OVER_4090:.2f} for the RTX 5090",
    )


def _other_size(rows: pd.DataFrame, model: str) -> pd.DataFrame:
    """Steps of another dense Qwen3 from those of Qwen3-8B on the same card."""
    was, info = model_info("Qwen3-8B"), model_info(model)
    card, gpus = str(rows["gpu"].iloc[0]), int(rows["gpus"].iloc[0])
    consumer = card in ("RTX 4090", "RTX 5090")
    pool = _consumer_pool(card, model) if consumer else _pool(card, gpus, model)
    fit = fit_steps(rows, pool)
    by_batch = dict(zip(fit.batch, zip(fit.base_s, fit.slope_s)))
    kept = rows[rows["batch"].isin(fit.batch)].copy()
    weights, cache = info.parameters / was.parameters, info.kv_bytes_per_token / was.kv_bytes_per_token
    kept["step_ms"] = [
        1e3 * (by_batch[b][0] * weights + by_batch[b][1] * cache * c)
        for b, c in zip(kept["batch"], kept["context_tokens"])
    ]
    source = f"{card} Qwen3-8B ({rows['basis'].iloc[0]}), base x {weights:.3f}, slope x {cache:.3f}"
    return kept.assign(model=model, kv_pool_tokens=pool, basis="scaled", source=source)


def _learners(raw: Path, out: Shipment) -> None:
    rows = pd.read_csv(raw / "trainer_throughput.csv")
    rows = rows[rows["success"]].copy()
    names = rows["model"].str.split("/").str[1].str.replace("-Instruct-2507", "")
    frame = pd.DataFrame(
        {
            "gpu": rows["device"].map(canonical),
            "gpus": rows["num_gpus"],
            "model": names,
            "dtype": "bf16",
            "engine": "prime-rl trainer",
            "phase": "train",
            "batch": rows["micro_batches"],
            "context_tokens": rows["seq_len"],
            "step_ms": (rows["step_time_s"] * 1e3).round(1),
            "tokens_per_s": rows["tokens_per_s"],
            "kv_pool_tokens": "",
            "basis": "measured",
            "source": "prime-rl benchmarks " + rows["timestamp"],
            "tuning": rows["lora_rank"].notna().map({True: "lora", False: "full"}),
            "objective": rows["type"],
            "attention": rows["attention"],
            "activation_ckpt": rows["activation_ckpt"],
            "mfu_pct": rows["mfu_pct"],
            "peak_mem_gib": rows["peak_mem_gib"],
        }
    )
    written = out.write(
        "engines/prime_rl_learners", frame.sort_values([*ORDER, "gpus", "objective", "tuning"])
    )
    notes = (
        "Trainer throughput as its benchmark reports it, all GPUs together; context_tokens is the packed "
        "sequence "
        "length, batch the micro-batches, tuning full or lora (rank 16), objective rl or sft. Failed runs "
        "left out; "
        "-Instruct-2507 dropped from the names (same shapes)."
    )
    span = ("2026-01-15", "2026-06-24")
    out.add(written, "learners-prime-rl", "engine", PRIME_RL, span, "measured", "", notes)
