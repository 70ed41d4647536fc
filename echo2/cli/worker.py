"""`echo2 worker`: generate rollouts for a learner, on this machine, until it says stop."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from echo2.cli.exits import INFEASIBLE
from echo2.cli.options import whole
from echo2.errors import UserError

if TYPE_CHECKING:
    from echo2.runtime.rollout.openai_engine import EndpointSettings
    from echo2.runtime.worker.build import WorkerSettings
    from echo2.runtime.worker.engines import SimulatedProfile

LEARNER_GONE = INFEASIBLE


def worker(
    join: Annotated[
        str, typer.Option("--join", metavar="URL", help="The learner, as `echo2 train` shows it.")
    ],
    token: Annotated[
        str,
        typer.Option(
            "--token",
            metavar="T",
            envvar="ECHO2_TOKEN",
            show_envvar=False,
            help="The run's token. Better in ECHO2_TOKEN: others on this machine can see a command line.",
        ),
    ] = "",
    pool: Annotated[
        str, typer.Option("--pool", metavar="NAME", help="The pool of the configuration it belongs to.")
    ] = "remote",
    engine: Annotated[
        str,
        typer.Option(
            "--engine", metavar="NAME", help="vllm, transformers, openai, or simulated (only sleeps)."
        ),
    ] = "vllm",
    worker_id: Annotated[
        str | None,
        typer.Option("--worker-id", metavar="ID", help="Its name, where the learner has given one."),
    ] = None,
    work_dir: Annotated[
        Path | None,
        typer.Option("--work-dir", metavar="DIR", help="Where snapshots are kept; temporary by default."),
    ] = None,
    threads: Annotated[
        int,
        typer.Option(
            "--threads",
            metavar="N",
            parser=whole("--threads", 0, 1024),
            help="CPU threads, without a GPU; 0: all.",
        ),
    ] = 0,
    ca: Annotated[
        Path | None,
        typer.Option("--ca", metavar="FILE", help="Certificates to trust instead of the system's."),
    ] = None,
    give_up_after: Annotated[
        float,
        typer.Option(
            "--give-up-after",
            metavar="SECONDS",
            min=0.0,
            help="End (exit code 3) when the learner is silent.",
        ),
    ] = 900.0,
    run_key: Annotated[
        str,
        typer.Option(
            "--run-key",
            metavar="KEY",
            help="The run's public key; snapshots signed by another are refused from the start.",
        ),
    ] = "",
    relay: Annotated[
        bool,
        typer.Option("--relay/--no-relay", help="Pass snapshots on to other workers that reach this one."),
    ] = True,
    relay_port: Annotated[
        int,
        typer.Option(
            "--relay-port",
            metavar="N",
            parser=whole("--relay-port", 0, 65535),
            help="Where others reach it; 0: any free port.",
        ),
    ] = 0,
    relay_host: Annotated[
        str,
        typer.Option(
            "--relay-host",
            metavar="HOST",
            help="The address others are told; this machine's own towards the learner by default.",
        ),
    ] = "",
    relay_mbps: Annotated[
        float, typer.Option("--relay-mbps", metavar="N", min=0.0, help="Limit what is passed on.")
    ] = 0.0,
    link: Annotated[
        str | None,
        typer.Option("--link", metavar="TRACE", help="Shape the link like this trace of `echo2 traces`."),
    ] = None,
    downlink_mbps: Annotated[
        float, typer.Option("--downlink-mbps", metavar="N", min=0.0, help="Limit what comes in.")
    ] = 0.0,
    uplink_mbps: Annotated[
        float, typer.Option("--uplink-mbps", metavar="N", min=0.0, help="Limit what goes out.")
    ] = 0.0,
    rtt_ms: Annotated[
        float, typer.Option("--rtt-ms", metavar="N", min=0.0, help="Round trip that every request pays.")
    ] = 0.0,
    link_seed: Annotated[
        int,
        typer.Option(
            "--link-seed",
            metavar="N",
            parser=whole("--link-seed", 0, 2**32 - 1),
            help="Where a trace begins.",
        ),
    ] = 0,
    simulated: Annotated[
        str,
        typer.Option(
            "--simulated",
            metavar="TOKENS/S:TOKENS",
            help="For --engine simulated: its rate, and the tokens of a rollout.",
        ),
    ] = "2000:64",
    endpoint: Annotated[
        str, typer.Option("--endpoint", metavar="URL", help="For --engine openai: the server to drive.")
    ] = "",
    endpoint_weights: Annotated[
        Path | None,
        typer.Option(
            "--endpoint-weights",
            metavar="DIR",
            help="A directory shared with it, for weights.",
        ),
    ] = None,
    endpoint_sees: Annotated[
        str,
        typer.Option("--endpoint-sees", metavar="DIR", help="That directory's path there, where it differs."),
    ] = "",
    endpoint_model: Annotated[
        str, typer.Option("--endpoint-model", metavar="NAME", help="Which of several it serves.")
    ] = "",
    endpoint_routes: Annotated[
        Path | None,
        typer.Option("--endpoint-routes", metavar="FILE", help="How it swaps weights, unless as vLLM does."),
    ] = None,
    endpoint_key: Annotated[
        str,
        typer.Option(
            "--endpoint-key",
            metavar="KEY",
            envvar="ECHO2_ENDPOINT_KEY",
            show_envvar=False,
            help="Its API key. Better in ECHO2_ENDPOINT_KEY.",
        ),
    ] = "",
    parent_pid: Annotated[
        int,
        typer.Option("--parent-pid", metavar="PID", parser=whole("--parent-pid", 0, 2**31 - 1), hidden=True),
    ] = 0,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log everything that arrives.")] = False,
) -> None:
    """Generate rollouts for the learner at URL until it says stop. Ctrl-C ends it in order."""
    from echo2.runtime.worker.environment import prepare

    prepare(threads)  # before anything imports torch
    from echo2.runtime.worker.agent import AgentLimits
    from echo2.runtime.worker.build import LinkSettings, WorkerSettings
    from echo2.runtime.worker.peers import RelaySettings
    from echo2.runtime.worker.process import log_to_stderr, new_session

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
    if not token:
        raise UserError("no token given; set ECHO2_TOKEN to the one `echo2 train` shows, or give --token")
    log_to_stderr(verbose)
    raise typer.Exit(_run(settings, parent_pid))


def _run(settings: WorkerSettings, parent_pid: int) -> int:
    from echo2.runtime.worker.process import work
    from echo2.runtime.worker.session import LearnerGoneError

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
