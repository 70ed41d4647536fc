"""What the HTTP server needs of the learner's host. The driver implements it; the server decides nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from echo2.errors import UserError
from echo2.runtime.transport import messages as m
from echo2.runtime.transport.pages import Pages


class Refusal(UserError):  # noqa: N818 - an answer, not a failure
    """A request that cannot be served: `status` for HTTP, `code` stable for programs, the text for people."""

    def __init__(self, status: int, code: str, detail: str) -> None:
        super().__init__(detail)
        self.status, self.code = status, code


class UnknownLease(Refusal):
    """The lease has ended or belongs to an earlier life of the learner: say hello again."""

    def __init__(self) -> None:
        super().__init__(409, "unknown-lease", "this lease is not known (any more); say hello again")


class Coordinator(Protocol):
    """The learner's side of each message. All run on the server's event loop and raise `Refusal`."""

    def hello(self, hello: m.Hello, address: str) -> m.Welcome:
        """Admit a worker process."""
        ...

    async def work(self, lease: str, request: m.WorkRequest) -> m.WorkReply:
        """Wait at most `request.wait_s` for orders. Renews the lease, as every call with one does."""
        ...

    async def rollouts(self, lease: str, upload: m.Upload) -> m.UploadReply:
        """Take rollouts in. Those accepted are durable when this returns."""
        ...

    def reports(self, lease: str, reports: m.Reports) -> None:
        """Take reports in."""
        ...

    def leave(self, lease: str, leave: m.Leave) -> None:
        """A worker process ends."""
        ...

    def check_lease(self, lease: str) -> str:
        """The worker's id. Raises UnknownLease."""
        ...

    def manifest(self, version: int) -> m.SignedManifest:
        """The signed manifest of `version`, of the newest version for -1. Raises Refusal (404)."""
        ...

    async def pages(self, version: int, draft: str, number: int, wait_s: float) -> Pages:
        """The pages of a draft from `number` on; none after `wait_s`. Raises Refusal (404, 410)."""
        ...

    def chunk(self, digest: str) -> Path:
        """The file that holds a chunk. Raises Refusal (404)."""
        ...

    def metrics(self) -> str:
        """Prometheus text."""
        ...

    def health(self) -> dict[str, object]:
        """What the run is at, JSON values: version, step, workers, what is waited for."""
        ...
