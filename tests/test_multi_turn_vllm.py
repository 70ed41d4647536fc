"""Several turns through real vLLM: a version a segment, the environment masked, log-probs the trainer's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import live_run as live
import pytest
import torch

pytest.importorskip("vllm")
pytest.importorskip("pokerkit")

from safetensors.torch import load_file, save_file

from echo2.runtime.data.ledger_query import LedgerReader
from echo2.runtime.data.registry import TaskSpec
from echo2.runtime.data.rollout import Rollout, rollout_id
from echo2.runtime.data.states import State
from echo2.runtime.data.task import Prompt
from echo2.runtime.data.tasks.poker import Poker
from echo2.runtime.data.turns import TurnRules, replayed
from echo2.runtime.data.verify import Verifier
from echo2.runtime.driver.learner_host import load_model
from echo2.runtime.driver.setup import load_tokenizer
from echo2.runtime.learning.learner import Learner
from echo2.runtime.learning.settings import LearnerSettings
from echo2.runtime.rollout.multi_turn import Environment, MultiTurn
from echo2.runtime.rollout.request import GeneratedRollout, GroupRequest, SamplingSettings
from echo2.runtime.rollout.vllm_engine import VllmEngine, VllmSettings

MODEL = live.REPOSITORY / "assets" / "tiny-poker"
ROLLOUTS, MAX_TOKENS, TOLERANCE = 16, 200, 1e-4


def moved(folder: Path) -> Path:
    """The shipped model with every weight a little off: version 1."""
    weights, chance = load_file(MODEL / "model.safetensors"), torch.Generator().manual_seed(1)
    save_file({n: t + 0.02 * torch.randn(t.shape, generator=chance) for n, t in weights.items()},
              folder / "model.safetensors", {"format": "pt"})  # fmt: skip
    (folder / "config.json").write_bytes((MODEL / "config.json").read_bytes())
    return folder


def played(how: TurnRules, judge: Verifier, prompt: Prompt, after: Path) -> list[Rollout]:
    """A group of one deal in real vLLM; the weights are swapped at the first answer that asks for a turn."""
    ids = tuple(how.tokenizer.encode(prompt.text))
    sampling = SamplingSettings(max_tokens=MAX_TOKENS, stop_token_ids=tuple(how.stop_token_ids))
    wanted = GroupRequest(1, ids, ROLLOUTS, sampling)

    async def run() -> list[GeneratedRollout]:
        engine = VllmEngine(VllmSettings(MODEL, max_running=ROLLOUTS))
        loop, begun = asyncio.get_running_loop(), False

        def environment() -> Environment:
            inner: Callable[[str], str | None] = judge.environment(prompt)

            def answer(text: str) -> str | None:
                nonlocal begun
                said, first = inner(text), not begun
                if said is not None and first:
                    begun = True
                    swap = engine.update_weights(1, after / "model.safetensors")
                    asyncio.run_coroutine_threadsafe(swap, loop).result(60)
                return said

            return answer

        await engine.start()
        try:
            turns = MultiTurn(engine, how, Poker.turns, environment)
            return [one async for one in turns.generate(wanted)]
        finally:
            await engine.stop()

    return [
        Rollout(
            rollout_id(1, one.index), 1, one.index, prompt.ordinal, 0, "w", ids, one.token_ids, one.logprobs,
            one.segments, one.finish_reason, environment=one.environment,
        )
        for one in asyncio.run(run())
    ]  # fmt: skip


def by_version(rollout: Rollout) -> list[tuple[int, int, int]]:
    """(start, end, version) of every turn that one version generated as a whole."""
    found = []
    starts = [0, *(span.end for span in rollout.environment)]
    ends = [*(span.start for span in rollout.environment), rollout.tokens]
    for start, end in zip(starts, ends):
        versions = [[s.version for s in rollout.segments if s.start <= t][-1] for t in range(start, end)]
        if len(set(versions)) == 1:
            found.append((start, end, versions[0]))
    return found


def test_each_turn_has_the_log_probs_of_its_version(tmp_path: Path) -> None:
    """Across a swap, each turn's log-probs are the trainer's at the weights it is labelled with."""
    torch.set_num_threads(1)
    tokenizer, judge = load_tokenizer(MODEL), Verifier(TaskSpec("echo2.runtime.data.tasks.poker:Poker"))
    how = TurnRules(tokenizer, "plain", frozenset({int(tokenizer.eos_token_id)}), 8, MAX_TOKENS)
    prompt, after = Poker(instruction="").prompt(3), moved(tmp_path)
    rollouts = played(how, judge, prompt, after)
    assert len(rollouts) == ROLLOUTS and max(len(one.environment) for one in rollouts) >= 2
    for rollout in rollouts:
        assert -1.0 <= replayed(rollout, prompt, how, judge) <= 1.0
        assert all(p == 0.0 for p, mine in zip(rollout.logprobs, rollout.chosen) if not mine)
    scored = [Learner(load_model(place), LearnerSettings()).logprobs(rollouts) for place in (MODEL, after)]
    compared, apart = {0: 0, 1: 0}, 0.0
    for rollout in rollouts:
        place = {token: at for at, token in enumerate(t for t, mine in enumerate(rollout.chosen) if mine)}
        for start, end, version in by_version(rollout):
            theirs = [scored[version][rollout.rollout_id][place[t]] for t in range(start, end)]
            others = [scored[1 - version][rollout.rollout_id][place[t]] for t in range(start, end)]
            assert rollout.logprobs[start:end] == pytest.approx(theirs, abs=TOLERANCE)
            apart = max(apart, *(abs(a - b) for a, b in zip(theirs, others)))
            compared[version] += 1
    assert min(compared.values()) >= 4 and apart > 100 * TOLERANCE
    both = [rollout for rollout in rollouts if len({version for *_, version in by_version(rollout)}) == 2]
    assert both and all(rollout.oldest_version == 0 for rollout in both)


def test_poker_trains_live_through_vllm(tmp_path: Path) -> None:
    """`echo2 train` with vLLM: turns of the learner's own version have its log-probs, so the ratio is 1."""
    config, folder = live.REPOSITORY / "experiments" / "live" / "poker.toml", tmp_path / "run"
    small = (
        "run.steps=3", "batch.rollouts_per_step=32", "train.checkpoint_every=3", "pool.hf.slots=64",
        'pool.hf.engine="vllm"',
    )  # fmt: skip
    options = [part for value in small for part in ("--set", value)]
    done = live.finished("train", config, "--out", folder, *options, timeout_s=150)
    assert done.returncode == 0, done.stdout + done.stderr
    with LedgerReader(folder / "ledger.sqlite") as ledger:
        trained = list(ledger.rollouts(state=State.TRAINED))
    assert len(trained) == 96 and any(rollout.environment for rollout in trained)
    assert {segment.version for rollout in trained for segment in rollout.segments} >= {0, 1}
    for rollout in trained:
        assert all(p == 0.0 for p, mine in zip(rollout.logprobs, rollout.chosen) if not mine)
    rows = live.rows(folder)
    own = [row for row in rows if row["mismatch_tokens"]]
    assert own and all(abs(row["mismatch_kl"]) < 1e-4 for row in own)
    assert rows[0]["ratio_mean"] == pytest.approx(1.0, abs=1e-3)
