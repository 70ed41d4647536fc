"""Finds out whether an endpoint's log-probs are those of the distribution it samples from.

Called once by the openai engine's start. OpenAI's interface leaves it open, vLLM's own default is the raw
distribution, and nothing in an answer tells: so the same token is asked for under two temperatures.
"""

from __future__ import annotations

import math
from contextlib import aclosing
from typing import Any

from echo2.runtime.rollout.openai_endpoint import COMPLETIONS, Endpoint, EndpointError, token_id

TEMPERATURES = (1.0, 0.5)
PROMPTS = 4
ALTERNATIVES = 5
LEAST_GAP = 0.05
TOLERANCE = 0.05


async def check_logprobs(endpoint: Endpoint, model: str, vocab_size: int) -> None:
    """Raise EndpointError unless log-probs follow the temperature and top-k.

    log p_T(a) - log p_T(b) = (z_a - z_b) / T for logits z, so that between the temperatures 1 and 0.5 the
    gap of two tokens doubles, and under top-k 1 the only token left has log-prob 0 (both ours). Prompts are
    tried until two tokens are `LEAST_GAP` nats apart: with equal logits no temperature shows.
    """
    ratios: list[float] = []
    for number in range(PROMPTS):
        prompt = [(1 + number + 7 * place) % vocab_size for place in range(4)]
        plain, sharp = [await _alternatives(endpoint, model, prompt, t) for t in TEMPERATURES]
        shared = sorted(plain.keys() & sharp.keys(), key=lambda token: plain[token])
        if len(shared) >= 2 and (gap := plain[shared[-1]] - plain[shared[0]]) > LEAST_GAP:
            ratios.append((sharp[shared[-1]] - sharp[shared[0]]) / gap)
            break
    where = endpoint.url + COMPLETIONS
    if not ratios:
        raise EndpointError(
            f"{where} gives {PROMPTS} prompts no two tokens of different log-prob, so that it cannot be told "
            "whether they follow the temperature; give the endpoint a trained model, and --max-logprobs 5"
        )
    wanted = TEMPERATURES[0] / TEMPERATURES[1]
    if abs(ratios[0] / wanted - 1) > TOLERANCE:
        raise _raw(
            f"{where}: from temperature {TEMPERATURES[0]:g} to {TEMPERATURES[1]:g} a gap of two log-probs "
            f"grows {ratios[0]:.2f} times instead of {wanted:g}"
        )
    only = max((await _alternatives(endpoint, model, prompt, 1.0, top_k=1)).values())
    if abs(only) > 1e-3:
        raise _raw(f"{where}: under top-k 1 the only token has log-prob {only:.3g} instead of 0")


def _raw(seen: str) -> EndpointError:
    return EndpointError(
        f"{seen}: its log-probs are not those of the sampling distribution; start vLLM with "
        "--logprobs-mode processed_logprobs"
    )


async def _alternatives(
    endpoint: Endpoint, model: str, prompt: list[int], temperature: float, **more: Any
) -> dict[int, float]:
    """Log-prob by token id of the likeliest first tokens, as far as they are finite."""
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": 1,
        "temperature": temperature,
        "logprobs": ALTERNATIVES,
        "ignore_eos": True,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "cache_salt": "echo2-probe",
        "seed": 1,
        **more,
    }
    async with aclosing(endpoint.completion(body)) as pieces:
        rows = [row async for piece in pieces for row in piece.top]
    if not rows:
        raise EndpointError(
            f"{endpoint.url}{COMPLETIONS} gives no log-probs; use an endpoint that does, such as vLLM"
        )
    try:
        found = {token_id(token): float(value) for token, value in rows[0].items()}
    except ValueError as error:
        raise EndpointError(
            f"{endpoint.url}{COMPLETIONS} does not know return_tokens_as_token_ids ({error}); use an "
            "endpoint that does, such as vLLM"
        ) from error
    return {token: value for token, value in found.items() if math.isfinite(value) and value > -9000}
