"""A sweep on a Ray cluster: each point is one task, and rows are the same as those of local processes.

A worker first makes the point's key again, of the code and traces that it has itself: where they are others
than here, the sweep ends, as its rows would be of something else. Called by `sweep`.
"""

from __future__ import annotations

import importlib
import os
import socket
from collections.abc import Generator, Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

from echo2.cli.output import warn
from echo2.cli.sweep_grid import Digests, Point, key_of
from echo2.cli.sweep_point import Row, run_point
from echo2.errors import UserError

KNOCK_S = 10.0
LOOK_S = 60.0
# No point takes this long to simulate; a cluster that has finished none has no room for one.
STALL_S = 3600.0
RETRIES = 3


def check_ray() -> None:
    """Refuse the backend where Ray is not installed."""
    if find_spec("ray") is None:
        raise UserError("--backend ray: Ray is not installed; install echo2[ray], or give --backend local")


def ray_results(tasks: Sequence[Point], jobs: int, address: str | None) -> Generator[Row, None, None]:
    """The row of every point as it is done, at most `jobs` at a time (0: as many as the cluster has CPUs).

    `address` None: the cluster of RAY_ADDRESS, else one started on this machine and stopped at the end.
    """
    check_ray()
    if not tasks:
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # A local cluster's workers must not each look for the accelerators that no simulation uses.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    ray = importlib.import_module("ray")
    ours = not ray.is_initialized()
    if ours:
        _connect(ray, jobs, address)
    try:
        yield from _rows(ray, tasks, jobs)
    finally:
        if ours:
            ray.shutdown()


def _connect(ray: Any, jobs: int, address: str | None) -> None:
    joins = address or os.environ.get("RAY_ADDRESS")
    size = {} if joins else {"num_cpus": jobs or os.cpu_count() or 1, "include_dashboard": False}
    try:
        _knock(joins or "")
        ray.init(address=joins, log_to_driver=False, logging_level="ERROR", **size)
    except (OSError, RuntimeError, ValueError) as error:
        where = f"--ray-address {joins}" if joins else "a Ray cluster on this machine"
        said = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(f"{where}: cannot be reached ({said}); start it, or give --backend local") from None


def _knock(address: str) -> None:
    """OSError where nobody listens at HOST:PORT: Ray itself tries for minutes, and writes a page about it."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), KNOCK_S).close()


def _rows(ray: Any, tasks: Sequence[Point], jobs: int) -> Generator[Row, None, None]:
    cpus = int(ray.cluster_resources().get("CPU", 0))
    if cpus < 1:
        raise UserError("--backend ray: the cluster has 0 CPUs; add a node with at least 1")
    work = ray.remote(num_cpus=1, max_retries=RETRIES)(_work)
    here, left = os.getcwd(), iter(tasks)
    running: dict[Any, Point] = {}
    try:
        while True:
            while len(running) < min(jobs or cpus, len(tasks)) and (task := next(left, None)) is not None:
                running[work.remote(task, here)] = task
            if not running:
                return
            for reference in _finished(ray, list(running)):
                yield _row(ray, reference, running.pop(reference))
    finally:
        for reference in running:
            with suppress(Exception):
                ray.cancel(reference, force=True)


def _finished(ray: Any, running: list[Any]) -> list[Any]:
    """Those that are done, at least one. Where none comes, it is said; after `STALL_S` it is the end."""
    waited = 0.0
    while waited < STALL_S:
        done, _ = ray.wait(running, num_returns=1, timeout=LOOK_S)
        if done:
            return list(done)
        waited += LOOK_S
        free = ray.available_resources().get("CPU", 0)
        warn(f"no point was finished in {waited:.0f} s; {len(running)} are under way, {free:g} CPUs are free")
    raise UserError(f"--backend ray: no point was finished in {STALL_S:.0f} s; is the cluster full or gone?")


def _row(ray: Any, reference: Any, point: Point) -> Row:
    try:
        row, trouble = ray.get(reference)
    except ray.exceptions.RayError as error:
        said = str(error).strip().splitlines()[0]
        raise UserError(
            f"--backend ray: the worker of point {point.index} was lost {RETRIES + 1} times ({said}); "
            "it may have been killed for want of memory: give fewer --jobs"
        ) from None
    if trouble == "memory":
        raise MemoryError
    if trouble:
        raise UserError(f"--backend ray: {trouble}")
    return dict(row)


def _work(point: Point, folder: str) -> tuple[Row, str]:
    """In a worker: (the row, empty), or (nothing, what is the matter)."""
    with suppress(OSError):
        os.chdir(folder)
    if key_of(point.config, Digests(point.loaded.base_dir)) != point.key:
        return {}, (
            f"node {os.uname().nodename} has another version of echo2 or of a trace than this one; install "
            "the same everywhere, and keep your own traces at the same path on every node"
        )
    try:
        return run_point(point), ""
    except MemoryError:
        return {}, "memory"
