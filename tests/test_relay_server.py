"""A relay at its socket: who gets what, and what it refuses."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import httpx
import pytest
from transport_kit import TOKEN

from echo2.errors import UserError
from echo2.runtime.transport.client import Broken
from echo2.runtime.transport.line import Line
from echo2.runtime.transport.relay import Relay, relay_key
from echo2.runtime.transport.shaping import Shaper
from echo2.runtime.transport.shelf import Shelf, unpacked

DATA = bytes(range(256)) * 1000
DIGEST = hashlib.sha256(DATA).hexdigest()
ABSENT = "0" * 64
KEY = {"Authorization": f"Bearer {relay_key(TOKEN)}"}

Story = Callable[[Relay, Shelf, httpx.AsyncClient], Coroutine[Any, Any, None]]


def told(folder: Path, story: Story, **options: Any) -> None:
    """Run a story with a relay that has one chunk in the middle of a file."""

    async def work() -> None:
        (folder / "unfinished").mkdir()
        (folder / "unfinished" / "w").write_bytes(b"x" * 77 + DATA + b"y" * 9)
        shelf = Shelf()
        shelf.add(DIGEST, folder / "unfinished" / "w", 77, len(DATA))
        relay = Relay(shelf, TOKEN, **options)
        await relay.start()
        url = f"http://127.0.0.1:{relay.port}"
        async with httpx.AsyncClient(base_url=url, headers=KEY, trust_env=False) as http:
            await story(relay, shelf, http)
        await relay.stop()

    asyncio.run(asyncio.wait_for(work(), 30))


@pytest.mark.parametrize("caps", [(), (1e9,)])
def test_a_chunk_comes_out_of_the_middle_of_a_file(tmp_path: Path, caps: tuple[float, ...]) -> None:
    """A chunk's bytes come whole or from where a Range says, capped or not, over one kept connection."""

    async def story(relay: Relay, _shelf: Shelf, http: httpx.AsyncClient) -> None:
        assert (await http.get(f"/v1/chunks/{DIGEST}")).content == DATA
        part = await http.get(f"/v1/chunks/{DIGEST}", headers={"Range": "bytes=1000-"})
        assert part.status_code == 206 and part.content == DATA[1000:]
        assert part.headers["content-range"] == f"bytes 1000-{len(DATA) - 1}/{len(DATA)}"
        two = await http.get(f"/v1/chunks/{DIGEST}", headers={"Range": "bytes=5-6"})
        assert two.content == DATA[5:7]
        beyond = await http.get(f"/v1/chunks/{DIGEST}", headers={"Range": f"bytes={len(DATA)}-"})
        assert beyond.status_code == 416
        assert relay.connections_open == 1 and relay.sent_bytes == 2 * len(DATA) - 1000 + 2

    told(tmp_path, story, caps=tuple(Shaper(cap) for cap in caps))


@pytest.mark.parametrize("given", [None, "Bearer wrong", f"Bearer {TOKEN}", f"Basic {relay_key(TOKEN)}"])
def test_without_the_runs_key_nothing_is_told(tmp_path: Path, given: str | None) -> None:
    """A wrong key gets 401 for chunks that are there and for those that are not, and no connection."""

    async def story(_relay: Relay, _shelf: Shelf, http: httpx.AsyncClient) -> None:
        headers = {} if given is None else {"Authorization": given}
        async with httpx.AsyncClient(base_url=http.base_url, headers=headers, trust_env=False) as stranger:
            for path in (
                f"/v1/chunks/{DIGEST}",
                f"/v1/chunks/{ABSENT}?wait_s=5",
                "/v1/have/1",
                "/etc/passwd",
            ):
                assert (await stranger.get(path)).status_code == 401
            assert (await stranger.get("/healthz")).status_code == 200

    told(tmp_path, story)


def test_it_waits_for_a_chunk_that_is_about_to_come(tmp_path: Path) -> None:
    """A request for a chunk not here is answered as soon as it is, or "not yet" when its time is over."""

    async def story(_relay: Relay, shelf: Shelf, http: httpx.AsyncClient) -> None:
        later = hashlib.sha256(b"later").hexdigest()
        answer = asyncio.create_task(http.get(f"/v1/chunks/{later}?wait_s=20"))
        await asyncio.sleep(0.2)
        assert not answer.done()
        (tmp_path / "later").write_bytes(b"later")
        await asyncio.to_thread(shelf.add, later, tmp_path / "later", 0, 5)
        assert (await asyncio.wait_for(answer, 1.0)).content == b"later"
        refusal = await http.get(f"/v1/chunks/{ABSENT}?wait_s=0.2")
        assert refusal.status_code == 404 and refusal.json()["error"] == "not-yet"
        assert (await http.get(f"/v1/chunks/{ABSENT}")).status_code == 404

    told(tmp_path, story)


