"""The wire of the openai engine: one OpenAI-style endpoint, its streamed completions and its weight routes.

Used by `openai_engine` alone. Every call has a deadline, and every error names the URL and what to do.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from echo2.errors import UserError
from echo2.runtime.rollout.engine import EngineError

COMPLETIONS = "/v1/completions"
TOKENS = "/inference/v1/generate"
MODELS = "/v1/models"
LOOPBACK = ("localhost", "127.0.0.1", "::1")


class EndpointError(EngineError):
    """The endpoint did not do what it was asked for."""


@dataclass(frozen=True, slots=True)
class Call:
    """One POST. In the path and in every text of the body {mode}, {clear}, {version}, {path} and {checksum}
    are filled in; `body` None sends none."""

    path: str
    body: dict[str, Any] | None = None

    def filled(self, values: Mapping[str, str]) -> tuple[str, Any]:
        """Path and body with `values`."""
        return _filled(self.path, values), _filled(self.body, values)


@dataclass(frozen=True, slots=True)
class Routes:
    """How an endpoint swaps weights: `pause`, every `update` in order, `resume`, each a POST.

    {mode} is keep, wait or abort; {clear} "true" where the KV cache may go; {path} the snapshot's directory
    as the endpoint sees it. `version` is a GET whose answer's `weight_version` is the label of the weights in
    force ("": the endpoint has none, and a restart between two swaps goes unseen). The defaults are vLLM's
    development routes with echo2's weight-transfer backend.
    """

    pause: Call = Call("/pause?mode={mode}&clear_cache={clear}")
    update: tuple[Call, ...] = (
        Call("/start_weight_update"),
        Call("/update_weights", {"update_info": {"path": "{path}", "checksum": "{checksum}"}}),
        Call("/finish_weight_update", {"weight_version": "{version}"}),
    )
    resume: Call = Call("/resume")
    version: str = "/weight_info"

    @classmethod
    def read(cls, file: Path) -> Routes:
        """Routes from a JSON file: {"pause": [PATH, BODY], "update": [[PATH, BODY], ...], ...}.

        A key left out keeps its default. Raises UserError for a file that is no such thing.
        """
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
            made: dict[str, Any] = {}
            for key, value in found.items():
                if key in ("pause", "resume"):
                    made[key] = _call(value)
                elif key == "update":
                    made[key] = tuple(_call(part) for part in value)
                elif key == "version" and isinstance(value, str):
                    made[key] = value
                else:
                    raise ValueError(f"{key!r} is not one of pause, update, resume, version")
            return cls(**made)
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise UserError(
                f"endpoint routes {str(file)!r} cannot be used ({error}); write JSON like "
                '{"pause": ["/pause?mode={mode}", null], "update": [["/load", {"dir": "{path}"}]]}'
            ) from error


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Seconds: to connect, for a small call, for a step of a swap (with its drain in mode wait), and for a
    rollout (where it streams: between two of its tokens, with a swap in between)."""

    connect_s: float = 10.0
    call_s: float = 30.0
    swap_s: float = 600.0
    rollout_s: float = 1800.0


@dataclass(slots=True)
class Piece:
    """Some tokens of a completion, and its finish reason once it has one.

    `spans`: (first token, version) of the whole completion, where the endpoint says so.
    """

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish_reason: str | None = None
    top: list[dict[str, float]] = field(default_factory=list)
    spans: tuple[tuple[int, str], ...] = ()


