"""The HTTP API at its door: tokens, sizes, messages and ends, on a real server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from socket import IPPROTO_TCP, TCP_NODELAY
from typing import Any

import httpx
import pytest

from echo2.errors import UserError
from echo2.runtime.transport import messages as m
from echo2.runtime.transport.auth import authorised, checked_token, new_token
from echo2.runtime.transport.limits import Limits
from echo2.runtime.transport.server import Server, make_app
from tests.transport_kit import HELLO, TOKEN, Desk, serving, wire

AUTH = {"Authorization": f"Bearer {TOKEN}"}
Talk = Callable[[httpx.AsyncClient, Desk], Awaitable[None]]


def talk(what: Talk, limits: Limits | None = None) -> None:
    """Run a conversation against a fresh server."""

    async def main() -> None:
        desk = Desk()
        async with (
            serving(desk, limits or Limits()) as server,
            httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=10) as http,
        ):
            await what(http, desk)

    asyncio.run(main())


async def lease_of(http: httpx.AsyncClient) -> dict[str, str]:
    """Headers with the token and a fresh lease."""
    answer = await http.post("/v1/hello", content=HELLO.model_dump_json(), headers=AUTH)
    return {**AUTH, "X-Echo2-Lease": answer.json()["lease"]}


def problem(answer: httpx.Response, status: int, error: str) -> str:
    """The detail of a refusal that must be the one expected."""
    found = m.Problem.model_validate_json(answer.content)
    assert (answer.status_code, found.error) == (status, error), answer.text
    return found.detail


def test_a_wrong_token_is_refused_everywhere() -> None:
    """Without the right bearer token every route under /v1 answers 401, and the answer does not hold it."""

    async def what(http: httpx.AsyncClient, desk: Desk) -> None:
        for header in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": TOKEN}):
            for path in ("hello", "work", "rollouts", "reports", "leave"):
                answer = await http.post(f"/v1/{path}", content=b"{}", headers=header)
                assert TOKEN not in problem(answer, 401, "wrong-token")
            for path in ("snapshots/newest", "chunks/" + "0" * 64):
                problem(await http.get(f"/v1/{path}", headers=header), 401, "wrong-token")
        assert not desk.leases

    talk(what)


def test_tokens() -> None:
    """A token must be long and printable; only the very same one opens, with its scheme in any case."""
    token = checked_token(f" {new_token()}\n")
    assert authorised(f"bearer {token}", token)
    assert not any(authorised(h, token) for h in (None, "", token, f"Basic {token}", f"Bearer {token}é"))
    for bad in ("short", "x" * 600, "sixteen-and-an-é"):
        with pytest.raises(UserError, match=f"the token has {len(bad)} characters") as refused:
            checked_token(bad)
        assert bad not in str(refused.value)


def test_another_protocol_is_refused_by_both_names() -> None:
    """A hello of another protocol gets 426 with both numbers, even with fields that this one lacks."""

    async def what(http: httpx.AsyncClient, desk: Desk) -> None:
        hello = HELLO.model_dump() | {"protocol": 99, "new": [1]}
        detail = problem(await http.post("/v1/hello", json=hello, headers=AUTH), 426, "wrong-protocol")
        assert "protocol 99" in detail and f"speaks {m.PROTOCOL}" in detail

    talk(what)


def test_an_oversized_body_is_refused_with_and_without_a_length() -> None:
    """A body above the route's limit gets 413, whether its length is announced, hidden or a lie."""

    async def endless() -> AsyncIterator[bytes]:
        for _ in range(200):
            yield b" " * 1000

    async def what(http: httpx.AsyncClient, desk: Desk) -> None:
        headers = await lease_of(http)
        for path in ("hello", "work", "rollouts", "reports", "leave"):
            told = await http.post(f"/v1/{path}", content=b" " * 200_000, headers=headers)
            assert "200000 bytes, at most 10000" in problem(told, 413, "too-large")
            hidden = await http.post(f"/v1/{path}", content=endless(), headers=headers)
            assert "more than 10000" in problem(hidden, 413, "too-large")
        assert not desk.heard

    talk(what, Limits(10_000, 10_000, 10_000, 10_000, 10_000))


