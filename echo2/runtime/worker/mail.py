"""The loops that send what has piled up, oldest first and again until it is answered. Run by the agent."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

from echo2.runtime.transport import messages as m
from echo2.runtime.transport.client import Refused
from echo2.runtime.worker.outbox import Outbox
from echo2.runtime.worker.reports import ReportQueue
from echo2.runtime.worker.session import Session

log = logging.getLogger("echo2.worker")

WELCOME_OUTCOMES = ("accepted", "duplicate")


async def send_rollouts(outbox: Outbox, session: Session) -> None:
    """Upload rollouts for ever. Raises UserError or LearnerGoneError when that makes no sense any more.

    An upload refused as a whole is taken apart, so that one bad rollout does not hold up the others.
    """
    most = m.MAX_ROLLOUTS
    while True:
        upload = await outbox.batch(most)
        try:
            verdicts = (await session.rollouts(upload)).verdicts
        except Refused as refusal:
            if len(upload.rollouts) > 1:
                most = 1
                continue
            bad = upload.rollouts[0]
            log.error("rollout %d:%d is dropped: %s", bad.group_id, bad.index, refusal)
            verdicts = (m.Verdict(group_id=bad.group_id, index=bad.index, outcome="refused"),)
        else:
            most = m.MAX_ROLLOUTS
            _note(verdicts)
        outbox.settle(upload.incarnation, verdicts)


async def send_reports(queue: ReportQueue, session: Session) -> None:
    """Send reports for ever. Raises as `send_rollouts` does."""
    while True:
        reports = await queue.batch()
        try:
            await session.reports(reports)
        except Refused as refusal:
            kinds = ", ".join(report.kind for report in reports.reports)
            log.error("reports (%s) are dropped: %s", kinds, refusal)
        queue.settle(reports)


async def flush(outbox: Outbox, queue: ReportQueue, within_s: float) -> None:
    """Wait until everything has been answered, while the loops run."""
    try:
        async with asyncio.timeout(within_s):
            await outbox.emptied()
            await queue.emptied()
    except TimeoutError:
        log.warning("%d rollouts and %d reports could not be sent", len(outbox), len(queue))


def _note(verdicts: tuple[m.Verdict, ...]) -> None:
    """One line for rollouts that the learner did not want."""
    unwanted = [verdict for verdict in verdicts if verdict.outcome not in WELCOME_OUTCOMES]
    log.debug("uploaded %d rollouts", len(verdicts))
    if unwanted:
        counts = Counter(verdict.outcome for verdict in unwanted)
        what = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
        detail = next((verdict.detail for verdict in unwanted if verdict.detail), "")
        log.warning("of %d rollouts not taken: %s%s", len(verdicts), what, f" ({detail})" if detail else "")
