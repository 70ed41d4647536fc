"""A live run from start to end: `train` puts its parts together, waits for the end, and leaves cleanly.

Called by `echo2 train`. Whatever ends it (the last step, Ctrl-C, an error) leaves a folder that
`--resume` goes on with: the ledger is durable at every moment, a checkpoint is written where there is time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from echo2.errors import UserError
from echo2.policy import facts as f
from echo2.runtime.data.ledger import Ledger
from echo2.runtime.data.states import Recovery
from echo2.runtime.data.verify import Verifier
from echo2.runtime.driver.api import LearnerApi
from echo2.runtime.driver.desk import Desk
from echo2.runtime.driver.hub import Hub, Seat
from echo2.runtime.driver.learner_host import LearnerHost
from echo2.runtime.driver.ledger_queue import LedgerQueue
from echo2.runtime.driver.processes import LocalProcesses
from echo2.runtime.driver.records import Records
from echo2.runtime.driver.run_dir import RunDir
from echo2.runtime.driver.setup import Setup, load_tokenizer, spec_of_task, stop_tokens
from echo2.runtime.driver.world import LiveWorld
from echo2.runtime.transport.server import Server, make_app
from echo2.runtime.transport.snapshot import SnapshotStore
from echo2.sim.log import RunLog

STEP_S = 5.0
"""How long an end waits for the step that runs, so that its work is kept."""


@dataclass(frozen=True)
class Ended:
    """How a life of a run ended: `complete`, `interrupted`, or with an error."""

    summary: dict[str, Any]
    interrupted: bool
    error: BaseException | None


async def train(
    setup: Setup,
    run: RunDir,
    resume: bool,
    token: str | None,
    show: Callable[[dict[str, Any]], None],
    say: Callable[[str], None],
) -> Ended:
    """Run until the end. `show` is told each step's row, `say` what a person wants to know."""
    config, train_ = setup.config, setup.config.train
    tokenizer = load_tokenizer(setup.model_dir)
    spec = spec_of_task(config)
    verifier = Verifier(spec, processes=train_.verifiers)
    host = LearnerHost(
        train_, setup.model_dir, config.rollout.max_tokens, run.checkpoints, config.run.staleness
    )
    ledger, state, recovery = _ledger(run, host, resume)
    store = SnapshotStore(run.snapshots, run.run_id, setup.model_files, keep=max(2, config.run.staleness + 1))
    store.forget_above(host.version)
    size = float(sum(file.size for file in store.put(host.version, host.weights()).files))
    settings = replace(
        setup.settings, full_snapshot_bytes=size, snapshot_bytes=size, prompts=verifier.task.size or 0
    )
    queue = LedgerQueue(ledger)
    desk = Desk(
        queue, verifier, tokenizer, host.vocab_size, config.rollout.max_tokens, judges=train_.verifiers
    )
    boards = run.path / "tensorboard"
    records = Records(run.metrics, boards, setup.offers, settings.learner_usd_per_h, train_.wandb)
    records.carried_usd = float(state.get("usd", 0.0))
    log = RunLog(run.log, settings)
    world = LiveWorld(
        config, settings, setup.offers, host, queue, desk, store, records, log, verifier.task, tokenizer,
        stop_tokens(tokenizer, setup.model_dir), show,
    )  # fmt: skip
    local = {pool.name: pool.local for pool in config.pool}
    seats = [Seat(name, offer.pool, local[offer.pool]) for name, offer in setup.offers.items()]
    world.hub = Hub(run.run_id, seats, train_.lease_s, world)
    token = token or _kept_token(run)
    api = LearnerApi(world.hub, world, store)
    server = Server(make_app(api, token), train_.host, _port(run, train_.port), *setup.tls)
    await server.start()
    _keep(run, server.url, token)
    world.processes = LocalProcesses(run.workers, server.url, token, world.exited)
    say(f"learner at {server.url}, {run.path}, {len(seats)} workers on offer")
    if not all(local.values()):
        say(
            f"workers join with: echo2 worker --join {server.url} --pool NAME --token $(cat {run.path}/token)"
        )
    interrupted = _signals()
    error: BaseException | None = None
    try:
        world.begin(await _first_facts(world, recovery, host.version))
        ends: list[asyncio.Future[Any]] = [world.over, interrupted]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if world.over.done():
            error = world.over.exception()
    finally:
        stopped, ended_s = interrupted.done(), world.now()
        reason = _reason(world, stopped, error)
        await _leave(world, server, reason, say)
    complete = error is None and not stopped
    summary = records.summary(ended_s, world.scheduler, complete, reason)
    with contextlib.suppress(OSError):
        run.summary.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    return Ended(summary, stopped, error)


