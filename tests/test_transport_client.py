"""A worker's client: what it tries again, what it gives up on, and what it says."""

from __future__ import annotations

import asyncio
import subprocess
import time
from pathlib import Path

import pytest

from echo2.errors import UserError
from echo2.runtime.transport import messages as m
from echo2.runtime.transport.client import Client, LeaseLost, Refused, uploads
from echo2.runtime.transport.limits import Limits
from echo2.runtime.transport.retry import Unreachable
from echo2.runtime.transport.server import Server, make_app
from tests.transport_kit import HELLO, RUN, TOKEN, Cutter, Desk, joined, serving, upload, wire


def test_every_message_goes_there_and_back() -> None:
    """Hello, work, rollouts, reports and leave arrive as they were sent, and answers come back typed."""

    async def main() -> None:
        desk = Desk()
        generate = m.Generate(
            group_id=4, prompt=1, attempt=0, prompt_ids=(1, 2), rollouts=8, seed=2**62, max_tokens=9
        )
        desk.orders = [m.Numbered(number=1, order=m.Fetch(version=3)), m.Numbered(number=2, order=generate)]
        async with serving(desk) as server, joined(server.url) as client:
            assert client.run_id == RUN and list(desk.leases) == [client.lease]
            assert (await client.work(m.WorkRequest(acked=1))).orders == (desk.orders[1],)
            sent = upload(3)
            reply = await client.rollouts(sent)
            assert [v.outcome for v in reply.verdicts] == ["accepted"] * 3
            reports = m.Reports(
                incarnation=1,
                reports=(m.Live(version=3, transfer_s=1.5, check_s=0.1, pause_s=0.0), m.Down(cause="é\n💥")),
            )
            await client.reports(reports)
            assert desk.heard == [sent, reports]
            await client.leave(m.Leave(cause="done"))
            with pytest.raises(LeaseLost):
                await client.work(m.WorkRequest())
            with pytest.raises(Refused, match="none yet") as refused:
                await client.manifest(-1)
            assert (refused.value.status, refused.value.code) == (404, "no-snapshot")

    asyncio.run(main())


def test_a_wrong_token_is_the_users_mistake() -> None:
    """The error says that the token is wrong and for which URL, at once, without showing it."""

    async def main() -> None:
        async with serving(Desk()) as server:
            client = Client(server.url, "not-the-right-token")
            with pytest.raises(UserError, match=f"wrong token for {server.url}") as refused:
                await client.hello(HELLO)
            assert "not-the-right-token" not in str(refused.value)
            wrong = Client(server.url, TOKEN)
            with pytest.raises(Refused, match="speaks protocol 7"):
                await wrong.hello(HELLO.model_copy(update={"protocol": 7}))
            await client.close()
            await wrong.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    "url", ["", "learner:8123", "ftp://x", "http://", "http://a b", "http://u:p@h", "http://h:99999999", "\0"]
)
def test_a_bad_url_is_the_users_mistake(url: str) -> None:
    """What is no http or https URL is refused before anything is sent."""
    with pytest.raises(UserError, match="URL"):
        Client(url, TOKEN)
    with pytest.raises(UserError, match="token"):
        Client("http://localhost:1", "tok\nen")


def test_an_unreachable_learner_is_given_up_in_time() -> None:
    """With nobody listening the error names the URL and the reason once the time is over."""

    async def main() -> float:
        client = Client("http://127.0.0.1:9", TOKEN, give_up_s=0.8)
        began = time.monotonic()
        with pytest.raises(Unreachable, match=r"POST http://127.0.0.1:9/v1/hello failed for 0.8 s .*connect"):
            await client.hello(HELLO)
        await client.close()
        return time.monotonic() - began

    assert 0.7 < asyncio.run(main()) < 2.5


