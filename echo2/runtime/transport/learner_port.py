"""A stream of chunks from the learner: over a line of its own, or through the client where there is a proxy.

Used by `gathering`.
"""

from __future__ import annotations

from collections.abc import Callable

from echo2.runtime.transport.client import Broken, Client, Refused
from echo2.runtime.transport.lane import NOT_YET, OK, Port
from echo2.runtime.transport.line import Line


def learner_port(client: Client, worker_id: str, heard: Callable[[int], None]) -> Port:
    """A new stream. Raises Broken when asked in vain, Refused or UserError where asking again is no use."""
    if client.proxied:
        return ProxiedPort(client, heard)
    return DirectPort(client, worker_id, heard)


class DirectPort(Line):
    """A line to the learner's own server, whose refusals mean what they mean to the client."""

    def __init__(self, client: Client, worker_id: str, heard: Callable[[int], None]) -> None:
        super().__init__(client.url, client.token, worker_id, client.link, heard, client.tls)
        self._client = client

    async def chunk(self, digest: str, into: bytearray, had: int, wait_s: float, place: int) -> int:
        """The bytes of a chunk from `had` on into their place; 200 or the status of a refusal."""
        status = await super().chunk(digest, into, had, wait_s, place)
        if status != OK:
            try:
                self._client.refuse(f"/v1/chunks/{digest}", status, self.refusal)
            except Refused:
                if status == NOT_YET:
                    raise
        return status


class ProxiedPort:
    """A stream through the client, which knows the machine's proxies."""

    held_up = False

    def __init__(self, client: Client, heard: Callable[[int], None]) -> None:
        self._client, self._heard = client, heard
        self.filled, self.sending = 0, False

    async def chunk(self, digest: str, into: bytearray, had: int, wait_s: float, place: int) -> int:
        """The bytes of a chunk from `had` on into their place; 200 or the status of a refusal."""
        self.filled = had
        try:
            async with self._client.chunk(digest, had, place) as pieces:
                self.sending = True
                async for piece in pieces:
                    if self.filled + len(piece) > len(into):
                        raise Broken("more bytes came than the chunk has")
                    into[self.filled : self.filled + len(piece)] = piece
                    self.filled += len(piece)
                    self._heard(len(piece))
        except Refused as refusal:
            if refusal.status == NOT_YET:
                raise
            return refusal.status
        finally:
            self.sending = False
        if self.filled < len(into):
            raise Broken("the answer was cut short")
        return OK

    def close(self) -> None:
        """The client's own connections are kept."""
