"""The options of `echo2 worker`, each an annotated type; the command is in `worker`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from echo2.cli.options import whole

# ---- whom it works for ---------------------------------------------------------------------------

Join = Annotated[str, typer.Option("--join", metavar="URL", help="The learner, as `echo2 train` shows it.")]
Token = Annotated[
    str,
    typer.Option(
        "--token",
        metavar="T",
        envvar="ECHO2_TOKEN",
        show_envvar=False,
        help="The run's token. Better in ECHO2_TOKEN: others on this machine can see a command line.",
    ),
]
Pool = Annotated[
    str, typer.Option("--pool", metavar="NAME", help="The pool of the configuration it belongs to.")
]
WorkerId = Annotated[
    str | None,
    typer.Option("--worker-id", metavar="ID", help="Its name, where the learner has given one."),
]
Ca = Annotated[
    Path | None,
    typer.Option("--ca", metavar="FILE", help="Certificates to trust instead of the system's."),
]
GiveUpAfter = Annotated[
    float,
    typer.Option(
        "--give-up-after", metavar="SECONDS", min=0.0, help="End (exit code 3) when the learner is silent."
    ),
]
RunKey = Annotated[
    str,
    typer.Option(
        "--run-key",
        metavar="KEY",
        help="The run's public key; snapshots signed by another are refused from the start.",
    ),
]

# ---- this machine --------------------------------------------------------------------------------

Engine = Annotated[
    str,
    typer.Option("--engine", metavar="NAME", help="vllm, transformers, openai, or simulated (only sleeps)."),
]
WorkDir = Annotated[
    Path | None,
    typer.Option("--work-dir", metavar="DIR", help="Where snapshots are kept; temporary by default."),
]
Threads = Annotated[
    int,
    typer.Option(
        "--threads",
        metavar="N",
        parser=whole("--threads", 0, 1024),
        help="CPU threads, without a GPU; 0: all.",
    ),
]
Simulated = Annotated[
    str,
    typer.Option(
        "--simulated",
        metavar="TOKENS/S:TOKENS",
        help="For --engine simulated: its rate, and the tokens of a rollout.",
    ),
]
ParentPid = Annotated[
    int, typer.Option("--parent-pid", metavar="PID", parser=whole("--parent-pid", 0, 2**31 - 1), hidden=True)
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Log everything that arrives.")]

# ---- passing snapshots on ------------------------------------------------------------------------

Relay = Annotated[
    bool, typer.Option("--relay/--no-relay", help="Pass snapshots on to other workers that reach this one.")
]
RelayPort = Annotated[
    int,
    typer.Option(
        "--relay-port",
        metavar="N",
        parser=whole("--relay-port", 0, 65535),
        help="Where others reach it; 0: any free port.",
    ),
]
RelayHost = Annotated[
    str,
    typer.Option(
        "--relay-host",
        metavar="HOST",
        help="The address others are told; this machine's own towards the learner by default.",
    ),
]
RelayMbps = Annotated[
    float, typer.Option("--relay-mbps", metavar="N", min=0.0, help="Limit what is passed on.")
]

# ---- a link like a WAN ---------------------------------------------------------------------------

Link = Annotated[
    str | None,
    typer.Option("--link", metavar="TRACE", help="Shape the link like this trace of `echo2 traces`."),
]
DownlinkMbps = Annotated[
    float, typer.Option("--downlink-mbps", metavar="N", min=0.0, help="Limit what comes in.")
]
UplinkMbps = Annotated[
    float, typer.Option("--uplink-mbps", metavar="N", min=0.0, help="Limit what goes out.")
]
RttMs = Annotated[
    float, typer.Option("--rtt-ms", metavar="N", min=0.0, help="Round trip that every request pays.")
]
LinkSeed = Annotated[
    int,
    typer.Option(
        "--link-seed", metavar="N", parser=whole("--link-seed", 0, 2**32 - 1), help="Where a trace begins."
    ),
]

# ---- the server of engine openai -----------------------------------------------------------------

Endpoint = Annotated[
    str, typer.Option("--endpoint", metavar="URL", help="For --engine openai: the server to drive.")
]
EndpointWeights = Annotated[
    Path | None,
    typer.Option("--endpoint-weights", metavar="DIR", help="A directory shared with it, for weights."),
]
EndpointSees = Annotated[
    str,
    typer.Option("--endpoint-sees", metavar="DIR", help="That directory's path there, where it differs."),
]
EndpointModel = Annotated[
    str, typer.Option("--endpoint-model", metavar="NAME", help="Which of several it serves.")
]
EndpointRoutes = Annotated[
    Path | None,
    typer.Option("--endpoint-routes", metavar="FILE", help="How it swaps weights, unless as vLLM does."),
]
EndpointKey = Annotated[
    str,
    typer.Option(
        "--endpoint-key",
        metavar="KEY",
        envvar="ECHO2_ENDPOINT_KEY",
        show_envvar=False,
        help="Its API key. Better in ECHO2_ENDPOINT_KEY.",
    ),
]
