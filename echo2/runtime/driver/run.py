"""A live run from start to end: `train` puts its parts together, waits for the end, and leaves cleanly.

Called by `echo2 train`. Whatever ends it (the last step, Ctrl-C, an error) leaves a folder that
`--resume` goes on with: the ledger is durable at every moment, a checkpoint is written where there is time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from echo2.policy import facts as f
from echo2.runtime.data.ledger import Ledger
from echo2.runtime.data.states import Recovery
from echo2.runtime.data.task import turn_tokens_of, turns_of
from echo2.runtime.data.turns import TurnRules
from echo2.runtime.data.verify import Verifier
from echo2.runtime.driver import run_dir
from echo2.runtime.driver.api import LearnerApi
from echo2.runtime.driver.desk import Desk
from echo2.runtime.driver.ending import Interrupt, busy_threads, leave
from echo2.runtime.driver.hub import Hub, Seat
from echo2.runtime.driver.learner_host import LearnerHost
from echo2.runtime.driver.ledger_queue import LedgerQueue
from echo2.runtime.driver.processes import LocalProcesses, end_leftovers
from echo2.runtime.driver.promptness import prompt
from echo2.runtime.driver.prompts import PromptReader
from echo2.runtime.driver.records import Records
from echo2.runtime.driver.run_dir import RunDir
from echo2.runtime.driver.serving import greet, kept_token, relay_host, serve
from echo2.runtime.driver.setup import Setup, load_tokenizer, spec_of_task, stop_tokens
from echo2.runtime.driver.world import LiveWorld
from echo2.runtime.transport.server import Server
from echo2.runtime.transport.signing import kept_key
from echo2.runtime.transport.snapshot import SnapshotStore
from echo2.sim.log import RunLog

STARTS_A_LIFE = 1_000_000
"""Incarnations of a life begin above those of the life before: what a worker still sends is told apart."""


@dataclass(frozen=True)
class Order:
    """What the command line asks for: where, with which configuration text, and whether to go on."""

    folder: Path
    config_text: str
    resume: bool
    token: str | None


@dataclass(frozen=True)
class Ended:
    """How a life of a run ended: complete, `interrupted`, or with an error.

    `summary` is empty where there was nothing left to do.
    """

    version: int
    summary: dict[str, Any]
    interrupted: bool = False
    error: BaseException | None = None


@dataclass(frozen=True)
class _Run:
    """The durable parts of a run, opened: nobody else has the ledger."""

    dir: RunDir
    host: LearnerHost
    verifier: Verifier
    ledger: Ledger
    usd: float
    recovery: Recovery | None


async def train(
    setup: Setup, order: Order, show: Callable[[dict[str, Any]], None], say: Callable[[str], None]
) -> Ended:
    """Run until the end. `show` is told each step's row, `say` what a person wants to know."""
    tokenizer, run = load_tokenizer(setup.model_dir), _found(setup, order)
    ends = stop_tokens(tokenizer, setup.model_dir)
    opened = _opened(setup, order, run, say)
    try:
        return await _train(setup, order, opened, tokenizer, ends, show, say)
    finally:
        if not busy_threads():  # a step that was given up may still be at its commit
            opened.ledger.close()
            opened.host.close()


async def _train(
    setup: Setup,
    order: Order,
    opened: _Run,
    tokenizer: Any,
    ends: tuple[int, ...],
    show: Callable[[dict[str, Any]], None],
    say: Callable[[str], None],
) -> Ended:
    """With the ledger open."""
    if opened.recovery is not None and opened.host.version >= setup.settings.total_steps:
        return Ended(opened.host.version, {})
    if killed := end_leftovers(opened.dir.workers):
        say(f"ended {len(killed)} workers of the life before")
    world, store = _world(setup, opened, tokenizer, ends, show, say)
    loop = asyncio.get_running_loop()
    opened.host.on_loss(lambda error: loop.call_soon_threadsafe(world.fail, error))
    local = {pool.name: pool.local for pool in setup.config.pool}
    first = (opened.dir.life - 1) * STARTS_A_LIFE
    seats = [
        Seat(name, offer.pool, local[offer.pool], incarnation=first) for name, offer in setup.offers.items()
    ]
    world.hub = Hub(opened.dir.run_id, seats, setup.config.train.lease_s, world, store.run_key)
    token = order.token or kept_token(opened.dir)
    server = await serve(setup, opened.dir, LearnerApi(world.hub, world, store), token)
    world.workers.processes = processes = LocalProcesses(
        opened.dir.workers, server.url, token, world.workers.exited, setup.tls[0]
    )
    world.workers.relay_host = relay_host(setup)
    here = [seat.local for seat in seats]
    greet(opened.dir, server, setup.config.train.host, token, here, say, store.run_key)
    with Interrupt(world) as interrupt, prompt():
        try:
            return await _live(world, server, opened, interrupt, say)
        finally:
            processes.kill_all()