MALFORMED: list[tuple[dict[str, Any], str]] = [
    ({"token_ids": [1, -5, 2]}, "rollouts.0.token_ids.1 is -5"),
    ({"token_ids": [1, 2.5, 2]}, "rollouts.0.token_ids.1 is 2.5"),
    ({"token_ids": "x" * 5000}, "rollouts.0.token_ids is 'xxx"),
    ({"logprobs": [float("nan")] * 3}, "rollouts.0.logprobs.0 is nan"),
    ({"finish_reason": "tired"}, "rollouts.0.finish_reason is 'tired'"),
    ({"reward": 1.0}, "rollouts.0.reward is 1.0"),
    ({"group_id": True}, "rollouts.0.group_id is True"),
    ({"index": 10**30}, "rollouts.0.index is 1000000"),
    ({"segments": [{"start": 0}]}, "rollouts.0.segments.0.version"),
]


def test_a_malformed_rollout_is_refused_by_field_and_value() -> None:
    """A rollout that breaks the message gets 422 naming the field and the value, in few words."""

    async def what(http: httpx.AsyncClient, desk: Desk) -> None:
        headers = await lease_of(http)
        for change, named in MALFORMED:
            body = json.dumps({"incarnation": 1, "rollouts": [wire(**change)]})
            answer = await http.post("/v1/rollouts", content=body, headers=headers)
            detail = problem(answer, 422, "malformed")
            assert named in detail and len(detail) < 600
        assert not desk.heard

    talk(what)


def test_what_is_no_message_is_refused() -> None:
    """Bytes that are no message at all get 422 on every route, and the server goes on."""

    async def what(http: httpx.AsyncClient, desk: Desk) -> None:
        headers = await lease_of(http)
        for body in (b"", b"[]", b"\xff\xfe", b"{" * 4000, b"[" * 4000, b"null", b'{"protocol": "1"}'):
            for path in ("hello", "work", "rollouts", "reports", "leave"):
                answer = await http.post(f"/v1/{path}", content=body, headers=headers)
                problem(answer, 422, "malformed")

    talk(what)


def test_unknown_and_missing_leases() -> None:
    """A lease that is not known gets 409, a missing or absurd one 400; what it sent is not taken in."""

    async def what(http: httpx.AsyncClient, desk: Desk) -> None:
        bodies = {"work": {}, "rollouts": {"incarnation": 1, "rollouts": [wire()]}, "leave": {"cause": ""}}
        for path, body in bodies.items():
            stale = {**AUTH, "X-Echo2-Lease": "stale"}
            problem(await http.post(f"/v1/{path}", json=body, headers=stale), 409, "unknown-lease")
            problem(await http.post(f"/v1/{path}", json=body, headers=AUTH), 400, "no-lease")
            long = {**AUTH, "X-Echo2-Lease": "x" * 200}
            problem(await http.post(f"/v1/{path}", json=body, headers=long), 400, "no-lease")
        assert not desk.heard

    talk(what)


def test_names_are_short_plain_words() -> None:
    """A pool name that is empty, long, a path or not plain ASCII gets 422."""

    async def what(http: httpx.AsyncClient, desk: Desk) -> None:
        for name in ("", "x" * 101, "a/b", "..\u2028", "wörker", "a\nb", "a\n", "💥", " a"):
            hello = HELLO.model_dump() | {"pool": name}
            answer = await http.post("/v1/hello", json=hello, headers=AUTH)
            assert "pool is" in problem(answer, 422, "malformed")
        assert not desk.leases

    talk(what)


def test_too_many_workers_and_requests() -> None:
    """Sessions beyond the limit get 503 until one has left; one already counted may come back."""

    async def what(http: httpx.AsyncClient, desk: Desk) -> None:
        async def hello(session: str) -> httpx.Response:
            body = HELLO.model_dump() | {"session": session}
            return await http.post("/v1/hello", json=body, headers=AUTH)

        first = (await hello("session-1")).json()["lease"]
        assert (await hello("session-2")).status_code == 200
        problem(await hello("session-3"), 503, "too-many-workers")
        assert (await hello("session-1")).json()["lease"] == first
        headers = {**AUTH, "X-Echo2-Lease": first}
        assert (await http.post("/v1/leave", json={"cause": "done"}, headers=headers)).status_code == 200
        assert (await hello("session-3")).status_code == 200
        leases = {**AUTH, "X-Echo2-Lease": next(iter(desk.leases))}
        polls = [
            asyncio.create_task(http.post("/v1/work", json={"wait_s": 1.0}, headers=leases)) for _ in range(3)
        ]
        statuses = sorted(answer.status_code for answer in await asyncio.gather(*polls))
        assert statuses == [200, 200, 503]

    talk(what, Limits(leases=2, requests=2))


