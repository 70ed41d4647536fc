"""Max-min fair rates of flows that share uplinks and downlinks: progressive filling, vectorised.

Bertsekas and Gallager, Data Networks, section 6.5.2: all rates grow together until a link is full, its
flows are frozen there, and the rest grows on.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


def max_min_rates(
    senders: IntArray,
    receivers: IntArray,
    caps: FloatArray,
    uplink: FloatArray,
    downlink: FloatArray,
    weights: FloatArray,
) -> FloatArray:
    """Rates (F,) of F flows; `weights` of w counts as w flows at the sender (its rate is their sum).

    `senders` and `receivers` index `uplink` and `downlink`; a receiver of -1 has no downlink limit.
    `caps` bounds each flow's own rate. All in the same unit per second.
    """
    count = len(senders)
    rates = np.zeros(count)
    open_ = (caps > 0) & (weights > 0)
    up_left, down_left = uplink.copy(), downlink.copy()
    has_down = receivers >= 0
    down_index = np.where(has_down, receivers, 0)
    nodes = len(uplink)
    while open_.any():
        up_load = np.bincount(senders[open_], weights=weights[open_], minlength=nodes)
        mask = open_ & has_down
        down_load = np.bincount(down_index[mask], weights=weights[mask], minlength=nodes)
        with np.errstate(divide="ignore", invalid="ignore"):
            up_step = np.where(up_load > 0, up_left / up_load, np.inf)
            down_step = np.where(down_load > 0, down_left / down_load, np.inf)
        room = np.where(open_, (caps - rates) / weights, np.inf)
        step = max(0.0, min(float(up_step.min()), float(down_step.min()), float(room.min())))
        rates[open_] += step * weights[open_]
        up_left = np.maximum(0.0, up_left - step * up_load)
        down_left = np.maximum(0.0, down_left - step * down_load)
        full_up = up_step <= step * (1 + 1e-9)
        full_down = down_step <= step * (1 + 1e-9)
        done = (room <= step * (1 + 1e-9)) | full_up[senders] | (has_down & full_down[down_index])
        if not (open_ & done).any():
            break
        open_ &= ~done
    return rates
