"""The one table of GPU names: canonical name, memory, other spellings.

Used by the conversion of the raw price and engine tables and by the loader, so both speak of the same
card. A form factor (SXM, PCIe, NVL) is not part of the name; a memory size is where two sizes exist.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from echo2.traces.nearest import unknown


@dataclass(frozen=True)
class Gpu:
    """A card: canonical name, memory in GB (as sold), spellings that mean the same."""

    name: str
    vram_gb: float
    aliases: tuple[str, ...] = ()


GPUS: tuple[Gpu, ...] = (
    # data centre
    Gpu("GB300", 288),
    Gpu("B300", 288),
    Gpu("B200", 180),
    Gpu("H200", 141),
    Gpu("GH200", 96),
    Gpu("H100", 80),
    Gpu("A800", 80),
    Gpu("A100", 80),
    Gpu("A100 40GB", 40),
    Gpu("MI350X", 288),
    Gpu("MI300X", 192),
    Gpu("L40S", 48),
    Gpu("L40", 48),
    Gpu("L4", 24),
    Gpu("A40", 48),
    Gpu("A30", 24),
    Gpu("A16", 16),
    Gpu("A10", 24),
    Gpu("A10G", 24),
    Gpu("V100", 16),
    Gpu("V100 32GB", 32),
    Gpu("T4", 16),
    Gpu("P100", 16),
    Gpu("P40", 24),
    Gpu("P4", 8),
    Gpu("K80", 12),
    # workstation
    Gpu("RTX PRO 6000", 96, ("RTX 6000 Pro", "RTX PRO A6000", "PRO 6000")),
    Gpu("RTX 6000 Ada", 48, ("6000 Ada",)),
    Gpu("RTX 4000 Ada", 20, ("4000 Ada",)),
    Gpu("RTX A6000", 48, ("A6000",)),
    Gpu("RTX A5000", 24, ("A5000",)),
    Gpu("RTX A4000", 16, ("A4000",)),
    Gpu("RTX 6000", 24),
    Gpu("RTX 5000", 16),
    Gpu("RTX 4000", 8),
    # consumer
    Gpu("RTX 5090", 32, ("5090",)),
    Gpu("RTX 5080", 16, ("5080",)),
    Gpu("RTX 5070 Ti", 16, ("5070 Ti",)),
    Gpu("RTX 5070", 12, ("5070",)),
    Gpu("RTX 5060 Ti", 16, ("5060 Ti",)),
    Gpu("RTX 4090", 24, ("4090",)),
    Gpu("RTX 4080", 16, ("4080",)),
    Gpu("RTX 4070 Ti Super", 16, ("4070 Ti Super",)),
    Gpu("RTX 4070 Ti", 12, ("4070 Ti",)),
    Gpu("RTX 4070", 12, ("4070",)),
    Gpu("RTX 4060 Ti", 16, ("4060 Ti",)),
    Gpu("RTX 3090 Ti", 24, ("3090 Ti",)),
    Gpu("RTX 3090", 24, ("3090",)),
    Gpu("RTX 3080 Ti", 12, ("3080 Ti",)),
    Gpu("RTX 3080", 10, ("3080",)),
    Gpu("RTX 3070 Ti", 8, ("3070 Ti",)),
    Gpu("RTX 3070", 8, ("3070",)),
    Gpu("RTX 3060 Ti", 8, ("3060 Ti",)),
    Gpu("RTX 3060", 12, ("3060",)),
    Gpu("RTX 3050", 8, ("3050",)),
    Gpu("RTX 2080 Ti", 11, ("2080 Ti",)),
    Gpu("RTX 2080", 8, ("2080",)),
    Gpu("RTX 2070", 8, ("2070",)),
    Gpu("RTX 2060", 6, ("2060",)),
    Gpu("GTX 1660 Super", 6),
    Gpu("GTX 1660", 6),
    Gpu("GTX 1650", 4),
    Gpu("GTX 1080 Ti", 11),
    Gpu("GTX 1080", 8),
    Gpu("GTX 1070", 8),
    Gpu("GTX 1060", 6),
    Gpu("GTX 1050 Ti", 4),
)
# Cards sold in two memory sizes under one name: base name, size in GB, canonical name.
SIZES = {("A100", 40): "A100 40GB", ("V100", 32): "V100 32GB"}

_NOISE = re.compile(
    r"\b(nvidia|amd|geforce|tesla|quadro|sxm\d*|pcie|nvlink|nvl|hgx|hbm\d\w*|server|workstation|blackwell"
    r"|edition|cc|se|we|high freq\.?|\d+ ?gb?)\b"
)
_MEMORY = re.compile(r"(\d+) ?gb?\b")


def _key(raw: str) -> str:
    words = re.sub(r"[()_\-,]", " ", raw.lower())
    return re.sub(r"[^a-z0-9]", "", _NOISE.sub(" ", words))


_BY_KEY: dict[str, Gpu] = {}
for _card in GPUS:
    for _name in (_card.name, *_card.aliases):
        _BY_KEY.setdefault(_key(_name), _card)
_BY_KEY.update({_key(base): next(g for g in GPUS if g.name == base) for base, _ in SIZES})
_BY_NAME = {card.name: card for card in GPUS}


def gpu(name: str, vram_gb: float | None = None) -> Gpu:
    """The card meant by `name` in any usual spelling. Unknown: UserError with the nearest names.

    `vram_gb` (or a size in the name) tells the two sizes of an A100 or V100 apart; without one it is the
    A100 of 80 GB and the V100 of 16 GB.
    """
    if name in _BY_NAME and vram_gb is None:
        return _BY_NAME[name]
    card = _BY_KEY.get(_key(name))
    if card is None or not name.strip():
        raise unknown("GPU", name, _BY_NAME)
    written = _MEMORY.search(name.lower().replace("-", " "))
    size = int(written.group(1)) if written else vram_gb
    return _BY_NAME[SIZES.get((card.name, int(size or 0)), card.name)]


def canonical(name: str, vram_gb: float | None = None) -> str:
    """The canonical name of a card. Unknown: UserError with the nearest names."""
    return gpu(name, vram_gb).name


def is_known(name: str) -> bool:
    """Whether `name` is, in any usual spelling, a card of the table."""
    return _key(name) in _BY_KEY and bool(name.strip())
