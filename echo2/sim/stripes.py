"""Fluid stripes: every relay takes its own part of a snapshot from the source and passes it to all others.

Made by `echo2.sim.network`, given link rates by `echo2.sim.sharing`. Ours. Kept per relay, not per pair, so
that a transfer to N receivers costs a few operations on N numbers:

- `head[i]`: how much of its stripe relay i has; all stripes advance alike as the source interleaves them.
- `out[i]`: how much of its stripe relay i has passed on to every receiver that keeps pace.
- `have[j]`: share of the snapshot receiver j has. A receiver that keeps pace has all that is passed on; one
  held back by its own links draws from all relays in proportion to the shares until it has caught up.

All are shares between 0 and 1, rates are shares per second.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from echo2.policy.broadcast import BroadcastPlan, chunk_relays
from echo2.sim.fairness import common_level
from echo2.sim.transfers import Transfer

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
BEHIND = 1e-7
NEVER = 1e18
WHOLE = 1e-12


class SourceOrder(NamedTuple):
    """Where a relay's chunks stand in what the source sends: chunk-sends until its first one is out, chunk-sends
    that follow its last one, (N,) each, and all of them. A direct chunk is sent N times."""

    first: FloatArray
    after_last: FloatArray
    total: float


@lru_cache(maxsize=64)
def source_order(plan: BroadcastPlan) -> SourceOrder:
    """The order of a plan's chunks, in chunk-sends of the source."""
    relays = np.array(chunk_relays(plan), dtype=np.int64)
    ends = np.cumsum(np.where(relays < 0, len(plan.order), 1))
    first, last = np.zeros(len(plan.order)), np.zeros(len(plan.order))
    seen, at = np.unique(relays, return_index=True)
    _, from_end = np.unique(relays[::-1], return_index=True)
    relaying = seen >= 0
    first[seen[relaying]] = ends[at[relaying]]
    last[seen[relaying]] = ends[len(relays) - 1 - from_end[relaying]]
    return SourceOrder(first, float(ends[-1]) - last, float(ends[-1]))


def _fastest_other(limit: FloatArray) -> FloatArray:
    """(N,) the largest of the others' limits."""
    fastest = np.full(len(limit), limit.max())
    at = int(limit.argmax())
    fastest[at] = np.partition(limit, -2)[-2] if len(limit) > 1 else 0.0
    return fastest


