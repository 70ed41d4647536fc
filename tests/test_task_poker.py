"""Poker: hands on pokerkit that replay, rewards within the stack, rules for what is no action."""

from __future__ import annotations

import random
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echo2.errors import UserError
from echo2.runtime.data import tiny_poker
from echo2.runtime.data.registry import load_task
from echo2.runtime.data.tasks.poker import OPPONENTS, Poker, action_of
from echo2.runtime.data.verify import play

pytest.importorskip("pokerkit")

TASK = Poker(instruction="")
WORDS = st.sampled_from(["fold", "call", "raise", "check", "bet", "what?", ""])


def whole(task: Poker, ordinal: int, say: list[str]) -> tuple[list[str], tuple[str | None, ...], float]:
    """Play a prompt to its end with the words of `say` over and over; completions, answers and reward."""
    episode = task.episode(task.prompt(ordinal))
    told: list[str] = []
    answers: list[str | None] = [""]
    while answers[-1] is not None:
        told.append(say[len(told) % len(say)])
        answers.append(episode.turn(told[-1]))
    return told, tuple(answers[1:]), episode.reward()


@given(st.integers(0, 10_000), st.lists(WORDS, min_size=1, max_size=6), st.sampled_from(sorted(OPPONENTS)))
@settings(max_examples=60, deadline=None)
def test_a_hand_replays_to_the_same_end(ordinal: int, say: list[str], opponent: str) -> None:
    """The same completions give the same answers and reward in a task made anew; it ends within `turns`."""
    told, answers, reward = whole(Poker(opponents=[opponent]), ordinal, say)
    again = Poker(opponents=[opponent])
    assert play(again, again.prompt(ordinal), told) == (answers, reward)
    assert len(told) <= Poker.turns and -1.0 <= reward <= 1.0


@given(st.integers(0, 500), st.integers(1, 6))
@settings(max_examples=30, deadline=None)
def test_a_hand_cut_short_is_checked_and_folded_to_its_end(ordinal: int, turns: int) -> None:
    """The reward after some turns is the one of folding from there on."""
    told, _, reward = whole(TASK, ordinal, ["call"] * turns + ["fold"] * 20)
    assert play(TASK, TASK.prompt(ordinal), told[:turns])[1] == reward


def test_chips_are_conserved_and_folding_costs_the_blind() -> None:
    """Who folds at once to a raise has lost exactly the blind posted: 1 or 2 chips of 50."""
    for ordinal in range(60):
        task = Poker(opponents=["wild"])
        prompt = task.prompt(ordinal)
        answers, reward = play(task, prompt, ["fold"])
        if answers == (None,):
            assert reward == pytest.approx(-(1 if "dealer" in prompt.text else 2) / 50)


def test_no_action_is_a_check_or_fold_at_a_price() -> None:
    """Other text plays as folding does, each time less the penalty."""
    task = Poker(penalty=0.03)
    for ordinal in range(20):
        told, answers, reward = whole(task, ordinal, ["pass the salt"])
        _, folded, plain = whole(task, ordinal, ["fold"])
        assert answers == folded
        assert reward == pytest.approx(max(-1.0, plain - 0.03 * len(told)))


@pytest.mark.parametrize(
    ("text", "action"),
    [("raise", "raise"), (" Bet.", "raise"), ("CHECK", "call"), ("call 2", "call"), ("fold!", "fold"),
     ("I raise", None), ("", None), ("rais", None)],
)  # fmt: skip
def test_the_first_word_is_the_action(text: str, action: str | None) -> None:
    """A word of the table, whatever its case and the marks around it."""
    assert action_of(text) == action


def test_the_deal_is_fair_play() -> None:
    """No card appears twice, the model is told its own cards only, and both seats and all opponents come."""
    seen: set[tuple[int, str]] = set()
    for ordinal in range(80):
        truth = TASK.prompt(ordinal).truth
        assert isinstance(truth, dict)
        deck = truth["deck"].split()
        assert len(set(deck)) == len(deck) == 12
        own = deck[2 * truth["seat"] :][:2]
        told = TASK.prompt(ordinal).text
        assert told.startswith("".join(own) + (" dealer" if truth["seat"] else " blind"))
        assert not any(card in told for card in deck if card not in own)
        seen.add((truth["seat"], truth["opponent"]))
    assert len(seen) == 2 * len(OPPONENTS)


def test_held_out_deals_are_never_trained_on() -> None:
    """The splits share no deal."""
    decks: list[set[str]] = []
    for split in ("train", "heldout"):
        truths = [Poker(split=split).prompt(ordinal).truth for ordinal in range(50)]
        decks.append({truth["deck"] for truth in truths if isinstance(truth, dict)})
    assert len(decks[0]) == 50 and not decks[0] & decks[1]


def test_a_better_policy_wins_more() -> None:
    """Against who always calls, raising with strong pairs and folding nothing beats folding everything."""
    task = Poker(opponents=["station"])

    def mean(strong: str, weak: str) -> float:
        total = 0.0
        for ordinal in range(150):
            text = task.prompt(ordinal).text
            good = text[0] == text[2] or text[0] in "AK"
            total += whole(task, ordinal, [strong if good else weak])[2]
        return total / 150

    assert mean("raise", "call") > mean("fold", "fold") + 0.01


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"opponents": ["statoin"]}, "station"),
        ({"opponents": []}, "opponents is empty"),
        ({"stack": 3}, "stack 3"),
        ({"penalty": 2.0}, "penalty 2.0"),
        ({"turn_tokens": 0}, "turn_tokens is 0"),
        ({"split": "test"}, "split is 'test'"),
        ({"stacks": 3}, "stack"),
    ],
)
def test_bad_options_are_refused(options: dict[str, object], words: str) -> None:
    """The error names the value and what is allowed."""
    with pytest.raises(UserError, match=words):
        load_task("poker", **options)


def test_without_pokerkit_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing library is one line, with the extra to install."""
    monkeypatch.setitem(sys.modules, "pokerkit", None)
    with pytest.raises(UserError, match=r"pip install 'echo2\[poker\]'"):
        load_task("poker")


def test_random_play_ends_for_short_stacks_too() -> None:
    """All-in players are dealt to the showdown without being asked."""
    rng = random.Random(0)
    for ordinal in range(60):
        say = [rng.choice(["raise", "raise", "call"]) for _ in range(8)]
        assert -1.0 <= whole(Poker(stack=6, opponents=["wild"]), ordinal, say)[2] <= 1.0


@pytest.mark.parametrize("kind", sorted(tiny_poker.KINDS))
def test_a_warm_start_learns_the_words_and_nothing_else(kind: str) -> None:
    """An example is a whole hand: what the table says is context, each word with its end is learnt."""
    encode, rng = tiny_poker.tokenizer(), random.Random(1)
    for ordinal, player in enumerate(tiny_poker.KINDS[kind] * 10):
        pieces = tiny_poker.example(TASK, ordinal, player, rng, encode)
        assert [learnt for _, learnt in pieces] == [False, True] * (len(pieces) // 2)
        texts = [encode.decode(ids, skip_special_tokens=True) for ids, _ in pieces]
        assert texts[0] == TASK.prompt(ordinal).text and set(texts[1::2]) <= set(tiny_poker.WORDS)
        answers, _ = play(TASK, TASK.prompt(ordinal), texts[1::2])
        assert list(answers) == [*texts[2::2], None]
        assert all(ids[-1] == encode.eos_token_id for ids, learnt in pieces if learnt)
        assert sum(len(ids) for ids, _ in pieces) <= tiny_poker.CONTEXT
