"""Poker: one hand of heads-up fixed-limit Texas hold'em for each prompt, a task of several turns.

Rules, pots and showdowns are pokerkit's; cards, seat and opponent follow from the ordinal, so all rollouts
of a group play the same deal against the same opponent. The model sees its two cards, its seat and whatever
the opponent does, and answers each `>` with a word: `AhKd dealer>` raise `call QsJd2c check>` raise ...

Reward: chips won or lost over the stack, in [-1, 1], less `penalty` for each answer that is no action (it
counts as check, or as fold where there is something to call). At the default stack of 50 small blinds nobody
is ever all-in before the last bet: four streets of four bets cost 50. A hand that is cut short is checked
and folded to its end. Blinds 1 and 2, bets 2 and 4.
"""

from __future__ import annotations

import importlib
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from echo2.errors import UserError
from echo2.runtime.data.task import (
    HELDOUT_SHARE,
    TRIES,
    Episode,
    Prompt,
    SeveralTurns,
    check_split,
    in_split,
    ordinal_rng,
    turn_tokens_of,
)
from echo2.traces.nearest import unknown

RANKS, SUITS = "23456789TJQKA", "cdhs"
CARDS = [rank + suit for rank in RANKS for suit in SUITS]
SEATS = ("blind", "dealer")  # pokerkit's players 0 and 1; the dealer posts the small blind and begins
ACTIONS = {"fold": "fold", "check": "call", "call": "call", "bet": "raise", "raise": "raise"}
INSTRUCTION = (
    "You play heads-up fixed-limit hold'em. Each message ends with '>' and tells your cards and seat, what "
    "the opponent did and which cards came. Answer with one word: fold, check, call, bet or raise."
)
SMALL_BET, BIG_BET, LEAST_STACK = 2, 4, 4
AUTOMATIC = (
    *("ANTE_POSTING", "BET_COLLECTION", "BLIND_OR_STRADDLE_POSTING", "HOLE_CARDS_SHOWING_OR_MUCKING"),
    *("HAND_KILLING", "CHIPS_PUSHING", "CHIPS_PULLING"),
)
REMEMBERED = 4096  # valued hands that are kept


class Poker(SeveralTurns):
    """Endless deals. `opponents` are dealt in turn by chance: station, tight, wild.

    station: checks and calls. tight: raises good hands, calls fair ones, folds the others unless it is free,
    and bluffs one time in ten. wild: raises every second time whatever it holds.
    """

    name = "poker"
    isolated = False  # pokerkit's steps are bounded: no text of a model reaches more than a table of words
    size = None
    turns = 16  # three on each of four streets is the most that four bets leave

    def __init__(
        self,
        seed: int = 0,
        split: str = "train",
        heldout_share: float = HELDOUT_SHARE,
        opponents: Sequence[str] = ("station", "tight", "wild"),
        stack: int = 50,
        penalty: float = 0.02,
        turn_tokens: int = 8,
        instruction: str = INSTRUCTION,
    ) -> None:
        check_split(split)
        for opponent in opponents:
            if opponent not in OPPONENTS:
                raise unknown("opponent of task poker", opponent, OPPONENTS)
        if not opponents:
            raise UserError(f"poker: opponents is empty; choose of {', '.join(OPPONENTS)}")
        if stack < LEAST_STACK or not 0 <= penalty <= 1:
            raise UserError(
                f"poker: stack {stack} and penalty {penalty} must be at least {LEAST_STACK} chips and 0 to 1"
            )
        self._seed, self._split, self._share = seed, split, heldout_share
        self._opponents, self._instruction = tuple(opponents), instruction
        self.stack, self.penalty, self.turn_tokens = stack, penalty, turn_tokens
        turn_tokens_of(self)
        self._kit = _pokerkit()
        self._game = _game(self._kit)

    def prompt(self, ordinal: int) -> Prompt:
        """Cards, seat and what the opponent has done before the model's first turn."""
        rng = ordinal_rng(self.name, self._seed, ordinal)
        for _ in range(TRIES):
            deck = " ".join(rng.sample(CARDS, 12))
            if in_split(deck, self._split, self._share):
                truth = {
                    "deck": deck,
                    "seat": rng.randrange(2),
                    "opponent": rng.choice(self._opponents),
                    "seed": rng.getrandbits(53),
                }
                return Prompt(ordinal, Hand(self, truth).told(), truth, self._instruction)
        raise UserError(f"poker: no deal of split {self._split!r} in {TRIES} tries; raise heldout_share")

    def episode(self, prompt: Prompt) -> Episode:
        """The hand from its start."""
        return PokerEpisode(self, prompt)

    def table(self) -> Any:
        """A heads-up table with blinds posted; cards are burnt and dealt by us, all else by pokerkit."""
        automatic = tuple(self._kit.Automation[name] for name in AUTOMATIC)
        return self._game.create_state(automatic, True, 0, (1, 2), SMALL_BET, BIG_BET, self.stack, 2)