def test_slow_and_endless_headers_are_cut_off() -> None:
    """A connection that says nothing, dribbles its headers or never ends them is closed in time."""

    async def closed_after(port: int, lines: list[bytes], pause_s: float) -> float:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        began = time.monotonic()
        with contextlib.suppress(ConnectionError):
            for line in lines:
                writer.write(line)
                await asyncio.sleep(pause_s)
            await asyncio.wait_for(reader.read(), 5)
        writer.close()
        return time.monotonic() - began

    async def main() -> None:
        limits = Limits(header_s=0.5, header_bytes=5000)
        async with serving(Desk(), limits) as server:
            silent = closed_after(server.port, [], 0)
            slow = closed_after(server.port, [b"GET /healthz HTTP/1.1\r\n", *[b"a: b\r\n"] * 4], 0.1)
            endless = closed_after(server.port, [b"GET / HTTP/1.1\r\n", *[b"a: " + b"b" * 2000] * 4], 0.01)
            times = await asyncio.gather(silent, slow, endless)
            assert all(0.4 < t < 3 for t in times[:2]) and times[2] < 0.45, times
            async with httpx.AsyncClient(base_url=server.url, trust_env=False) as http:
                assert (await http.get("/healthz")).json() == {"version": 3}
                await asyncio.sleep(0.8)
                assert (await http.get("/healthz")).status_code == 200

    asyncio.run(main())


def test_a_slow_body_is_given_up() -> None:
    """A body that does not arrive in its time gets 408."""

    async def dribble() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b" "
            await asyncio.sleep(0.05)

    async def what(http: httpx.AsyncClient, desk: Desk) -> None:
        problem(await http.post("/v1/hello", content=dribble(), headers=AUTH), 408, "slow-body")

    talk(what, Limits(body_s=0.2))


def test_an_error_in_the_learner_is_logged_not_told(caplog: pytest.LogCaptureFixture) -> None:
    """An unexpected error answers 500 without its text; the log has it, and the server goes on."""

    async def what(http: httpx.AsyncClient, desk: Desk) -> None:
        headers, body = await lease_of(http), {"incarnation": 1, "rollouts": [wire()]}
        desk.crash = True
        detail = problem(await http.post("/v1/rollouts", json=body, headers=headers), 500, "internal")
        assert "secret" not in detail and "Zero" not in detail
        desk.crash = False
        assert (await http.post("/v1/rollouts", json=body, headers=headers)).status_code == 200

    talk(what)
    assert "a secret detail" in caplog.text


def test_what_needs_no_token_reveals_nothing() -> None:
    """Metrics, health and the API's description are open; pages, unknown routes and methods are not there."""

    async def what(http: httpx.AsyncClient, desk: Desk) -> None:
        assert (await http.get("/metrics")).text.startswith("echo2_version 3\n# HELP echo2_answer_seconds")
        assert (await http.get("/healthz")).json() == {"version": 3}
        for path in ("/docs", "/redoc", "/", "/v1/nothing"):
            problem(await http.get(path), 404, "no-such-route")
        problem(await http.get("/v1/hello"), 405, "no-such-route")
        assert TOKEN not in (await http.get("/openapi.json")).text

    talk(what)


