"""Populations of token counts as the policy's `TokenLengths`. Called by the planner and the simulator."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from echo2.errors import UserError
from echo2.traces.catalogue import open_trace

if TYPE_CHECKING:
    from echo2.policy.generation import TokenLengths


def lengths(population: str | Path, kind: str = "output") -> TokenLengths:
    """Token counts of a shipped population (`r1-client_66`), or your own file (`path`, `path#population`).

    `kind`: output (rollouts) or input (prompts). The r1 populations are of single requests: they say
    nothing on how the rollouts of one prompt go together.
    """
    import numpy as np

    from echo2.policy.generation import TokenLengths

    loaded = open_trace(population, "length")
    frame = loaded.frame[loaded.frame["kind"] == kind]
    if frame.empty:
        raise UserError(
            f"{loaded.name} has no rows of kind {kind!r}; kinds: {sorted(set(loaded.frame['kind']))}"
        )
    names = list(dict.fromkeys(frame["population"]))
    if len(names) > 1:
        raise UserError(
            f"{loaded.name} holds {len(names)} populations; pick one with '{population}#{names[0]}'"
        )
    low, high, mass = (frame[c].to_numpy(np.float64) for c in ("tokens_lo", "tokens_hi", "mass"))
    return TokenLengths(low, high, mass / mass.sum(), str(names[0]))