class PokerEpisode:
    """One hand as an episode."""

    def __init__(self, task: Poker, prompt: Prompt) -> None:
        assert isinstance(prompt.truth, dict)
        self._task, self.first = task, prompt
        self._hand = Hand(task, prompt.truth)
        self._hand.told()
        self._invalid = 0

    def turn(self, completion: str) -> str | None:
        """Do what the completion says; what has happened since, up to the model's next turn."""
        if self._hand.over:
            raise ValueError(f"task poker: the hand of prompt {self.first.ordinal} is over")
        action = action_of(completion)
        self._invalid += action is None
        self._hand.act(action or "fold")
        return None if self._hand.over else self._hand.told()

    def reward(self) -> float:
        """Chips won over the stack, less the penalties, in [-1, 1]."""
        while not self._hand.over:
            self._hand.act("fold")
        reward = self._hand.won / self._task.stack - self._task.penalty * self._invalid
        return max(-1.0, min(1.0, reward))


def action_of(completion: str) -> str | None:
    """fold, call or raise, by the first word; None where that is no action."""
    words = completion.lower().split()
    return ACTIONS.get(words[0].strip(".,:;!*'\"`")) if words else None


class Hand:
    """A hand on pokerkit's state: the model in its seat, the opponent in the other, cards from the deck."""

    def __init__(self, task: Poker, truth: dict[str, Any]) -> None:
        self._deck = str(truth["deck"]).split()
        self._seat = int(truth["seat"])
        self._opponent = OPPONENTS[truth["opponent"]]
        self._rng = random.Random(int(truth["seed"]))
        self._state = task.table()
        self._holes = self._draw(2), self._draw(2)
        for hole in self._holes:
            self._state.deal_hole("".join(hole))
        self._board: list[str] = []
        self._events = [f"{''.join(self._holes[self._seat])} {SEATS[self._seat]}"]
        self._first = True
        self._go_on()

    @property
    def over(self) -> bool:
        """Whether the chips are divided."""
        return not self._state.status

    @property
    def won(self) -> int:
        """The model's chips won, negative when lost."""
        return int(self._state.payoffs[self._seat])

    @property
    def to_call(self) -> int:
        """Chips that whoever is to act has to add to stay."""
        return int(self._state.checking_or_calling_amount)

    def strength(self, seat: int) -> int:
        """What a seat holds: 0 poor, 1 fair, 2 good. Rules of thumb (ours)."""
        hole = self._holes[seat]
        return _on_the_board(hole, self._board) if self._board else _before_the_flop(hole)

    def told(self) -> str:
        """What has happened since this was last asked."""
        text, self._events = " ".join(self._events) + ">", []
        return text

    def act(self, action: str) -> None:
        """The model's action, then the opponent's and the cards until the model is to act again."""
        self._do(action)
        self._go_on()

    def _go_on(self) -> None:
        state = self._state
        while state.status and state.actor_index != self._seat:
            if state.actor_index is not None:
                action = self._opponent(self._rng, self.strength(1 - self._seat), self.to_call)
                if action == "fold" and self._first:
                    action = "call"  # a hand in which the model never acts would be no prompt
                self._events.append(self._do(action))
            elif state.can_burn_card():
                state.burn_card(self._draw(1)[0])
            else:
                cards = self._draw(state.board_dealing_count)
                state.deal_board("".join(cards))
                self._board += cards
                self._events.append("".join(cards))

    def _do(self, action: str) -> str:
        """Carry an action out: folding what is free is a check, a raise beyond the fourth bet a call."""
        state = self._state
        self._first = False
        if action == "raise" and state.can_complete_bet_or_raise_to():
            state.complete_bet_or_raise_to()
            return "raise"
        to_call = self.to_call
        if action == "fold" and to_call:
            state.fold()
            return "fold"
        state.check_or_call()
        return "call" if to_call else "check"

    def _draw(self, count: int) -> list[str]:
        cards, self._deck = self._deck[:count], self._deck[count:]
        return cards