class StripedTransfer(Transfer):
    """State of a striped broadcast; see the module's text. `direct` is how much of the direct part is sent."""

    def __init__(
        self,
        version: int,
        plan: BroadcastPlan,
        source: int,
        nodes: IntArray,
        pair_cap_bps: FloatArray,
        latency_s: FloatArray,
        now: float,
    ) -> None:
        super().__init__(version, plan, source, nodes, pair_cap_bps, latency_s, now)
        count = len(nodes)
        self.shares = np.array(plan.shares, dtype=np.float64)
        self.direct_share = plan.direct_share
        self.given = 0.0
        self.head, self.out, self.have = np.zeros(count), np.zeros(count), np.zeros(count)
        self.direct = 0.0
        self.pace = np.ones(count, dtype=bool)
        self.head_rate, self.out_rate, self.rate = np.zeros(count), np.zeros(count), np.zeros(count)
        self.direct_rate = 0.0
        self._idle = np.zeros(count, dtype=bool)
        self._head_end_s, self._out_end_s = np.zeros(count), np.zeros(count)
        self._pass_s, self._into_s = np.zeros(count), np.zeros(count)
        self._end_s = now
        self._rewire()

    def _rewire(self) -> None:
        """Relays, and what pair caps allow: min over stripes of cap / share, for heads and for receivers."""
        self.relays = np.flatnonzero(self.shares > 0)
        shares, caps = self.shares[self.relays], self.pair_cap_bps[1:, 1:][self.relays]
        limit = caps / shares[:, None]
        limit[np.arange(len(self.relays)), self.relays] = np.inf
        direct = self.pair_cap_bps[0, 1:]
        self.cap_bps = limit.min(axis=0, initial=NEVER)
        if self.direct_share > 0:
            self.cap_bps = np.minimum(self.cap_bps, direct / self.direct_share)
        self.head_cap_bps = direct[self.relays] / shares

    # ---- rates ---------------------------------------------------------------------------------

    def source_demand_bps(self) -> float:
        """What the source can still usefully send: without limit until all heads and the direct part are out."""
        return NEVER if self._source_busy() else 0.0

    def _source_busy(self) -> bool:
        return bool((self.head[self.relays] < 1.0).any()) or (self.direct_share > 0 and self.direct < 1.0)

    def set_rates(self, source_bps: float, up_bps: FloatArray, down_bps: FloatArray, factor: FloatArray) -> None:
        """Share out link rates; (N,) `up_bps`, `down_bps` and `factor` (of the pair caps) by position."""
        relays, shares, active = self.relays, self.shares[self.relays], self.active
        limit = np.minimum(down_bps, self.cap_bps * factor) / self.bits
        limit[~active] = 0.0
        served = limit[active]
        with np.errstate(divide="ignore"):
            alone = up_bps[relays] / (shares * self.bits)
            own = limit[relays]
            level = np.minimum(common_level(served, alone, own), _fastest_other(limit)[relays])
        self._set_heads(source_bps / self.bits, limit, down_bps / self.bits, factor, level)
        head_rate = self.head_rate[relays]
        head, out = self.head[relays], self.out[relays]
        behind = (out < head - BEHIND) | ((out < head) & (head >= 1.0))
        self.out_rate[relays] = np.where(behind, level, np.minimum(level, head_rate))
        self.out_rate[relays[self.out[relays] >= 1.0]] = 0.0
        self._set_chunk_times(up_bps, down_bps)
        self._set_receivers(limit, alone, own, level)

    def _set_chunk_times(self, up_bps: FloatArray, down_bps: FloatArray) -> None:
        """Seconds that relays take to pass a chunk to all, and to get one through a downlink all relays use.

        The latter is half of what a fair part of the downlink would take: on average half of the relays have
        a chunk on the wire (fitted to the chunk network). Links in an outage keep what they had.
        """
        relays = self.relays
        up, down = up_bps[relays], down_bps[relays]
        served = self.pace.sum() - self.pace[relays]
        passing = self.chunk_bits * served / np.maximum(up, 1.0)
        self._pass_s[relays] = np.where(up > 0, passing, self._pass_s[relays])
        into = 0.5 * self.chunk_bits * len(relays) / np.maximum(down, 1.0)
        self._into_s[relays] = np.where((down > 0) & self.pace[relays], into, self._into_s[relays])

    def _set_heads(
        self, source: float, limit: FloatArray, down: FloatArray, factor: FloatArray, level: FloatArray
    ) -> None:
        """The source sends in the plan's order: the parts least advanced first, equal ones alike."""
        relays, shares = self.relays, self.shares[self.relays]
        self.head_rate[:] = 0.0
        self.direct_rate = 0.0
        todo = self.head[relays] < 1.0
        direct = self.direct_share > 0 and self.direct < 1.0
        copies = float(shares[todo].sum()) + direct * self.direct_share * int(self.active.sum())
        if copies <= 0:
            return
        # into a relay the source's flow gets what other relays leave of the downlink, at least a fair part
        inflow = np.minimum(level, source / copies) * shares
        fair = np.maximum(shares, 1.0 / (len(relays) + 1))
        free = np.maximum(fair * down[relays], down[relays] - (inflow.sum() - inflow))
        caps = np.minimum(self.head_cap_bps * factor[relays] / self.bits, free / shares)
        progress = np.where(todo, self.head[relays], 1.0)
        while source > 0 and (todo.any() or direct):
            least = min(float(progress.min(initial=1.0, where=todo)), self.direct if direct else 1.0)
            now = todo & (progress <= least + BEHIND)
            with_direct = direct and self.direct <= least + BEHIND
            pace = self._filled(source, np.where(now, caps, 0.0), limit, with_direct)
            rate = np.where(now, np.minimum(caps, pace), 0.0)
            self.head_rate[relays] += rate
            source -= float((shares * rate).sum())
            if with_direct:
                self.direct_rate = pace
                source -= self.direct_share * float(np.minimum(limit, pace)[self.active].sum())
            todo, direct = todo & ~now, direct and not with_direct
            source = source if source > 1e-9 * copies * pace else 0.0

    def _filled(self, source: float, caps: FloatArray, limit: FloatArray, with_direct: bool) -> float:
        """The common pace that uses up `source`: sum of share x min(pace, cap) over what is fed."""
        weights = self.shares[self.relays]
        if with_direct:
            served = limit[self.active]
            weights = np.concatenate([weights, np.full(len(served), self.direct_share)])
            caps = np.concatenate([caps, served])
        order = np.argsort(caps)
        caps, weights = caps[order], weights[order]
        above = weights[::-1].cumsum()[::-1]
        filled = np.concatenate([[0.0], np.cumsum(weights * caps)])[:-1] + above * caps
        if filled[-1] <= source:
            return float(min(caps[-1], NEVER))
        k = int(np.searchsorted(filled, source))
        return float(caps[k] - (filled[k] - source) / above[k])

    def _set_receivers(self, limit: FloatArray, alone: FloatArray, own: FloatArray, level: FloatArray) -> None:
        """Receivers that keep pace get all that is passed on; the others what their links and relays allow."""
        relays, shares = self.relays, self.shares[self.relays]
        passed = self.shares * self.out_rate
        offered = passed.sum() - passed + self.shares * self.head_rate + self.direct_share * self.direct_rate
        gap = self.offered() - self.have
        self.pace = self.active & (gap <= BEHIND) & (offered <= limit * (1 + 1e-9))
        self.rate = np.where(self.pace, offered, 0.0)
        late = self.active & ~self.pace
        if not late.any():
            return
        with np.errstate(divide="ignore", invalid="ignore"):
            # what keeps pace takes no more than is passed on, so relays have the rest for those behind
            keeping = self.pace.sum() - self.pace[relays]
            spare = alone - keeping * np.minimum(self.out_rate[relays], level)
            own_late = np.where(late[relays], own, 0.0)
            left = np.maximum(level, common_level(limit[late], np.maximum(spare, 0.0), own_late))
        reach = np.where(alone > 0, left, NEVER)
        slowest = int(reach.argmin()) if len(reach) else -1
        by_relays = np.full(len(self.nodes), float(reach.min(initial=NEVER)))
        if slowest >= 0:
            by_relays[relays[slowest]] = np.partition(reach, 1)[1] if len(reach) > 1 else NEVER
        # from a relay in an outage comes nothing, from the others still their part
        late_rate = np.minimum(limit, by_relays) * (1.0 - float(shares[alone <= 0].sum()))
        late_rate = np.where(gap <= BEHIND, np.minimum(late_rate, offered), late_rate)
        self.rate = np.where(late, late_rate, self.rate)

    def outflow_bps(self) -> tuple[float, FloatArray]:
        """bit/s that the source sends, and (R,) that each of `relays` sends."""
        shares = self.shares[self.relays]
        total = float(self.rate.sum())
        source = float((shares * self.head_rate[self.relays]).sum())
        if self.direct_share > 0 and self.direct < 1.0:
            source += self.direct_share * float(self.rate[self.active & ~self.pace].sum())
            source += self.direct_share * self.direct_rate * int(self.pace.sum())
        late = total - float(self.rate[self.pace].sum())
        sent = self.out_rate[self.relays] * (self.pace.sum() - self.pace[self.relays]) + late
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

    def advance(self, now: float, seconds: float) -> None:
        """Let the last `seconds` before `now` pass at the present rates."""
        head = self.head + self.head_rate * seconds
        out = self.out + self.out_rate * seconds
        started = now - seconds
        self._mark(self.head, head, self.head_rate, self._head_end_s, started)
        self._mark(self.out, np.minimum(out, head), self.out_rate, self._out_end_s, started)
        self._idle |= (out >= head * (1.0 - 10 * BEHIND)) & (head > 0) & (out < 1.0 - BEHIND)
        if self.direct_rate > 0 and self.direct < 1.0:
            self._end_s = min(now, started + (1.0 - self.direct) / self.direct_rate)
        self.head = np.where(head >= 1.0 - WHOLE, 1.0, head)
        self.out = np.minimum(self.head, np.where(out >= 1.0 - WHOLE, 1.0, out))
        self.direct = min(1.0, self.direct + self.direct_rate * seconds)
        offered = self.offered()
        late = np.minimum(offered, self.have + self.rate * seconds)
        self.have = np.where(self.active, np.where(self.pace, offered, late), self.have)

    @staticmethod
    def _mark(
        before: FloatArray, after: FloatArray, rate: FloatArray, end_s: FloatArray, started: float
    ) -> None:
        """Note when each value reached 1."""
        full = (before < 1.0) & (after >= 1.0 - WHOLE)
        end_s[full] = started + (1.0 - before[full]) / np.maximum(rate[full], 1e-30)

    def _left_s(self) -> tuple[FloatArray, FloatArray, float]:
        """Seconds until heads and outs (R,) and the direct part are through at the present rates."""
        relays = self.relays
        with np.errstate(divide="ignore", invalid="ignore"):
            head = np.where(self.head[relays] < 1.0, (1.0 - self.head[relays]) / self.head_rate[relays], 0.0)
            out = np.where(self.out[relays] < 1.0, (1.0 - self.out[relays]) / self.out_rate[relays], 0.0)
        if self.direct_share <= 0 or self.direct >= 1.0:
            return head, out, 0.0
        return head, out, (1.0 - self.direct) / self.direct_rate if self.direct_rate > 0 else np.inf

    def _receivers_left_s(self) -> FloatArray:
        """(N,) seconds until each receiver is complete at the present rates."""
        head, out, direct = self._left_s()
        longest = max(float(out.max(initial=0.0)), direct)
        left = np.full(len(self.nodes), longest)
        if len(out):
            slowest = int(out.argmax())
            others = float(np.partition(out, -2)[-2]) if len(out) > 1 else 0.0
            left[self.relays[slowest]] = max(others, float(head[slowest]), direct)
        with np.errstate(divide="ignore", invalid="ignore"):
            late = np.where(self.rate > 0, (1.0 - self.have) / self.rate, np.inf)
        return np.where(self.pace, left, np.where(self.have >= 1.0 - WHOLE, 0.0, late))

    def next_event_s(self) -> float:
        """Seconds until a rate changes: a stripe is through or catches up, a receiver is done or catches up."""
        head, out, direct = self._left_s()
        soonest = float(self._receivers_left_s()[self.active].min())
        for times in (head[head > 0], np.array([direct] if direct > 0 else [])):
            soonest = min(soonest, float(times.min(initial=np.inf)))
        late = self.active & ~self.pace
        if late.any():
            soonest = min(soonest, float(out[out > 0].min(initial=np.inf)))
            soonest = min(soonest, self._until_level(late))
        soonest = min(soonest, self._until_heads_level())
        gap = (self.head - self.out)[self.relays]
        closing = (self.out_rate - self.head_rate)[self.relays]
        chasing = (gap > BEHIND) & (closing > 0) & (self.head[self.relays] < 1.0)
        if chasing.any():
            soonest = min(soonest, float((gap[chasing] / closing[chasing]).min()))
        return soonest

    def _until_heads_level(self) -> float:
        """Seconds until parts of the source's order that were behind are level with the next."""
        at, rate = self.head[self.relays], self.head_rate[self.relays]
        if self.direct_share > 0:
            at, rate = np.append(at, self.direct), np.append(rate, self.direct_rate)
        order = np.argsort(at, kind="stable")
        gap, closing = np.diff(at[order]), -np.diff(rate[order])
        chasing = (gap > BEHIND) & (closing > 0) & (at[order][1:] < 1.0)
        return float((gap[chasing] / closing[chasing]).min()) if chasing.any() else float("inf")

    def _until_level(self, late: BoolArray) -> float:
        """Seconds until a receiver that is behind has all that has been passed on."""
        passed = self.shares * self.out_rate
        growth = passed.sum() - passed + self.shares * self.head_rate + self.direct_share * self.direct_rate
        gap, closing = (self.offered() - self.have)[late], (self.rate - growth)[late]
        chasing = (gap > BEHIND) & (closing > 0)
        return float((gap[chasing] / closing[chasing]).min()) if chasing.any() else float("inf")

    # ---- ends ----------------------------------------------------------------------------------

    def pop_complete(self, now: float, slack_s: float) -> list[tuple[int, float]]:
        """Receivers complete by `now + slack_s`: what is left, and what whole chunks add to the fluid."""
        left = self._receivers_left_s()
        done = np.flatnonzero(self.active & (left <= slack_s))
        if not len(done):
            return []
        ends = self._chunk_ends(now, done)
        ends = np.maximum(ends, now + left[done])
        self.have[done] = 1.0
        self.active[done] = False
        return list(zip(done.tolist(), (ends - now).tolist()))

    def _chunk_ends(self, now: float, done: IntArray) -> FloatArray:
        """When receivers `done` have the last chunk.

        A relay that was never idle began when its first chunk came, and ends that much after the fluid; one
        that was idle ends when its last chunk has come and been passed on.
        """
        relays, order = self.relays, source_order(self.plan)
        head_left, out_left, direct_left = self._left_s()
        head_end = np.where(self.head[relays] < 1.0, now + head_left, self._head_end_s[relays])
        out_end = np.where(self.out[relays] < 1.0, now + out_left, self._out_end_s[relays])
        source_end = max(float(head_end.max(initial=self.began_s)), self._end_s)
        a_send = (source_end - self.began_s) / order.total
        last_in = head_end - order.after_last[relays] * a_send + self._into_s[relays]
        passing = self._pass_s[relays]
        busy = ~self._idle[relays] & (out_end > head_end)
        fluid = out_end + np.where(busy, order.first[relays] * a_send, 0.0)
        ready = np.maximum(fluid, last_in + passing)
        way = self.latency_s[0, relays + 1][:, None]
        through = ready[:, None] + way + self.latency_s[np.ix_(relays + 1, done + 1)]
        own = relays[:, None] == done[None, :]
        through = np.where(own, last_in[:, None] + way, through)
        ends: FloatArray = through.max(axis=0, initial=0.0)
        if self.direct_share > 0:
            ends = np.maximum(ends, self._end_s + direct_left + self.latency_s[0, done + 1])
        return np.where(self.pace[done], ends, np.maximum(ends, now + self._late_lag(done, a_send)))

    def _late_lag(self, done: IntArray, a_send: float) -> FloatArray:
        """Receivers that were behind: from their fluid end to their last chunk."""
        relays = self.relays
        if not len(relays):
            return self.latency_s[0, done + 1]
        way = self.latency_s[0, relays + 1][:, None] + self.latency_s[np.ix_(relays + 1, done + 1)]
        return np.asarray(way.mean(axis=0) + source_order(self.plan).first[relays].min() * a_send)

    def involved(self) -> set[int]:
        """Nodes whose links matter now."""
        source = {self.source} if self._source_busy() else set()
        return source.union(self.nodes[self.relays].tolist(), self.nodes[self.active].tolist())

    def remove(self, position: int) -> None:
        """A receiver is gone; what it has not passed on goes to the other relays in proportion."""
        self.active[position] = False
        orphaned = float(self.shares[position])
        if orphaned <= 0:
            return
        self.given += orphaned * float(self.out[position])
        orphaned *= 1.0 - float(self.out[position])
        self.shares[position] = self.head[position] = self.out[position] = 0.0
        others = float(self.shares.sum())
        if others > 0:
            grown = 1.0 + orphaned / others
            self.shares *= grown
            self.head /= grown
            self.out /= grown
        else:
            done = self.direct_share * self.direct
            self.direct_share += orphaned
            self.direct = done / self.direct_share if self.direct_share > 0 else 1.0
        self._rewire()
