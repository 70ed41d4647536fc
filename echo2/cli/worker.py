"""`echo2 worker`: generate rollouts for a learner, on this machine, until it says stop."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from echo2.cli import worker_options as o
from echo2.cli.exits import INFEASIBLE
from echo2.errors import UserError

if TYPE_CHECKING:
    from echo2.runtime.rollout.openai_engine import EndpointSettings
    from echo2.runtime.worker.build import WorkerSettings
    from echo2.runtime.worker.engines import SimulatedProfile

LEARNER_GONE = INFEASIBLE


def worker(
    join: o.Join,
    token: o.Token = "",
    pool: o.Pool = "remote",
    engine: o.Engine = "vllm",
    worker_id: o.WorkerId = None,
    work_dir: o.WorkDir = None,
    threads: o.Threads = 0,
    ca: o.Ca = None,
    give_up_after: o.GiveUpAfter = 900.0,
    run_key: o.RunKey = "",
    relay: o.Relay = True,
    relay_port: o.RelayPort = 0,
    relay_host: o.RelayHost = "",
    relay_mbps: o.RelayMbps = 0.0,
    link: o.Link = None,
    downlink_mbps: o.DownlinkMbps = 0.0,
    uplink_mbps: o.UplinkMbps = 0.0,
    rtt_ms: o.RttMs = 0.0,
    link_seed: o.LinkSeed = 0,
    simulated: o.Simulated = "2000:64",
    endpoint: o.Endpoint = "",
    endpoint_weights: o.EndpointWeights = None,
    endpoint_sees: o.EndpointSees = "",
    endpoint_model: o.EndpointModel = "",
    endpoint_routes: o.EndpointRoutes = None,
    endpoint_key: o.EndpointKey = "",
    parent_pid: o.ParentPid = 0,
    verbose: o.Verbose = False,
) -> None:
    """Generate rollouts for the learner at URL until it says stop. Ctrl-C ends it in order."""
    from echo2.runtime.worker.environment import prepare

    prepare(threads)  # before anything imports torch
    from echo2.runtime.worker.agent import AgentLimits
    from echo2.runtime.worker.build import LinkSettings, WorkerSettings
    from echo2.runtime.worker.peers import RelaySettings
    from echo2.runtime.worker.process import new_session

    session = new_session()
    settings = WorkerSettings(
        url=join,
        token=token,
        session=session,
        pool=pool,
        engine=engine,
        worker_id=worker_id,
        work_dir=work_dir,
        ca=ca,
        run_key=run_key,
        relay=RelaySettings(relay, relay_port, relay_host, relay_mbps),
        link=LinkSettings(downlink_mbps, uplink_mbps, rtt_ms, link, link_seed, worker_id or session),
        limits=AgentLimits(give_up_s=give_up_after),
        profile=_profile(simulated),
        endpoint=_endpoint(
            engine, endpoint, endpoint_weights, endpoint_sees, endpoint_model, endpoint_key, endpoint_routes
        ),
    )
    raise typer.Exit(_run(settings, parent_pid, verbose))


def _run(settings: WorkerSettings, parent_pid: int, verbose: bool) -> int:
    from echo2.runtime.worker.process import log_to_stderr, work
    from echo2.runtime.worker.session import LearnerGoneError

    if not settings.token:
        raise UserError("no token given; set ECHO2_TOKEN to the one `echo2 train` shows, or give --token")
    log_to_stderr(verbose)
    try:
        return work(settings, parent_pid)
    except LearnerGoneError as error:
        sys.stderr.write(f"error: {' '.join(str(error).split())}\n")
        return LEARNER_GONE


def _endpoint(
    engine: str, url: str, weights: Path | None, sees: str, model: str, key: str, routes: Path | None
) -> EndpointSettings | None:
    if engine != "openai":
        if url:
            raise UserError(f"--endpoint is given, but --engine is {engine}; give --engine openai")
        return None
    if not url or weights is None:
        raise UserError("--engine openai needs --endpoint URL and --endpoint-weights DIR")
    from echo2.runtime.rollout.openai_endpoint import Routes
    from echo2.runtime.rollout.openai_engine import EndpointSettings

    if routes is not None:
        Routes.read(routes)  # refused here rather than at the learner's first order
    return EndpointSettings(url, weights, sees, model, key, routes)


def _profile(text: str) -> SimulatedProfile:
    from echo2.runtime.worker.engines import SimulatedProfile

    rate, _, tokens = text.partition(":")
    try:
        made = SimulatedProfile(float(rate), int(tokens))
        if not (0 < made.tokens_per_s < float("inf") and made.tokens >= 1):
            raise ValueError
    except ValueError:
        raise UserError(
            f"--simulated is {text!r}; give tokens per second and tokens of a rollout, like 2000:64"
        ) from None
    return made