async def _live(
    world: LiveWorld, server: Server, run: _Run, interrupt: Interrupt, say: Callable[[str], None]
) -> Ended:
    """From the first fact until everything is closed."""
    error: BaseException | None = None
    try:
        first = asyncio.create_task(_first_facts(world, run.recovery, run.host.version))
        await _first_of(first, interrupt.came)
        if first.done():
            world.begin(first.result())
            await _first_of(world.over, interrupt.came)
        else:
            first.cancel()
        if world.over.done():
            error = world.over.exception()
    except Exception as trouble:
        error = trouble
    stopped, ended_s = not world.over.done() and error is None, world.now()
    reason = f"error: {error}" if error else "interrupted" if stopped else world.over.result()
    await leave(world, server, reason, say)
    error = error or run.host.lost()  # torchrun interrupts this process when another has died
    stopped = stopped and error is None
    complete = error is None and not stopped
    summary = world.records.summary(ended_s, world.scheduler, complete, reason)
    with contextlib.suppress(OSError):
        run.dir.summary.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
        with run.dir.broadcasts.open("a", encoding="utf-8") as stream:
            stream.writelines(json.dumps(row) + "\n" for row in world.records.metrics.dissemination_rows())
    return Ended(run.host.version, summary, stopped, error)


async def _first_of(*ends: asyncio.Future[Any]) -> None:
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)


# ---- putting it together -----------------------------------------------------------------------------


def _found(setup: Setup, order: Order) -> RunDir | None:
    """The run to go on with; None for a new one, for which there is room."""
    if order.resume:
        return run_dir.find(order.folder, setup.identity)
    run_dir.check_free(order.folder)
    return None


def _opened(setup: Setup, order: Order, found: RunDir | None, say: Callable[[str], None]) -> _Run:
    """Load what may be missing or damaged, then take the ledger, and only then write anything else."""
    config = setup.config
    verifier = Verifier(spec_of_task(config), processes=config.train.verifiers)
    checkpoints = (found or RunDir(order.folder, "", 1)).checkpoints
    host = LearnerHost(
        config.train, setup.model_dir, config.rollout.max_tokens, checkpoints, config.run.staleness
    )
    run = found or run_dir.begin(order.folder, order.config_text, setup.identity)
    ledger = Ledger(run.ledger, run.run_id)
    if found is None or (not host.checkpoints() and ledger.version == 0):
        # Also where the life before ended before it had written anything.
        host.save({"usd": 0.0})
        return _Run(run, host, verifier, ledger, 0.0, None)
    state = host.resume()
    for trouble in host.passed_over:
        say(f"passed over: {trouble}")
    if host.version < setup.settings.total_steps:
        run_dir.record(run, order.config_text, setup.identity)
    recovery = ledger.recover(host.version)
    say(_resumed(recovery))
    return _Run(run, host, verifier, ledger, float(state.get("usd", 0.0)), recovery)


def _resumed(recovery: Recovery) -> str:
    """Where a run goes on, and what became of the work of the life before."""
    kept, again = len(recovery.finished_groups), len(recovery.prompts_again)
    undone = ", the steps after it are undone" if recovery.rolled_back else ""
    return (
        f"goes on from the checkpoint of version {recovery.version}{undone}: {kept} finished groups are "
        f"kept, {again} prompts are asked for again"
    )


def _world(
    setup: Setup,
    run: _Run,
    tokenizer: Any,
    ends: tuple[int, ...],
    show: Callable[[dict[str, Any]], None],
    say: Callable[[str], None],
) -> tuple[LiveWorld, SnapshotStore]:
    config, train_, host, where = setup.config, setup.config.train, run.host, run.dir
    keep = max(2, config.run.staleness + 1)
    key = kept_key(where.run_key)
    store = SnapshotStore(where.snapshots, where.run_id, setup.model_files, key, keep=keep)
    store.forget_above(host.version)
    store.put(host.version, host.weights(), owned=True)
    size = float(store.payload(host.version).bytes)
    settings = replace(
        setup.settings, full_snapshot_bytes=size, snapshot_bytes=size, prompts=run.verifier.task.size or 0
    )
    queue = LedgerQueue(run.ledger)
    limit, judges = config.rollout.max_tokens, train_.verifiers
    task, turns = run.verifier.task, None
    if turns_of(task) > 1:
        turns = TurnRules(tokenizer, train_.template, frozenset(ends), turn_tokens_of(task), limit)
    desk = Desk(queue, run.verifier, tokenizer, host.vocab_size, limit, judges, turns)
    prompts = PromptReader(task, tokenizer, train_.template, train_.max_prompt_tokens)
    price, boards = settings.learner_usd_per_h, where.path / "tensorboard"
    records = Records(where.metrics, boards, setup.offers, price, train_.wandb, host.version)
    records.carried_usd = max(records.carried_usd, run.usd)
    log = RunLog(where.log, settings)
    world = LiveWorld(
        config, settings, setup.offers, host, queue, desk, store, records, log, prompts, ends, show, say
    )
    return world, store


async def _first_facts(world: LiveWorld, recovery: Recovery | None, version: int) -> list[f.Fact]:
    """What the scheduler is told at the start: complete groups of the life before, then the start."""
    if recovery is None:
        return [f.RunStarted(world.now(), version)]
    found: list[f.Fact] = []
    for group_id in recovery.finished_groups:
        rollouts = list(world.queue.ledger.rollouts(group_id=group_id))
        waiting = [rollout for rollout in rollouts if not rollout.judged]
        if waiting:
            await world.desk.judge(waiting, {group_id: world.prompts.prompt(waiting[0].prompt)})
        first = rollouts[0]
        oldest = min(rollout.oldest_version for rollout in rollouts)
        tokens = sum(rollout.generated for rollout in rollouts)
        found.append(
            f.GroupRecovered(
                world.now(), group_id, first.worker_id, first.prompt, first.attempt, tokens, oldest
            )
        )
    again = recovery.prompts_again
    found.append(f.RunStarted(world.now(), version, recovery.next_prompt, recovery.next_group_id, again))
    return found