async def _leave(world: LiveWorld, server: Server, reason: str, say: Callable[[str], None]) -> None:
    """Tell everyone, let the running step end, write a checkpoint, close everything."""
    world.hub.close(reason)
    await world.stop()
    stopping = asyncio.create_task(world.processes.stop_all())
    if world.step_running():
        assert world.stepping is not None
        await asyncio.wait([world.stepping], timeout=STEP_S)
    try:
        if world.step_running():
            say("the step that runs is given up; the last checkpoint stands")
        else:
            world.save_checkpoint()
    except UserError as trouble:
        say(f"no checkpoint: {trouble}")
    await stopping
    await server.stop()
    now = world.now()
    for meter in world.records.meters.values():
        meter.stop(now)
    world.desk.close()
    world.close_log()
    world.records.close()
    if not world.step_running():
        world.queue.close()


def _reason(world: LiveWorld, stopped: bool, error: BaseException | None) -> str:
    if error is not None:
        return f"error: {error}"
    return "interrupted" if stopped else str(world.over.result()) if world.over.done() else "an error"


def _ledger(run: RunDir, host: LearnerHost, resume: bool) -> tuple[Ledger, dict[str, Any], Recovery | None]:
    """The ledger, the state kept with the checkpoint, and what is left to do of a stopped run."""
    if not resume:
        host.save({"usd": 0.0})
        return Ledger(run.ledger, run.run_id), {}, None
    state = host.resume()
    ledger = Ledger(run.ledger, run.run_id)
    return ledger, state, ledger.recover(host.version)


async def _first_facts(world: LiveWorld, recovery: Recovery | None, version: int) -> list[f.Fact]:
    """What the scheduler is told at the start: complete groups of the life before, then the start."""
    if recovery is None:
        return [f.RunStarted(world.now(), version)]
    found: list[f.Fact] = []
    for group_id in recovery.finished_groups:
        rollouts = list(world.queue.ledger.rollouts(group_id=group_id))
        waiting = [rollout for rollout in rollouts if not rollout.judged]
        if waiting:
            await world.desk.judge(waiting, {group_id: world.prompt(waiting[0].prompt)})
        first = rollouts[0]
        oldest = min(rollout.oldest_version for rollout in rollouts)
        tokens = sum(rollout.tokens for rollout in rollouts)
        found.append(
            f.GroupRecovered(
                world.now(), group_id, first.worker_id, first.prompt, first.attempt, tokens, oldest
            )
        )
    again = recovery.prompts_again
    found.append(f.RunStarted(world.now(), version, recovery.next_prompt, recovery.next_group_id, again))
    return found


def _signals() -> asyncio.Future[Any]:
    """Done at the first SIGINT or SIGTERM; a second one ends the process at once."""
    loop = asyncio.get_running_loop()
    interrupted: asyncio.Future[Any] = loop.create_future()

    def on_signal() -> None:
        if interrupted.done():
            sys.stderr.write("interrupted again: leaving at once\n")
            raise SystemExit(130)
        interrupted.set_result(None)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    return interrupted


def _kept_token(run: RunDir) -> str:
    file = run.path / "token"
    return file.read_text(encoding="utf-8").strip() if file.is_file() else secrets.token_urlsafe(24)


def _port(run: RunDir, port: int) -> int:
    """The port asked for, else the one of the life before, so that remote workers find the learner again."""
    with contextlib.suppress(OSError, ValueError):
        return port or int((run.path / "url").read_text(encoding="utf-8").rsplit(":", 1)[1])
    return port


def _keep(run: RunDir, url: str, token: str) -> None:
    (run.path / "url").write_text(url + "\n", encoding="utf-8")
    file = run.path / "token"
    file.touch(mode=0o600)
    file.write_text(token + "\n", encoding="utf-8")
