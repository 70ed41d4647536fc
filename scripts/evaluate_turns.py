"""Mean reward of a model on held-out episodes of a task of several turns, with its standard error.

    python scripts/evaluate_turns.py MODEL [--against OTHER] [--tokenizer DIR] [--task poker] [--hands 512]

Each episode is played `--plays` times at temperature 1 on the transformers engine. `--against` plays the same
episodes with another model and gives the difference, paired by episode: most of a hand is the luck of the
deal, and that cancels out. The `heldout` split never holds an episode of the `train` split.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import statistics
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch

from echo2.runtime.data.encode import encode_prompt
from echo2.runtime.data.registry import task_spec
from echo2.runtime.data.task import turn_tokens_of, turns_of
from echo2.runtime.data.turns import TurnRules, model_turns
from echo2.runtime.data.verify import Verifier
from echo2.runtime.driver.setup import load_tokenizer, stop_tokens
from echo2.runtime.rollout.multi_turn import MultiTurn
from echo2.runtime.rollout.request import GeneratedRollout, GroupRequest, SamplingSettings
from echo2.runtime.rollout.transformers_engine import TransformersEngine, TransformersSettings

SLOTS = 128


def played(model: Path, task: str, options: dict[str, Any], episodes: int, plays: int) -> list[float]:
    """Mean reward of each of the first `episodes` held-out episodes."""
    return asyncio.run(_played(model, task, options, episodes, plays))


def mean_and_error(values: list[float]) -> tuple[float, float]:
    """Mean and standard error."""
    return statistics.fmean(values), statistics.stdev(values) / len(values) ** 0.5


async def _played(model: Path, name: str, options: dict[str, Any], episodes: int, plays: int) -> list[float]:
    torch.set_num_threads(1)
    verifier = Verifier(task_spec(name, {"split": "heldout", **options}))
    task, tokenizer = verifier.task, load_tokenizer(model)
    ends = stop_tokens(tokenizer, model)
    engine = TransformersEngine(TransformersSettings(model, max_running=SLOTS))
    await engine.start()
    room = engine.limits.context_tokens
    gate = asyncio.Semaphore(max(1, SLOTS // plays))

    async def one(ordinal: int) -> float:
        prompt = task.prompt(ordinal)
        ids = encode_prompt(tokenizer, prompt, "plain", room)
        rules = TurnRules(tokenizer, "plain", frozenset(ends), turn_tokens_of(task), room - len(ids))
        sampling = SamplingSettings(max_tokens=rules.max_tokens, stop_token_ids=ends, seed=ordinal)
        turns = MultiTurn(engine, rules, turns_of(task), partial(verifier.environment, prompt))

        def reward(rollout: GeneratedRollout) -> float:
            told = [rules.text(turn) for turn in model_turns(rollout.token_ids, rollout.environment)]
            return verifier.play(prompt, told).verdict.reward

        async with gate:
            request = GroupRequest(ordinal, ids, plays, sampling)
            return statistics.fmean([reward(rollout) async for rollout in turns.generate(request)])

    try:
        return await asyncio.gather(*(one(ordinal) for ordinal in range(episodes)))
    finally:
        await engine.stop()
        verifier.close()


def main() -> None:
    """Play and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--against", type=Path, help="another model, on the same episodes")
    parser.add_argument("--tokenizer", type=Path, help="where the tokenizer is, if not beside the model")
    parser.add_argument("--task", default="poker")
    parser.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", help="of the task")
    parser.add_argument("--hands", type=int, default=512)
    parser.add_argument("--plays", type=int, default=4)
    args = parser.parse_args()
    options = {key: json.loads(value) for key, _, value in (text.partition("=") for text in args.option)}
    found = []
    for model in (args.model, args.against):
        if model is not None:
            with tempfile.TemporaryDirectory() as folder:
                whole = Path(shutil.copytree(model, Path(folder) / "model"))
                for file in (args.tokenizer or model).glob("*token*"):
                    shutil.copy(file, whole)
                found.append(played(whole, args.task, options, args.hands, args.plays))
    for rewards in found:
        mean, error = mean_and_error(rewards)
        print(f"{mean:.4f} +- {error:.4f} over {len(rewards)} held-out episodes, {args.plays} plays each")
    if len(found) == 2:
        mean, error = mean_and_error([a - b for a, b in zip(*found)])
        print(f"difference {mean:.4f} +- {error:.4f}, paired by episode")


if __name__ == "__main__":
    main()
