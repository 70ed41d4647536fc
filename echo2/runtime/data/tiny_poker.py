"""A tiny Qwen3 that knows the form of a poker hand, for the demo of several turns.

Made by `scripts/make_tiny_poker.py`, shipped in `assets/tiny-poker`. Its warm start imitates hands in which
every action is drawn at random, so whatever it wins above that comes from RL; "mixed" adds the hands of a
player who looks at the cards. A system test, not a study of poker.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from echo2.errors import UserError
from echo2.runtime.data import tiny
from echo2.runtime.data.tasks.poker import Hand, Poker

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

CHARACTERS = "23456789TJQKAabcdefghijklmnopqrstuvwxyz >"
CONTEXT = 256
WORDS = ("fold", "call", "raise")
Player = Callable[[random.Random, int, int], str]
"""(chance, strength of the holding, chips to call) -> word."""


def at_random(rng: random.Random, strength: int, to_call: int) -> str:
    """Fold, call and raise with equal odds, whatever the cards."""
    return rng.choice(WORDS)


def by_the_cards(rng: random.Random, strength: int, to_call: int) -> str:
    """Raise what is good, call what is fair; the rest half the time, and check where that is free."""
    if strength == 2:
        return "raise"
    return "call" if strength == 1 or not to_call or rng.random() < 0.5 else "fold"


KINDS = {"mixed": (at_random, by_the_cards), "random": (at_random,)}
"""Whose hands a warm start imitates, in turn."""


def tokenizer() -> PreTrainedTokenizerFast:
    """One token a character: ranks, letters, space and `>`."""
    return tiny.character_tokenizer(CHARACTERS, CONTEXT)


def model(seed: int = 0) -> Qwen3ForCausalLM:
    """A freshly initialised one of 0.41 million parameters."""
    return tiny.tiny_qwen3(seed, tokenizer=tokenizer())


def example(
    task: Poker, ordinal: int, player: Player, rng: random.Random, encode: PreTrainedTokenizerFast
) -> tiny.Example:
    """A hand of the task as `player` plays it; its words are learnt."""
    truth = task.prompt(ordinal).truth
    assert isinstance(truth, dict)
    hand = Hand(task, truth)
    pieces: list[tuple[list[int], bool]] = []
    while not hand.over:
        word = player(rng, hand.strength(truth["seat"]), hand.to_call)
        pieces.append((encode.encode(hand.told()), False))
        pieces.append(([*encode.encode(word), encode.eos_token_id], True))
        hand.act(word)
    return tuple(pieces)


def warm_start(
    learner: Qwen3ForCausalLM,
    kind: str = "random",
    steps: int = 200,
    batch: int = 128,
    hands: int = 4000,
    seed: int = 0,
    report: Callable[[int, float], None] = lambda step, loss: None,
) -> None:
    """Imitate `steps` x `batch` of `hands` hands of the train split, in place."""
    if kind not in KINDS:
        raise UserError(f"warm start {kind!r} is not known; choose one of {', '.join(KINDS)}")
    rng, encode, players = random.Random(seed), tokenizer(), KINDS[kind]
    task = Poker(seed=seed + 1, instruction="")
    played = [example(task, i, players[i % len(players)], rng, encode) for i in range(hands)]
    tiny.imitate(learner, lambda step: rng.choices(played, k=batch), steps, report=report)
