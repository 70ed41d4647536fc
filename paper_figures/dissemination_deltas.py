"""Dissemination tail of a lossless delta against the number of workers, every topology against the bound.

    python -m paper_figures.dissemination_deltas --out DIR

The figure `dissemination_tail` with a delta in place of the full snapshot, as many times smaller as measured.
"""

from __future__ import annotations

from benchmarks.broadcast_bound import SIZE_BYTES
from echo2.report import style
from echo2.scenario.delta_sizes import delta_size
from paper_figures.dissemination_tail import caption, draw
from paper_figures.output import finish, out_folder

LEARNING_RATE, PARAMETERS = 1e-6, 8.19e9


def main() -> None:
    out = out_folder(str(__doc__).splitlines()[0])
    measured = delta_size("bf16", LEARNING_RATE, PARAMETERS)
    size_bytes = SIZE_BYTES / round(measured.ratio)
    about = f" The ratio is an {measured.basis} for one step at learning rate 1e-6 in bf16: {measured.note}."
    with style.drawing():
        finish(draw(size_bytes), "dissemination_deltas", caption(size_bytes) + about, out)


if __name__ == "__main__":
    main()