def test_a_renamed_directory_goes_on_serving(tmp_path: Path) -> None:
    """Chunks are found after their directory is renamed, and no longer after it is removed."""

    async def story(_relay: Relay, shelf: Shelf, http: httpx.AsyncClient) -> None:
        (tmp_path / "unfinished").rename(tmp_path / "whole")
        shelf.moved(tmp_path / "unfinished", tmp_path / "whole")
        assert (await http.get(f"/v1/chunks/{DIGEST}")).content == DATA
        shelf.removed(tmp_path / "whole")
        assert (await http.get(f"/v1/chunks/{DIGEST}")).status_code == 404

    told(tmp_path, story)


def test_it_tells_what_it_has_of_a_payload(tmp_path: Path) -> None:
    """The bitmap names the chunks here, in the order of the payload; an unknown version is 404."""

    async def story(_relay: Relay, shelf: Shelf, http: httpx.AsyncClient) -> None:
        shelf.expect(3, [ABSENT, DIGEST, "1" * 64])
        holdings = (await http.get("/v1/have/3")).json()
        assert unpacked(holdings["have"], holdings["chunks"]) == {1}
        assert (await http.get("/v1/have/4")).status_code == 404

    told(tmp_path, story)


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"POST /v1/chunks/x HTTP/1.1\r\n\r\n",
        b"GET /v1/chunks/../../etc HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: 9\r\n\r\n",
        b"nonsense\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 5000,
        b"\x00\xff" * 10000,
    ],
)
def test_nonsense_ends_the_connection(tmp_path: Path, request_bytes: bytes) -> None:
    """What is no request for a chunk gets a refusal and a closed connection; the next one is served."""

    async def story(relay: Relay, _shelf: Shelf, http: httpx.AsyncClient) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", relay.port)
        writer.write(request_bytes)
        try:
            answer = await asyncio.wait_for(reader.read(), 5)
        except ConnectionError:
            answer = b""
        assert not answer or answer.split()[1] in (b"400", b"401", b"405")
        writer.close()
        assert (await http.get(f"/v1/chunks/{DIGEST}")).content == DATA

    told(tmp_path, story)


def test_connections_are_limited(tmp_path: Path) -> None:
    """One connection too many is told so at once."""

    async def story(relay: Relay, _shelf: Shelf, http: httpx.AsyncClient) -> None:
        held = [await asyncio.open_connection("127.0.0.1", relay.port) for _ in range(2)]
        await asyncio.sleep(0.05)
        assert (await http.get("/healthz")).status_code == 503
        for _, writer in held:
            writer.close()

    told(tmp_path, story, connections=2)


def test_what_it_sends_is_capped(tmp_path: Path) -> None:
    """With a cap of 8 Mbit/s, 512 KB take half a second, for all receivers together."""

    async def story(_relay: Relay, _shelf: Shelf, http: httpx.AsyncClient) -> None:
        clock = asyncio.get_running_loop().time
        began = clock()
        got = await asyncio.gather(*(http.get(f"/v1/chunks/{DIGEST}") for _ in range(2)))
        assert all(answer.content == DATA for answer in got)
        assert clock() - began > 8 * 2 * len(DATA) / 8e6 - 0.1

    told(tmp_path, story, caps=(Shaper(8e6),))


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    """A second relay on a port is a user's error that names the option."""

    async def story(relay: Relay, shelf: Shelf, _http: httpx.AsyncClient) -> None:
        with pytest.raises(UserError, match=rf"--relay-port {relay.port} .*--no-relay"):
            await Relay(shelf, TOKEN, port=relay.port).start()

    told(tmp_path, story)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n123456789",
        b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n12345",
        b"HTTP/1.1 200 OK\r\n\r\n1234",
        b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n12",
        b"x" * 100_000,
        b"",
        b"HTTP/1.1 404 No\r\nContent-Length: 999999999\r\n\r\n",
    ],
)
def test_a_line_believes_no_answer(answer: bytes) -> None:
    """An answer longer, shorter or other than a chunk's breaks the attempt, with nothing beyond it."""

    async def work() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        line = Line(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", "key")
        buffer = bytearray(4)
        with pytest.raises(Broken):
            await asyncio.wait_for(line.chunk(ABSENT, buffer, 0, 1.0, 0), 5)
        assert line.filled <= 4 and len(buffer) == 4
        line.close()
        server.close()

    asyncio.run(work())


def test_the_relay_key_does_not_show_the_token() -> None:
    """What travels between workers is made of the token, and is not it."""
    assert relay_key(TOKEN) != relay_key(TOKEN + "x") and TOKEN not in json.dumps(relay_key(TOKEN))
