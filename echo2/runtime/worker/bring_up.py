"""From a `Start` order to an engine that runs with a verified snapshot. Called by the agent."""

from __future__ import annotations

import logging

from echo2.errors import UserError
from echo2.runtime.rollout.engine import EngineError, SwapMode
from echo2.runtime.transport import messages as m
from echo2.runtime.transport.client import Refused
from echo2.runtime.worker.engines import EngineOrder
from echo2.runtime.worker.keeper import Held, Keeper
from echo2.runtime.worker.session import Session
from echo2.runtime.worker.swaps import Swaps

log = logging.getLogger("echo2.worker")

NEWEST = -1


async def bring_up(order: m.Start, run_id: str, keeper: Keeper, swaps: Swaps, session: Session) -> Held:
    """The engine at the snapshot asked for; one that runs is kept or updated where that gives the same.

    An engine whose weights are of a later version, or other weights of the same one (the learner went back
    to a checkpoint), is started anew: versions of an engine only go up. Raises UserError or EngineError.
    """
    await swaps.finished()
    manifest = await _manifest(session, order.version)
    held = keeper.held
    if held is not None and held.fits(run_id, order.slots, order.context_tokens):
        held.swap = SwapMode(order.swap)
        if (held.engine.version, held.weights) == (manifest.version, manifest.weights):
            log.info("the running engine holds version %d already", manifest.version)
            return held
        if held.engine.version < manifest.version and await _updated(held, manifest, swaps):
            return held
    await keeper.stop()
    received = await swaps.receive(manifest.version)
    wanted = EngineOrder(
        received.path,
        received.manifest.version,
        order.slots,
        order.context_tokens,
        SwapMode(order.swap),
    )
    return await keeper.start(wanted, run_id, received.manifest.weights)


async def _manifest(session: Session, version: int) -> m.Manifest:
    """The manifest of `version`, or of the newest where the learner no longer has that one."""
    try:
        return await session.manifest(version)
    except Refused as refusal:
        if refusal.status != 404 or version == NEWEST:
            raise
        log.info("version %d is gone, taking the newest", version)
        return await session.manifest(NEWEST)


async def _updated(held: Held, manifest: m.Manifest, swaps: Swaps) -> bool:
    received = await swaps.receive(manifest.version)
    try:
        await swaps.update(held, received)
    except (UserError, EngineError) as error:
        log.warning("the running engine cannot take version %d, starting anew: %s", manifest.version, error)
        return False
    return True