def test_a_restart_is_survived_and_the_lease_is_not() -> None:
    """A call made while the server is away succeeds when it is back; an old lease raises LeaseLost."""

    async def main() -> None:
        desk = Desk()
        first = Server(make_app(desk, TOKEN))
        await first.start()
        async with joined(first.url) as client:
            await client.rollouts(upload())
            await first.stop()
            sending = asyncio.create_task(client.rollouts(upload(2)))
            await asyncio.sleep(0.3)
            async with serving(desk, port=first.port):
                assert len((await sending).verdicts) == 2
                desk.leases.clear()
                with pytest.raises(LeaseLost):
                    await client.rollouts(upload())
                await client.hello(HELLO)
                assert len((await client.rollouts(upload())).verdicts) == 1

    asyncio.run(main())


def test_a_lost_answer_is_asked_for_again() -> None:
    """Connections cut before the answer make the client send the same upload again until one comes."""

    async def main() -> None:
        desk = Desk()
        async with serving(desk) as server:
            cutter = Cutter(server.port, 0, 10)
            async with cutter.listening() as url, joined(url) as client:
                # the connection of hello would be used again, uncut: begin with a new one
                await client.close()
                fresh = Client(url, TOKEN)
                fresh.lease = client.lease
                cutter.cuts = 3
                assert len((await fresh.rollouts(upload())).verdicts) == 1
                assert len(desk.heard) == 4 and len(set(map(str, desk.heard))) == 1
                await fresh.close()

    asyncio.run(main())


def test_an_oversized_upload_is_not_tried_again() -> None:
    """413 and 422 are raised at once with what the learner says."""

    async def main() -> None:
        async with serving(Desk(), Limits(rollouts_bytes=1000)) as server, joined(server.url) as client:
            began = time.monotonic()
            with pytest.raises(
                Refused, match=f"{server.url}/v1/rollouts refuses .413 too-large.*at most 1000"
            ):
                await client.rollouts(upload(10, 100))
            assert time.monotonic() - began < 3

    asyncio.run(main())


def test_what_is_no_learner_is_told() -> None:
    """A server that answers with something else gives an error, not a traceback."""

    async def main() -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
            await writer.drain()
            writer.close()

        web = await asyncio.start_server(answer, "127.0.0.1", 0)
        client = Client(f"http://127.0.0.1:{web.sockets[0].getsockname()[1]}", TOKEN)
        with pytest.raises(UserError, match="answered with no Welcome"):
            await client.hello(HELLO)
        await client.close()
        web.close()

    asyncio.run(main())


def test_tls_with_a_certificate_of_ones_own(tmp_path: Path) -> None:
    """With the certificate as CA messages go through TLS; without it the client refuses at once."""
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost"
    names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run([*command.split(), *names], check=True, capture_output=True, timeout=60)

    async def main() -> None:
        desk = Desk()
        async with serving(desk, tls_cert=cert, tls_key=key) as server:
            assert server.url.startswith("https://")
            async with joined(server.url, ca=cert) as client:
                assert len((await client.rollouts(upload(50, 500))).verdicts) == 50
            stranger = Client(server.url, TOKEN)
            with pytest.raises(UserError, match=r"certificate of https://127.* is not trusted"):
                await stranger.hello(HELLO)
            await stranger.close()

    asyncio.run(main())
    with pytest.raises(UserError, match=r"missing\.pem"):
        Client("https://localhost", TOKEN, tmp_path / "missing.pem")


def test_uploads_are_cut_by_number_and_tokens() -> None:
    """Rollouts keep their order, no upload passes either limit, and a single long one goes alone."""
    made = [
        m.WireRollout.model_validate(wire(n, index=i)) for i, n in enumerate([5, 5, 5, 40, 1] + [1] * 300)
    ]
    parts = uploads(2, made, most_tokens=20)
    assert [r for part in parts for r in part.rollouts] == made
    assert [len(r.token_ids) for r in parts[1].rollouts] == [40]
    assert all(len(p.rollouts) == 1 or sum(len(r.token_ids) for r in p.rollouts) <= 20 for p in parts)
    assert [len(p.rollouts) for p in uploads(2, made[4:])] == [256, 45]
    assert uploads(2, []) == []