class Endpoint:
    """Connections to one endpoint. Of one event loop."""

    def __init__(self, url: str, key: str = "", deadlines: Deadlines | None = None) -> None:
        """Raises UserError for a URL that cannot be right. `key` is sent as a bearer token."""
        try:
            parsed = httpx.URL(url.strip().rstrip("/").removesuffix("/v1"))
        except (httpx.InvalidURL, ValueError) as error:
            raise UserError(f"endpoint {url[:200]!r} is no URL ({error}); give http://HOST:PORT") from error
        if parsed.scheme not in ("http", "https") or not parsed.host or parsed.userinfo or parsed.query:
            raise UserError(f"endpoint {url[:200]!r} is no endpoint's URL; give one like http://gpu-box:8000")
        self.url = str(parsed).rstrip("/")
        self.deadlines = deadlines or Deadlines()
        times = self.deadlines
        self._http = httpx.AsyncClient(
            base_url=parsed,
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx.Timeout(times.rollout_s, connect=times.connect_s),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=32, keepalive_expiry=4.0),
            trust_env=parsed.host not in LOOPBACK,
        )

    async def close(self) -> None:
        """Close all connections, which also ends what the endpoint still generates for us."""
        await self._http.aclose()

    async def get(self, path: str) -> dict[str, Any]:
        """The JSON object at `path`. Raises EndpointError."""
        answer = await self._sent("GET", path, None, self.deadlines.call_s)
        try:
            found = json.loads(answer)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise EndpointError(
                f"{self.url}{path} answers {answer[:200]!r}, no JSON object; is it the endpoint?"
            )
        return found

    async def post(self, call: Call, values: Mapping[str, str]) -> None:
        """Make a call of the routes within `swap_s`. Raises EndpointError."""
        path, body = call.filled(values)
        await self._sent("POST", path, body, self.deadlines.swap_s)

    async def has_tokens_route(self, body: dict[str, Any]) -> bool:
        """Whether `body` gets an answer on vLLM's tokens route, which labels tokens by version."""
        try:
            answer = await self._http.post(TOKENS, json=body, timeout=self.deadlines.call_s)
        except httpx.HTTPError as error:
            raise self._broken(self.url + TOKENS, error, self.deadlines.call_s) from error
        return answer.status_code == 200  # else it is unknown, or switched off (403)

    async def tokens(self, body: dict[str, Any]) -> Piece:
        """One whole completion by the tokens route; cancelling ends it at the endpoint. EndpointError."""
        answer = await self._sent("POST", TOKENS, body, self.deadlines.rollout_s)
        try:
            choice = json.loads(answer)["choices"][0]
            rows = (choice["logprobs"] or {"content": []})["content"]
            spans = tuple(
                (int(span["start"]), str(span["version"])) for span in choice["weight_versions"] or ()
            )
            piece = Piece(
                [int(token) for token in choice["token_ids"]],
                [float(row["logprob"]) for row in rows],
                choice["finish_reason"],
                spans=spans,
            )
            if len(piece.token_ids) != len(piece.logprobs) or bool(spans) != bool(piece.token_ids):
                raise ValueError(f"{len(piece.token_ids)} tokens, {len(rows)} log-probs, {len(spans)} spans")
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise EndpointError(
                f"{self.url}{TOKENS} answers {answer[:200]!r}, which is no completion with log-probs and "
                f"weight versions ({error!r}); use vLLM 0.32 or newer, or start it without --enable-scale-out"
            ) from error
        return piece

    async def completion(self, body: dict[str, Any]) -> AsyncGenerator[Piece, None]:
        """One streamed completion, piece by piece; leaving early ends it at the endpoint. EndpointError."""
        where = self.url + COMPLETIONS
        began, ended, done = False, False, False
        try:
            async with self._http.stream("POST", COMPLETIONS, json={**body, "stream": True}) as response:
                if response.status_code != 200:
                    raise self._refusal(where, response.status_code, await response.aread())
                async for line in response.aiter_lines():
                    data = line.removeprefix("data:").strip()
                    if not line.startswith("data:") or data == "[DONE]":
                        done = done or data == "[DONE]"
                        continue
                    piece = self._piece(data)
                    began, ended = began or bool(piece.token_ids), ended or piece.finish_reason is not None
                    yield piece
        except httpx.HTTPError as error:
            raise self._broken(where, error, self.deadlines.rollout_s) from error
        if done and not began and not ended:
            yield Piece(finish_reason="abort")  # before its first token: vLLM says nothing of it at all
        elif not ended:
            raise EndpointError(f"{where} ended a stream without a finish reason; see the endpoint's log")

    async def _sent(self, method: str, path: str, body: Any, within_s: float) -> bytes:
        where = self.url + path
        try:
            async with asyncio.timeout(within_s):
                response = await self._http.request(method, path, json=body, timeout=within_s)
        except (httpx.HTTPError, TimeoutError) as error:
            raise self._broken(where, error, within_s) from error
        if response.status_code >= 300:
            raise self._refusal(where, response.status_code, response.content)
        return response.content

    def _broken(self, where: str, error: Exception, within_s: float) -> EndpointError:
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
            return EndpointError(
                f"{where} cannot be reached ({error}); start the endpoint, or mend --endpoint"
            )
        if isinstance(error, TimeoutError | httpx.TimeoutException):
            return EndpointError(f"{where} gave no answer for {within_s:g} s; see whether the endpoint hangs")
        return EndpointError(f"{where} broke off ({error or type(error).__name__}); see the endpoint's log")

    def _refusal(self, where: str, status: int, answer: bytes) -> EndpointError:
        hints = {
            401: "give its key in ECHO2_ENDPOINT_KEY",
            403: "give its key in ECHO2_ENDPOINT_KEY",
            404: "start vLLM with VLLM_SERVER_DEV_MODE=1, or name its own routes with --endpoint-routes",
        }
        detail = " ".join(answer[:300].decode("utf-8", "replace").split())
        return EndpointError(f"{where} answers {status} ({detail}); {hints.get(status, 'see its log')}")

    def _piece(self, data: str) -> Piece:
        where = self.url + COMPLETIONS
        try:
            message = json.loads(data)
            if "error" in message:
                raise EndpointError(f"{where} failed while generating: {message['error']}; see its log")
            if not message["choices"]:
                return Piece()
            return _piece(message["choices"][0])
        except (ValueError, KeyError, TypeError, AttributeError, LookupError) as error:
            raise EndpointError(
                f"{where} streams {data[:200]!r}, without the token ids or log-probs asked for ({error!r}); "
                "use an endpoint that knows return_token_ids and logprobs, such as vLLM"
            ) from error


def _piece(choice: Mapping[str, Any]) -> Piece:
    found = choice.get("logprobs") or {}
    ids = choice.get("token_ids")
    if ids is None:
        ids = [token_id(token) for token in found.get("tokens", ())]
    logprobs = [float(value) for value in found.get("token_logprobs", ())]
    if len(ids) != len(logprobs):
        raise ValueError(f"{len(ids)} token ids, {len(logprobs)} log-probs")
    top = [dict(row) for row in found.get("top_logprobs") or () if row]
    return Piece([int(i) for i in ids], logprobs, choice.get("finish_reason"), top)


def token_id(token: str) -> int:
    """The id in vLLM's "token_id:N". Raises ValueError for a token given as text."""
    name, _, number = token.partition(":")
    if name != "token_id":
        raise ValueError(f"token {token!r} is text, not an id")
    return int(number)


def _call(value: Any) -> Call:
    path, body = value
    if not isinstance(path, str) or not path.startswith("/") or not isinstance(body, dict | None):
        raise ValueError(f"{value!r} is not [PATH, BODY]")
    return Call(path, body)


def _filled(value: Any, values: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        for name, text in values.items():
            value = value.replace(f"{{{name}}}", text)
        return value
    if isinstance(value, dict):
        return {key: _filled(part, values) for key, part in value.items()}
    if isinstance(value, list):
        return [_filled(part, values) for part in value]
    return value
