"""Fluid stripes: every relay takes its own part of a snapshot from the source and passes it to all others.

Made by `echo2.sim.network` (`stripe_reroute` adds what happens when a relay is gone), given link rates by
`echo2.sim.sharing`. Ours. Kept per relay, not per pair, so that a transfer to N receivers costs a few
operations on N numbers:

- `head[i]`: how much of its stripe relay i has; all stripes advance alike as the source interleaves them.
- `out[i]`: how much of its stripe relay i has passed on to every receiver that keeps pace.
- `have[j]`: share of the snapshot receiver j has. A receiver that keeps pace has all that is passed on; one
  held back by its own links draws from all relays until it has caught up.

All are shares between 0 and 1, rates are shares per second. A receiver that keeps pace is complete when the
last whole chunk has been passed on (`stripe_pipeline`), which is later than the fluid.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from echo2.policy.broadcast import BroadcastPlan
from echo2.sim.stripe_deal import Deal
from echo2.sim.stripe_late import LateReceivers
from echo2.sim.stripe_pipeline import Pipeline
from echo2.sim.stripe_rates import (
    BEHIND,
    NEVER,
    Feed,
    downlink_left,
    pair_limits,
    passing_levels,
)
from echo2.sim.transfers import Paths, Transfer

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
WHOLE = 1.0 - 1e-12


class StripedTransfer(Transfer):
    """State of a striped broadcast; see the module's text. `direct`: how much of the direct part is sent."""

    def __init__(
        self, version: int, plan: BroadcastPlan, source: int, nodes: IntArray, sites: IntArray, paths: Paths
    ) -> None:
        super().__init__(version, plan, source, nodes, sites, paths)
        count = len(nodes)
        self.shares = np.array(plan.shares, dtype=np.float64)
        self.direct_share = plan.direct_share
        self.given = 0.0
        self.head, self.out, self.have = np.zeros(count), np.zeros(count), np.zeros(count)
        self.direct = 0.0
        self.pace = np.ones(count, dtype=bool)
        self.head_rate, self.out_rate, self.rate = np.zeros(count), np.zeros(count), np.zeros(count)
        self.direct_rate = 0.0
        self._level = np.zeros(count)
        self._late = LateReceivers(count)
        self._into_s = np.zeros(count)
        self._pipeline = Pipeline(plan)
        self._deal = Deal(plan)
        self._through: FloatArray | None = None
        self._took_over = np.zeros(count, dtype=bool)
        self._stopped = np.zeros(count, dtype=bool)
        self._shunned_by: dict[int, set[int]] = {}
        self._rewire()

    def begin(self, now: float) -> None:
        """The transfer begins at run time `now`."""
        super().begin(now)
        self._pipeline.begin(now)

    def _rewire(self) -> None:
        """Relays, and what pair caps allow: min over stripes of cap / share, for heads and for receivers."""
        self.relays = np.flatnonzero(self.shares > 0)
        shares, sites = self.shares[self.relays], self.sites[:-1]
        direct = self.paths.cap_bps[self.sites[-1], sites]
        self._from_source_s = self.paths.latency_s[self.sites[-1], sites]
        self._cap_bps = pair_limits(self.paths.cap_bps, sites, self.relays, shares)
        if self.direct_share > 0:
            self._cap_bps = np.minimum(self._cap_bps, direct / self.direct_share)
        self._head_cap_bps = direct[self.relays] / shares

    # ---- rates ---------------------------------------------------------------------------------

    def source_demand_bps(self) -> float:
        """What the source can usefully send: no limit until the heads and the direct part are out."""
        return NEVER if self._source_busy() else 0.0

    def _source_busy(self) -> bool:
        return bool((self.head[self.relays] < 1.0).any()) or self._direct_left()

    def _direct_left(self) -> bool:
        return self.direct_share > 0 and self.direct < 1.0

    def set_rates(
        self, source_bps: float, up_bps: FloatArray, down_bps: FloatArray, factor: FloatArray
    ) -> None:
        """Share out link rates; (N,) `up_bps`, `down_bps` and `factor` (of the pair caps) by position."""
        relays, shares = self.relays, self.shares[self.relays]
        limit = np.minimum(down_bps, self._cap_bps * factor) / self.bits
        limit[~self.active] = 0.0
        alone = np.where(self._stopped[relays], 0.0, up_bps[relays]) / (shares * self.bits)
        level = passing_levels(alone, limit, self.active, relays)
        self._set_heads(source_bps / self.bits, limit, down_bps / self.bits, factor, level)
        head, out = self.head[relays], self.out[relays]
        behind = (out < head - BEHIND) | ((out < head) & (head >= 1.0))
        rate = np.where(behind, level, np.minimum(level, self.head_rate[relays]))
        self.out_rate[:] = self._level[:] = 0.0
        self.out_rate[relays] = np.where(out >= 1.0, 0.0, rate)
        self._level[relays] = level
        self._set_receivers(limit, alone)

    def _set_heads(
        self, source: float, limit: FloatArray, down: FloatArray, factor: FloatArray, level: FloatArray
    ) -> None:
        relays, shares = self.relays, self.shares[self.relays]
        self.head_rate[:] = 0.0
        self.direct_rate = 0.0
        if not self._source_busy():
            return
        copies = float(shares.sum()) + self.direct_share * int(self.active.sum())
        inflow = np.minimum(level, source / copies) * shares
        free = downlink_left(down, inflow, shares, relays)
        caps = np.minimum(self._head_cap_bps * factor[relays] / self.bits, free / shares)
        caps[self._stopped[relays]] = 0.0
        feed = Feed(self.head[relays], caps, shares, self.direct, self.direct_share, limit)
        self.head_rate[relays], self.direct_rate = feed.rates(source)
        # a chunk finds half of the relays sending into the same downlink (fitted to the chunk network)
        half = 0.5 * self.chunk_bits * len(relays) / np.maximum(down[relays] * self.bits, 1.0)
        self._into_s[relays] = np.where((down[relays] > 0) & self.pace[relays], half, self._into_s[relays])

    def _growth(self) -> FloatArray:
        """(N,) how fast what has been passed on to each receiver grows."""
        passed = self.shares * self.out_rate
        every = passed.sum() + self.direct_share * self.direct_rate
        total: FloatArray = every - passed + self.shares * self.head_rate
        return total

    def _set_receivers(self, limit: FloatArray, alone: FloatArray) -> None:
        """Receivers that keep pace get all that is passed on; the others what links and relays allow."""
        growth, late = self._growth(), self._late
        over = growth > limit * (1 + 1e-9)
        fell = np.flatnonzero(self.pace & self.active & over)
        if not len(fell) and not len(late.who):
            self.rate = np.where(self.active, growth, 0.0)
            return
        out, out_rate = np.append(self.out, self.direct), np.append(self.out_rate, self.direct_rate)
        late.keep(self.active[late.who] & (late.behind(out).any(axis=0) | over[late.who]))
        late.add(fell, out)
        self.pace = self.active.copy()
        self.pace[late.who] = False
        self.rate = np.where(self.pace, growth, 0.0)
        # the source has no spare for the direct part of those behind until it has nothing else to do
        spare = np.append(np.zeros(len(limit)), 0.0 if self._source_busy() else NEVER)
        keeping = self.pace.sum() - self.pace[self.relays]
        spare[self.relays] = alone - keeping * self.out_rate[self.relays]
        level = np.append(self._level, self.direct_rate)
        shares = np.append(self.shares, self.direct_share)
        late.set_rates(out, out_rate, spare, level, shares, self.head_rate, limit)
        self.rate[late.who] = late.total

    def outflow_bps(self) -> tuple[float, FloatArray]:
        """bit/s that the source sends, and (R,) that each of `relays` sends."""
        shares = self.shares[self.relays]
        keeping = int(self.pace.sum())
        late = self._late.rate.sum(axis=1)
        source = float((shares * self.head_rate[self.relays]).sum())
        source += self.direct_share * (float(late[-1]) + self.direct_rate * keeping)
        sent = self.out_rate[self.relays] * (keeping - self.pace[self.relays]) + late[self.relays]
        return source * self.bits, shares * sent * self.bits

    # ---- progress ------------------------------------------------------------------------------

    def offered(self) -> FloatArray:
        """(N,) share of the snapshot that has been passed on and that a receiver that keeps pace has."""
        passed = self.shares * self.out
        every = self.given + passed.sum() + self.direct_share * self.direct
        total: FloatArray = every - passed + self.shares * self.head
        return total

    def got(self, position: int) -> float:
        """Share of the snapshot that a receiver has."""
        return float(self.have[position])

    def involved(self) -> set[int]:
        """Nodes whose links matter now."""
        source = {self.source} if self._source_busy() else set()
        return source.union(self.nodes[self.relays].tolist(), self.nodes[self.active].tolist())

    def advance(self, now: float, seconds: float) -> None:
        """Let the last `seconds` before `now` pass at the present rates."""
        head = self.head + self.head_rate * seconds
        out = self.out + self.out_rate * seconds
        self.head = np.where(head >= WHOLE, 1.0, head)
        self.out = np.minimum(self.head, np.where(out >= WHOLE, 1.0, out))
        self.direct = min(1.0, self.direct + self.direct_rate * seconds)
        self._pipeline.note(now, self.head, self._level, seconds)
        if self._through is None and not (self.head[self.relays] < 1.0).any():
            self._through = self._last_chunks()
        self.have = np.where(self.pace, self.offered(), self.have)
        if len(self._late.who):
            self._advance_late(seconds)

    def _advance_late(self, seconds: float) -> None:
        late = self._late
        late.advance(seconds, np.append(self.out, self.direct))
        shares = np.append(self.shares, self.direct_share)
        own = late.got[late.who, np.arange(len(late.who))]
        has = self.given + shares @ late.got + self.shares[late.who] * (self.head[late.who] - own)
        self.have[late.who] = np.minimum(1.0, has)

    def _last_chunks(self) -> FloatArray:
        """(N,) the Q (see `stripe_pipeline`) at which each relay's last whole chunk is through."""
        last = self._pipeline.through_at(self._into_s + self._from_source_s)
        if not self._took_over.any():
            return last
        # what they took over came first, then the plan's order went on: their last was sent as in it
        chunk = self.chunk_bits / self.bits / np.maximum(self.shares, 1e-12)
        left = 1.0 - self.out
        since = self._level * self._pipeline.since_last_s()
        more = np.where(left > 0, np.maximum(left, np.minimum(1.0, left + chunk) - since), 0.0)
        return np.where(self._took_over, self._pipeline.could + more, last)

    def _left_s(self) -> tuple[FloatArray, FloatArray, float]:
        """Seconds until heads and outs (R,) and the direct part are through at the present rates."""
        relays = self.relays
        head, out = self.head[relays], self.out[relays]
        with np.errstate(divide="ignore", invalid="ignore"):
            head_s = np.where(head < 1.0, (1.0 - head) / self.head_rate[relays], 0.0)
            out_s = np.where(out < 1.0, (1.0 - out) / self.out_rate[relays], 0.0)
            if self._through is not None:
                more = (self._through - self._pipeline.could)[relays]
                out_s = np.maximum(out_s, np.where(more > 1e-12, more / self._level[relays], 0.0))
        if not self._direct_left():
            return head_s, out_s, 0.0
        return head_s, out_s, (1.0 - self.direct) / self.direct_rate if self.direct_rate > 0 else np.inf

    def _receivers_left_s(self, head: FloatArray, out: FloatArray, direct: float) -> FloatArray:
        """(N,) seconds until each receiver is complete at the present rates."""
        longest = max(float(out.max(initial=0.0)), direct)
        left = np.full(len(self.nodes), longest)
        if len(out):
            slowest = int(out.argmax())
            others = float(np.partition(out, -2)[-2]) if len(out) > 1 else 0.0
            left[self.relays[slowest]] = max(others, float(head[slowest]), direct)
        who = self._late.who
        if len(who):
            used = np.append(self.shares, self.direct_share) > 0
            left[who] = np.maximum(left[who], self._late.left_s(used))
        return left

    # ---- events ----------------------------------------------------------------------------------

    def next_event_s(self) -> float:
        """Seconds until a rate changes: a part is through or catches up, a receiver is done or catches up."""
        head, out, direct = self._left_s()
        soonest = float(self._receivers_left_s(head, out, direct)[self.active].min())
        soonest = min(soonest, float(head.min(initial=np.inf, where=head > 0)), direct or np.inf)
        if len(self._late.who):
            out_rate = np.append(self.out_rate, self.direct_rate)
            soonest = min(soonest, self._late.caught_up_s(np.append(self.out, self.direct), out_rate))
        at, rate = self.head[self.relays], self.head_rate[self.relays]
        open_ = at < 1.0
        gap, closing = at - self.out[self.relays], self.out_rate[self.relays] - rate
        soonest = min(soonest, _meets(gap[open_], closing[open_]))
        if self.direct_share > 0:
            at, rate = np.append(at, self.direct), np.append(rate, self.direct_rate)
        order = np.argsort(at, kind="stable")
        return min(soonest, _meets(np.diff(at[order]), -np.diff(rate[order])))

    def pop_complete(self, now: float, slack_s: float) -> list[tuple[int, float]]:
        """Receivers complete by `now + slack_s`, and the latency of the longest way to each."""
        left = self._receivers_left_s(*self._left_s())
        done = np.flatnonzero(self.active & (left <= slack_s))
        if not len(done):
            return []
        delay = np.maximum(left[done], 0.0) + self._latency(done)
        self.have[done] = 1.0
        self.active[done] = self.pace[done] = False
        return list(zip(done.tolist(), delay.tolist()))

    def _latency(self, done: IntArray) -> FloatArray:
        """(D,) one-way seconds of the last hop, the longest over relays and the source."""
        to, relays = self.sites[done], self.relays
        if self.direct_share > 0 or len(relays) == 1:
            last = self._from_source_s[done]
        else:
            last = np.zeros(len(done))
        if len(relays) > 1:
            sites = np.flatnonzero(np.bincount(self.sites[relays]))
            last = np.maximum(last, self.paths.latency_s[np.ix_(sites, to)].max(axis=0))
        return np.asarray(last, dtype=np.float64)


def _meets(gap: FloatArray, closing: FloatArray) -> float:
    """Seconds until the first gap that closes is closed; inf if none does."""
    chasing = (gap > BEHIND) & (closing > 0)
    return float((gap[chasing] / closing[chasing]).min()) if chasing.any() else float("inf")
