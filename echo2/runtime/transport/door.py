"""What happens around every request: token, place, body, message, and how a refusal or an error is told.

Called by the routes in `server`. A client never sees a traceback; the log does.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from fastapi import Request, Response
from pydantic import ValidationError
from starlette.requests import ClientDisconnect

from echo2.errors import UserError
from echo2.runtime.transport import messages as m
from echo2.runtime.transport.answers import Answers
from echo2.runtime.transport.auth import LEASE_HEADER, authorised
from echo2.runtime.transport.coordinator import Refusal
from echo2.runtime.transport.limits import Crowd, LeaseCount, Limits, drain, read_body

LOG = logging.getLogger("echo2.transport")
STRANGER_BYTES = 1 << 20
"""What is read and thrown away of a refused body whose sender has not shown the token."""
_SHOWN = 80

Kind = TypeVar("Kind", bound=m.Message)
Answer = TypeVar("Answer")


class Door:
    """The token and limits of one server, who is inside, and how long answers took."""

    def __init__(self, token: str, limits: Limits) -> None:
        self._token, self.limits = token, limits
        self._crowd, self.leases = Crowd(limits.requests), LeaseCount(limits.leases)
        self.answers = Answers()
        self._closing = False
        self._waiting: set[asyncio.Task[object]] = set()

    def close(self) -> None:
        """Answer every long poll at once, and from now on: the server is about to stop."""
        self._closing = True
        for task in self._waiting:
            task.cancel()

    async def long_poll(self, waiting: Awaitable[Answer]) -> Answer:
        """What `waiting` gives. Raises Refusal (503) when the server stops meanwhile."""
        task = asyncio.current_task()
        assert task is not None
        self._waiting.add(task)
        try:
            if self._closing:
                task.cancel()
            return await waiting
        except asyncio.CancelledError:
            if not self._closing:
                raise
            task.uncancel()
            raise Refusal(503, "stopping", "the learner stops or starts again; try again") from None
        finally:
            self._waiting.discard(task)

    async def answer(
        self, request: Request, inside: Callable[[Request], Awaitable[Response]], needs_token: bool = True
    ) -> Response:
        """What `inside` answers, or a Problem. Without the right token nothing else is looked at."""
        began_s = time.monotonic()
        try:
            return await self._answer(request, inside, needs_token)
        finally:
            self.answers.add(inside.__name__, time.monotonic() - began_s)

    async def _answer(
        self, request: Request, inside: Callable[[Request], Awaitable[Response]], needs_token: bool
    ) -> Response:
        drain_bytes = STRANGER_BYTES
        try:
            if needs_token and not authorised(request.headers.get("authorization"), self._token):
                raise Refusal(401, "wrong-token", "the token is missing or wrong; give the one of this run")
            drain_bytes = max(STRANGER_BYTES, self.limits.rollouts_bytes)
            with self._crowd.one_more():
                return await inside(request)
        except ClientDisconnect:
            return problem(400, "gone", "the connection ended before the body did")
        except Refusal as refusal:
            await drain(request.stream(), drain_bytes)
            return problem(refusal.status, refusal.code, str(refusal))
        except UserError as error:
            return problem(422, "refused", str(error))
        except Exception:
            LOG.exception("%s %s failed", request.method, request.url.path)
            return problem(500, "internal", "the learner failed to answer; its log says why")

    async def body(self, request: Request, limit: int) -> bytes:
        """The body, at most `limit` bytes of it. Raises Refusal."""
        length = request.headers.get("content-length")
        return await read_body(request.stream(), length, limit, self.limits.body_s)

    async def message(self, request: Request, kind: type[Kind], limit: int) -> Kind:
        """The body as a message. Raises Refusal (413, 422)."""
        return parsed(kind, await self.body(request, limit))


def lease_of(request: Request) -> str:
    """The lease in the header. Raises Refusal (400)."""
    lease = request.headers.get(LEASE_HEADER, "")
    if not 0 < len(lease) <= 128:
        raise Refusal(400, "no-lease", f"the header {LEASE_HEADER} is missing or too long; say hello first")
    return lease


def parsed(kind: type[Kind], body: bytes) -> Kind:
    """The message in a body. Raises Refusal (422) that names the first wrong field and its value."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        first, more = error.errors(include_url=False, include_context=False)[0], error.error_count() - 1
        place = ".".join(map(str, first["loc"])) or "the body"
        given = repr(first["input"])
        given = given if len(given) <= _SHOWN else given[: _SHOWN - 3] + "..."
        text = f"{kind.__name__}: {place[:200]} is {given}: {first['msg'][:300]}"
        raise Refusal(422, "malformed", text + (f" (and {more} more)" if more else "")) from None


def problem(status: int, code: str, detail: str) -> Response:
    """A refusal as HTTP."""
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
    return reply(m.Problem(error=code, detail=detail[:2000]), status, headers)


def reply(message: m.Message, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A message as HTTP."""
    return Response(message.model_dump_json().encode(), status, headers, "application/json")
