"""What to offer when a name is not known. Called by every look-up in this package."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from echo2.errors import UserError


def unknown(thing: str, name: str, known: Iterable[str], fix: str = "") -> UserError:
    """A UserError that names the thing, the value, and the nearest known names (or all when they are few)."""
    names = sorted(set(known))
    by_lower = {n.lower(): n for n in names}
    close = [by_lower[c] for c in difflib.get_close_matches(name.lower(), by_lower, n=4, cutoff=0.5)]
    close += [n for n in names if name and name.lower() in n.lower() and n not in close][: 4 - len(close)]
    if not close and len(names) <= 24:
        offer = f"known: {', '.join(names)}" if names else "nothing is known"
    else:
        offer = f"nearest: {', '.join(close or names[:4])}"
    return UserError(f"{thing} {name!r} is not known; {offer}{'; ' + fix if fix else ''}")