def test_the_api_describes_itself() -> None:
    """/openapi.json has every route with its message types, in and out, and no dangling reference."""
    schema = make_app(Desk(), TOKEN).openapi()
    routes = {
        "/v1/hello": ("post", "Hello", "Welcome"),
        "/v1/work": ("post", "WorkRequest", "WorkReply"),
        "/v1/rollouts": ("post", "Upload", "UploadReply"),
        "/v1/reports": ("post", "Reports", "Done"),
        "/v1/leave": ("post", "Leave", "Done"),
        "/v1/snapshots/{version}": ("get", None, "SignedManifest"),
        "/v1/pages/{version}": ("get", None, "Pages"),
        "/v1/chunks/{digest}": ("get", None, None),
        "/metrics": ("get", None, None),
        "/healthz": ("get", None, None),
    }
    assert schema["paths"].keys() == routes.keys()
    for path, (method, taken, given) in routes.items():
        route = schema["paths"][path][method]
        if taken:
            body = route["requestBody"]["content"]["application/json"]["schema"]
            assert body == {"$ref": f"#/components/schemas/{taken}"}
        if given:
            answer = route["responses"]["200"]["content"]["application/json"]["schema"]
            assert answer == {"$ref": f"#/components/schemas/{given}"}
        if path.startswith("/v1"):
            assert route["security"] and "401" in route["responses"]
    text = json.dumps(schema)
    names = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert names <= schema["components"]["schemas"].keys()
    assert {"WireRollout", "Up", "Generate", "Problem", "SignedManifest"} <= names


def test_a_port_in_use_is_named() -> None:
    """A second server on a port fails, naming it and --port; after the first has stopped it may have it."""

    async def main() -> None:
        async with serving(Desk()) as first:
            with pytest.raises(UserError, match=rf"port {first.port} on 127.0.0.1 is in use.*--port"):
                await Server(make_app(Desk(), TOKEN), port=first.port).start()
        async with serving(Desk(), port=first.port) as second:
            assert second.url == f"http://127.0.0.1:{first.port}"

    asyncio.run(main())


@pytest.mark.parametrize("host", ["no.such.host.invalid", "203.0.113.9"])
def test_a_host_that_is_not_this_machine_is_named(host: str) -> None:
    """A host that cannot be listened on is a user's error that names it."""
    with pytest.raises(UserError, match=host):
        asyncio.run(Server(make_app(Desk(), TOKEN), host=host).start())


def test_tls_files_are_checked(tmp_path: Path) -> None:
    """A certificate without key, or files that are no PEM, are users' errors."""
    bad = tmp_path / "bad.pem"
    bad.write_text("no certificate")
    app = make_app(Desk(), TOKEN)
    with pytest.raises(UserError, match="both a certificate and its key"):
        Server(app, tls_cert=bad)
    for path in (bad, tmp_path / "missing.pem"):
        with pytest.raises(UserError, match=path.name):
            asyncio.run(Server(app, tls_cert=path, tls_key=path).start())


def test_answers_leave_at_once() -> None:
    """The kernel never holds the rest of an answer back until its head is acknowledged (TCP_NODELAY)."""

    async def main() -> None:
        async with (
            serving(Desk(), Limits()) as server,
            httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=10) as http,
        ):
            await http.get("/healthz")
            (connection,) = server._server.server_state.connections
            line: Any = connection
            assert line.transport.get_extra_info("socket").getsockopt(IPPROTO_TCP, TCP_NODELAY)

    asyncio.run(main())


def test_stopping_cuts_a_long_poll_short() -> None:
    """A server stops at once while a worker waits for orders, which is told; it can be stopped again."""

    async def main() -> None:
        async with (
            serving(Desk()) as server,
            httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=20) as http,
        ):
            headers = await lease_of(http)
            poll = asyncio.create_task(http.post("/v1/work", json={"wait_s": 15.0}, headers=headers))
            await asyncio.sleep(0.2)
            began = time.monotonic()
            await server.stop()
            assert time.monotonic() - began < 1.5
            await server.stop()
            problem(await poll, 503, "stopping")

    asyncio.run(main())


def test_the_transport_loads_no_torch() -> None:
    """Every part of the transport imports without torch, vLLM or pandas."""
    code = (
        "import echo2.runtime.transport as t, pkgutil, importlib, sys; "
        "[importlib.import_module(f'{t.__name__}.{m.name}') for m in pkgutil.iter_modules(t.__path__)]; "
        "print([name for name in ('torch', 'vllm', 'transformers', 'pandas') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


def test_messages_and_client_load_no_server() -> None:
    """A worker's side imports neither FastAPI nor uvicorn."""
    code = (
        "import echo2.runtime.transport.receive, echo2.runtime.transport.messages, sys; "
        "print([name for name in ('fastapi', 'uvicorn') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
