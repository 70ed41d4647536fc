"""The learner's HTTP API: routes from messages to the coordinator, and a server that runs in the event loop.

Made and started by whoever runs `echo2 train`. It decides nothing: `Coordinator` does. Bodies are parsed by
pydantic from raw bytes, on the event loop, which is what keeps 500 rollouts/s cheap on one core. Snapshots
and chunks need the token but no lease, so that a download outlives a restart of the learner.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

from echo2 import __version__
from echo2.runtime.transport import messages as m
from echo2.runtime.transport.auth import checked_token
from echo2.runtime.transport.chunk_reply import chunk_reply
from echo2.runtime.transport.coordinator import Coordinator, Refusal
from echo2.runtime.transport.door import Door, lease_of, parsed, problem, reply
from echo2.runtime.transport.limits import DEFAULT_LIMITS, Limits
from echo2.runtime.transport.openapi import body_of, describe
from echo2.runtime.transport.pages import Pages
from echo2.runtime.transport.running import Server
from echo2.runtime.transport.shaping import Shaper

__all__ = ["Server", "make_app"]

Handler = Callable[[Request], Awaitable[Response]]

_PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": m.Problem} for status in (401, 408, 409, 413, 422, 503)
}


def make_app(
    coordinator: Coordinator,
    token: str,
    limits: Limits = DEFAULT_LIMITS,
    uplink: Shaper | None = None,
    docs: bool = False,
) -> FastAPI:
    """The API as an ASGI application. `uplink` shapes what chunks leave with; `docs` serves /docs.

    Raises UserError for a token that is no good.
    """
    app = FastAPI(
        title="echo2 learner",
        version=__version__,
        description="Workers dial out to this API. Every request under /v1 carries the run's token.",
        docs_url="/docs" if docs else None,
        redoc_url=None,
    )
    app.state.door = Door(checked_token(token), limits)
    routes = _Routes(app, coordinator, app.state.door, uplink)
    app.add_exception_handler(HTTPException, _not_found)
    routes.add()
    return app


class _Routes:
    """The routes of one app."""

    def __init__(self, app: FastAPI, coordinator: Coordinator, door: Door, uplink: Shaper | None) -> None:
        self._app, self._coordinator, self._door, self._uplink = app, coordinator, door, uplink
        self._manifest: tuple[m.SignedManifest | None, bytes] = (None, b"")

    def add(self) -> None:
        """Register them all."""
        self._post("/v1/hello", m.Hello, m.Welcome, self.hello)
        self._post("/v1/work", m.WorkRequest, m.WorkReply, self.work)
        self._post("/v1/rollouts", m.Upload, m.UploadReply, self.rollouts)
        self._post("/v1/reports", m.Reports, m.Done, self.reports)
        self._post("/v1/leave", m.Leave, m.Done, self.leave)
        self._get("/v1/snapshots/{version}", self.manifest, {200: {"model": m.SignedManifest}}, True)
        self._get("/v1/pages/{version}", self.pages, {200: {"model": Pages}}, True)
        binary: dict[str, Any] = {"content": {"application/octet-stream": {}}}
        self._get("/v1/chunks/{digest}", self.chunk, {200: binary, 206: binary}, True)
        self._get("/metrics", self.metrics, {200: {"content": {"text/plain": {}}}}, False)
        self._get("/healthz", self.health, {}, False)
        describe(self._app, [m.Hello, m.WorkRequest, m.Upload, m.Reports, m.Leave])

    # ---- what each route does --------------------------------------------------------------------

    async def hello(self, request: Request) -> Response:
        body = await self._door.body(request, self._door.limits.hello_bytes)
        _check_protocol(body)
        hello = parsed(m.Hello, body)
        self._door.leases.admit(hello.session)
        welcome = self._coordinator.hello(hello, request.client.host if request.client else "")
        self._door.leases.hold(hello.session, welcome.lease, welcome.lease_s)
        return reply(welcome)

    async def work(self, request: Request) -> Response:
        message = await self._door.message(request, m.WorkRequest, self._door.limits.work_bytes)
        lease = lease_of(request)
        self._door.leases.renew(lease)
        return reply(await self._door.long_poll(self._coordinator.work(lease, message)))

    async def rollouts(self, request: Request) -> Response:
        # the lease first: a body may be megabytes
        lease = self._known_lease(request)
        message = await self._door.message(request, m.Upload, self._door.limits.rollouts_bytes)
        return reply(await self._coordinator.rollouts(lease, message))

    async def reports(self, request: Request) -> Response:
        lease = self._known_lease(request)
        message = await self._door.message(request, m.Reports, self._door.limits.reports_bytes)
        self._coordinator.reports(lease, message)
        return reply(m.Done())

    async def leave(self, request: Request) -> Response:
        message = await self._door.message(request, m.Leave, self._door.limits.leave_bytes)
        lease = lease_of(request)
        self._coordinator.leave(lease, message)
        self._door.leases.end(lease)
        return reply(m.Done())

    async def manifest(self, request: Request) -> Response:
        """The manifest of a version: a number, or `newest`."""
        version = request.path_params["version"]
        if version != "newest" and not _is_number(version):
            raise Refusal(422, "malformed", f"version is {version[:40]!r}; give a number or 'newest'")
        manifest = self._coordinator.manifest(-1 if version == "newest" else int(version))
        if manifest is not self._manifest[0]:
            # megabytes for a large model, and all workers ask at once
            self._manifest = manifest, manifest.model_dump_json().encode()
        return Response(self._manifest[1], media_type="application/json")

    async def pages(self, request: Request) -> Response:
        """The pages of a draft from number `from` on, waiting `wait_s` seconds at most for one."""
        given = {"version": request.path_params["version"], "from": "", "wait_s": ""}
        given |= {name: value for name, value in request.query_params.items() if name in ("from", "wait_s")}
        for name, value in given.items():
            if not _is_number(value):
                raise Refusal(422, "malformed", f"{name} is {value[:40]!r}; give a whole number")
        version, number, wait_s = map(int, given.values())
        draft = request.query_params.get("draft", "")
        waiting = self._coordinator.pages(version, draft, number, min(wait_s, m.MAX_WAIT_S))
        return reply(await self._door.long_poll(waiting))

    async def chunk(self, request: Request) -> Response:
        """The bytes of a chunk; a Range header resumes."""
        digest = request.path_params["digest"]
        if len(digest) != 64 or set(digest) - set("0123456789abcdef"):
            raise Refusal(422, "malformed", f"digest is {digest[:70]!r}; give one in lower-case hex")
        place = request.query_params.get("place", "0")
        order = float(place) if _is_number(place) else 0.0
        path = self._coordinator.chunk(digest)
        return chunk_reply(path, request.headers.get("range"), self._uplink, order)

    async def metrics(self, _request: Request) -> Response:
        own = "".join(f"{line}\n" for line in self._door.answers.lines())
        return Response(self._coordinator.metrics() + own, media_type="text/plain; version=0.0.4")

    async def health(self, _request: Request) -> Response:
        return Response(json.dumps(self._coordinator.health()), media_type="application/json")

    # ---- inside ----------------------------------------------------------------------------------

    def _known_lease(self, request: Request) -> str:
        lease = lease_of(request)
        self._coordinator.check_lease(lease)
        return lease

    def _post(self, path: str, body: type[m.Message], answer: type[m.Message], handler: Handler) -> None:
        door = self._door

        async def endpoint(request: Request) -> Response:
            return await door.answer(request, handler)

        self._app.post(
            path,
            name=handler.__name__,
            summary=(body.__doc__ or "").splitlines()[0],
            response_model=None,
            responses={**_PROBLEMS, 200: {"model": answer}},
            openapi_extra={**body_of(body), "security": [{"token": []}]},
        )(endpoint)

    def _get(
        self, path: str, handler: Handler, answers: dict[int | str, dict[str, Any]], needs_token: bool
    ) -> None:
        door = self._door

        async def endpoint(request: Request) -> Response:
            return await door.answer(request, handler, needs_token)

        name = path.partition("{")[2].rstrip("}")
        parameter = {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        self._app.get(
            path,
            name=handler.__name__,
            response_model=None,
            responses={**(_PROBLEMS if needs_token else {}), **answers},
            openapi_extra={
                **({"parameters": [parameter]} if name else {}),
                **({"security": [{"token": []}]} if needs_token else {}),
            },
        )(endpoint)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


def _check_protocol(body: bytes) -> None:
    """Raises Refusal (426) for another protocol, whatever else its hello holds."""
    try:
        given = json.loads(body).get("protocol")
    except (ValueError, AttributeError, RecursionError):
        return
    if isinstance(given, int) and given != m.PROTOCOL:
        raise Refusal(
            426,
            "wrong-protocol",
            f"this worker speaks protocol {given}, the learner speaks {m.PROTOCOL}; install the version of "
            f"echo2 that the learner runs, {__version__}",
        )


async def _not_found(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    return problem(status, "no-such-route", f"{request.method} {request.url.path[:200]}: no such route")