# ---- opponents: (chance, strength of the holding, chips to call) -> action -----------------------------


def _station(rng: random.Random, strength: int, to_call: int) -> str:
    return "call"


def _tight(rng: random.Random, strength: int, to_call: int) -> str:
    chance = rng.random()
    if strength == 2:
        return "raise" if chance < 0.85 else "call"
    if strength == 1:
        return "call" if to_call <= BIG_BET and chance < 0.9 else "fold"
    return "raise" if not to_call and chance < 0.1 else "fold"


def _wild(rng: random.Random, strength: int, to_call: int) -> str:
    return "raise" if rng.random() < 0.5 else "call"


OPPONENTS = {"station": _station, "tight": _tight, "wild": _wild}


def _before_the_flop(hole: Sequence[str]) -> int:
    """By high card, pair, suit and neighbourhood."""
    low, high = sorted(RANKS.index(card[0]) for card in hole)
    if low == high:
        return 2 if high >= RANKS.index("7") else 1
    points = high + low / 2 + 2 * (hole[0][1] == hole[1][1]) + (high - low == 1)
    return 2 if points >= 15 else 1 if points >= 10 else 0


def _on_the_board(hole: Sequence[str], board: Sequence[str]) -> int:
    """Good: a straight or flush, two pairs or better with an own card, the top pair or one above it.

    Fair: another pair with an own card, or a flush draw. A showdown is pokerkit's; an opponent only guesses.
    """
    ranks = Counter(RANKS.index(card[0]) for card in (*hole, *board))
    suits = Counter(card[1] for card in (*hole, *board))
    runs = "".join("x" if rank in ranks else "." for rank in (12, *range(13)))  # the ace is low as well
    if max(suits.values()) >= 5 or "xxxxx" in runs:
        return 2
    mine = [rank for rank in {RANKS.index(card[0]) for card in hole} if ranks[rank] > 1]
    if mine:
        several = len(mine) == 2 or max(ranks[rank] for rank in mine) > 2
        top = max(mine) >= max(RANKS.index(card[0]) for card in board)
        return 2 if several or top else 1
    return 1 if len(board) < 5 and max(suits.values()) == 4 else 0


def _pokerkit() -> Any:
    try:
        return importlib.import_module("pokerkit")
    except ImportError:
        fix = "pip install 'echo2[poker]'"
        raise UserError(f"task poker needs the package pokerkit, which is not installed; {fix}") from None


def _game(kit: Any) -> Any:
    """Fixed-limit hold'em that remembers the hands it has valued: a showdown values each one many times."""
    value = lru_cache(maxsize=REMEMBERED)(kit.StandardHighHand.from_game)

    def from_game(hole: Iterable[Any], board: Iterable[Any] = ()) -> Any:
        return value(tuple(hole), tuple(board))

    hand = type("RememberedHand", (kit.StandardHighHand,), {"from_game": staticmethod(from_game)})
    return type("HeadsUp", (kit.FixedLimitTexasHoldem,), {"hand_types": (hand,)})
