"""A worker's side of the HTTP API: every message with a deadline, tried again when that can help.

Everything may be sent again (see `messages`), so a broken connection, a busy or a restarting learner only
costs time; a lease that has ended raises `LeaseLost`, upon which the worker says hello again. A refusal that
repeating cannot change is raised at once. Loads neither torch nor an engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import httpx
from pydantic import ValidationError

from echo2.errors import UserError
from echo2.runtime.transport import messages as m
from echo2.runtime.transport.auth import LEASE_HEADER
from echo2.runtime.transport.pages import Pages
from echo2.runtime.transport.retry import Patience
from echo2.runtime.transport.shaping import UNSHAPED, ShapedLink
from echo2.runtime.transport.signing import checked_key, pinned, verified
from echo2.runtime.transport.urls import checked_url, has_proxy, is_loopback, trusted

ANSWER_S = 30.0
"""Longest an attempt may take beyond the time the message itself asks to wait."""
STALL_S = 30.0
"""Longest between two pieces of a chunk."""
LARGEST_ANSWER = 256 << 20
UPLOAD_TOKENS = 200_000
"""Completion tokens in one upload at most: about 5 MB, which the learner parses in some 50 ms."""

_AGAIN = {408, 425, 429, 500, 502, 503, 504}

Answer = TypeVar("Answer", bound=m.Message)


class LeaseLost(Exception):  # noqa: N818 - an answer, not a failure
    """The learner no longer knows this worker's lease: say hello again."""


class Refused(UserError):  # noqa: N818 - an answer, not a failure
    """The learner answered no, and would again. `status` and `code` are for programs."""

    def __init__(self, status: int, code: str, text: str) -> None:
        super().__init__(text)
        self.status, self.code = status, code


class Broken(Exception):  # noqa: N818 - one attempt, not the call
    """One attempt failed in a way that another may not."""


class WrongLength(Broken):
    """A chunk was offered in another length than its manifest gives it."""


class Client:
    """A connection to one learner. After `hello` it knows `run_id` and its lease. Use from one event loop.

    `url`, `token`, `tls`, `link` and `proxied` are for those who open lines of their own to the same server.
    """

    def __init__(
        self,
        url: str,
        token: str,
        ca: Path | None = None,
        give_up_s: float = 60.0,
        link: ShapedLink = UNSHAPED,
        run_key: str = "",
    ) -> None:
        """`ca`: certificates to trust instead of the system's. `give_up_s`: how long failures may go on.

        `run_key`: the only key whose manifests are believed; without it, the one the first welcome of a run
        names. Raises UserError for a URL, token, key or certificate file that cannot be right.
        """
        parsed = checked_url(url)
        if not token.isascii() or not token.isprintable() or not token:
            raise UserError("the token is empty or holds characters that no token has; copy the learner's")
        self.url = str(parsed).rstrip("/")
        self.lease, self.run_id = "", ""
        self._given_key = self.run_key = checked_key(run_key) if run_key else ""
        self._give_up_s, self.link, self.token = give_up_s, link, token
        # the system's certificates take 30 ms to load: only where they are needed
        self.tls = trusted(ca) if parsed.scheme == "https" else None
        self.proxied = not is_loopback(parsed.host) and has_proxy(parsed.scheme, parsed.host)
        self._http = httpx.AsyncClient(
            base_url=parsed,
            headers={"Authorization": f"Bearer {token}", "Accept-Encoding": "identity"},
            verify=self.tls or False,
            timeout=httpx.Timeout(ANSWER_S, connect=10.0),
            limits=httpx.Limits(max_connections=64, max_keepalive_connections=32, keepalive_expiry=4.0),
            trust_env=not is_loopback(parsed.host),
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    # ---- messages --------------------------------------------------------------------------------

    async def hello(self, hello: m.Hello) -> m.Welcome:
        """Introduce this process and keep the lease. Raises UserError for a wrong token, protocol or key."""
        welcome = await self._post("/v1/hello", hello, m.Welcome)
        before = self.run_key if welcome.run_id == self.run_id else self._given_key
        self.run_key = pinned(before, welcome.run_key, welcome.run_id)
        self.lease, self.run_id = welcome.lease, welcome.run_id
        return welcome

    async def work(self, request: m.WorkRequest) -> m.WorkReply:
        """Ask for orders; answers after at most `request.wait_s`. Raises LeaseLost."""
        return await self._post("/v1/work", request, m.WorkReply, wait_s=request.wait_s)

    async def rollouts(self, upload: m.Upload) -> m.UploadReply:
        """Send rollouts in; those accepted are safe when this returns. Raises LeaseLost."""
        return await self._post("/v1/rollouts", upload, m.UploadReply)

    async def reports(self, reports: m.Reports) -> None:
        """Send reports in. Raises LeaseLost."""
        await self._post("/v1/reports", reports, m.Done)

    async def leave(self, leave: m.Leave) -> None:
        """Say goodbye. Raises LeaseLost."""
        await self._post("/v1/leave", leave, m.Done)

    async def manifest(self, version: int) -> m.Manifest:
        """The manifest of a version, of the newest for -1, once its signature is known to be the run key's.

        Raises Refused (404), SnapshotError for one that the run key has not signed.
        """
        which = "newest" if version < 0 else str(version)
        signed = await self._call("GET", f"/v1/snapshots/{which}", b"", m.SignedManifest, ANSWER_S)
        return verified(signed, self.run_key)

    async def pages(self, version: int, draft: str, number: int, wait_s: int) -> Pages:
        """The pages of a draft from `number` on, none after `wait_s`; their signatures are not checked here.

        Raises Refused: 404 for a draft that is not known (any more), 410 for one that was given up.
        """
        path = f"/v1/pages/{version}?draft={draft}&from={number}&wait_s={wait_s}"
        return await self._call("GET", path, b"", Pages, ANSWER_S + wait_s)

    @asynccontextmanager
    async def chunk(
        self, digest: str, offset: int = 0, place: int = 0
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """The bytes of a chunk from `offset` on, as they arrive. One attempt: the caller resumes.

        `place`, its place in what is fetched: a learner whose uplink is the limit serves in that order.

        Raises Broken when another attempt may help, Refused or UserError when not.
        """
        path = f"/v1/chunks/{digest}?place={place}"
        headers = {"Range": f"bytes={offset}-"} if offset else {}
        with self._explained():
            await self.link.send(0)
            async with self._http.stream("GET", path, headers=headers, timeout=STALL_S) as response:
                if response.status_code not in (200, 206):
                    async with asyncio.timeout(ANSWER_S):
                        self.refuse(path, response.status_code, await _bounded(response))
                if offset and not response.headers.get("Content-Range", "").startswith(f"bytes {offset}-"):
                    raise Broken("the server does not resume where it was asked to")
                yield self._pieces(response)

    # ---- inside ----------------------------------------------------------------------------------

    async def _pieces(self, response: httpx.Response) -> AsyncIterator[bytes]:
        async for piece in response.aiter_raw():
            await self.link.receive(len(piece))
            yield piece

    async def _post(self, path: str, body: m.Message, kind: type[Answer], wait_s: float = 0.0) -> Answer:
        return await self._call("POST", path, body.model_dump_json().encode(), kind, ANSWER_S + wait_s)

    async def _call(self, method: str, path: str, body: bytes, kind: type[Answer], within_s: float) -> Answer:
        """Send until there is an answer, for `give_up_s` of failures at most. Raises Unreachable."""
        patience = Patience(f"{method} {self.url}{path}", self._give_up_s)
        while True:
            try:
                status, answer = await self._attempt(method, path, body, within_s)
                if status == 200:
                    return kind.model_validate_json(answer)
                self.refuse(path, status, answer)
            except Broken as broken:
                await patience.failed(str(broken))
            except ValidationError as error:
                raise UserError(
                    f"{self.url}{path} answered with no {kind.__name__} ({error.errors()[0]['msg']}); check "
                    "that it is a learner's URL and that both sides run the same version of echo2"
                ) from error

    async def _attempt(self, method: str, path: str, body: bytes, within_s: float) -> tuple[int, bytes]:
        await self.link.send(len(body))
        headers = {"Content-Type": "application/json"} if body else {}
        if self.lease and path != "/v1/hello":
            headers[LEASE_HEADER] = self.lease
        with self._explained():
            async with asyncio.timeout(within_s):
                request = self._http.build_request(
                    method, path, content=body or None, headers=headers, timeout=within_s
                )
                response = await self._http.send(request, stream=True)
                try:
                    answer = await _bounded(response)
                finally:
                    await response.aclose()
        await self.link.receive(len(answer))
        return response.status_code, answer

    def refuse(self, path: str, status: int, answer: bytes) -> None:
        """Raise what an answer that is not 200 means."""
        code, detail = _problem(answer)
        where = f"{self.url}{path}"
        if status in _AGAIN:
            raise Broken(f"answer {status}: {detail}")
        if code == "unknown-lease":
            raise LeaseLost(detail)
        if status == 401:
            raise UserError(f"wrong token for {self.url}: the learner refuses it; give the one of this run")
        raise Refused(status, code, f"{where} refuses ({status} {code}): {detail}")

    def _explained(self) -> _Explained:
        return _Explained(self.url)


class _Explained:
    """Turns what goes wrong on the network into Broken, or UserError where trying again is of no use."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, TimeoutError | httpx.TimeoutException):
            raise Broken(f"no answer in time ({type(error).__name__})") from error
        if isinstance(error, httpx.HTTPError):
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                raise UserError(
                    f"the certificate of {self._url} is not trusted ({error}); give the file of its "
                    "authority as the CA, and use the host name it was made for"
                ) from error
            raise Broken(str(error) or type(error).__name__) from error


def uploads(
    incarnation: int, rollouts: Sequence[m.WireRollout], most_tokens: int = UPLOAD_TOKENS
) -> list[m.Upload]:
    """Rollouts in as few uploads as their number and tokens allow; a single longer one goes alone."""
    made: list[m.Upload] = []
    part: list[m.WireRollout] = []
    tokens = 0
    for rollout in rollouts:
        size = len(rollout.token_ids)
        if part and (len(part) == m.MAX_ROLLOUTS or tokens + size > most_tokens):
            made.append(m.Upload(incarnation=incarnation, rollouts=tuple(part)))
            part, tokens = [], 0
        part.append(rollout)
        tokens += size
    return [*made, m.Upload(incarnation=incarnation, rollouts=tuple(part))] if part else made


async def _bounded(response: httpx.Response) -> bytes:
    pieces: list[bytes] = []
    size = 0
    async for piece in response.aiter_raw():
        size += len(piece)
        if size > LARGEST_ANSWER:
            raise UserError(f"{response.url} answers with more than {LARGEST_ANSWER} bytes; is it a learner?")
        pieces.append(piece)
    return b"".join(pieces)


def _problem(answer: bytes) -> tuple[str, str]:
    try:
        problem = m.Problem.model_validate_json(answer)
    except ValidationError:
        return "not-echo2", answer[:200].decode("utf-8", "replace") or "(no text)"
    return problem.error, problem.detail
