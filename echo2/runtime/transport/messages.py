"""The typed messages between workers and the learner's host, and their limits. Shared by server and client.

A worker only dials out. It says hello and gets a lease; it asks for work (a long poll that renews the
lease) and gets orders; it sends rollouts and reports. Orders are numbered and sent again until a later
request acknowledges them, so a lost answer loses nothing; all other messages may be repeated freely.

    hello -> Standby --Start--> loads the newest snapshot, starts its engine, reports Up
    Up: Generate, Cancel, Fetch, Abort --Stop--> stops its engine, reports Down, is in standby again
    Exit: leave for good (local workers after Stop; everyone when the run is over)

`incarnation` numbers the starts of one worker: what an earlier one still sends is recognised by it.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

PROTOCOL = 3
"""Raised with every change that an older worker cannot follow."""

MAX_TOKENS = 1 << 20
MAX_ROLLOUTS = 256
"""Rollouts in one upload."""
MAX_REPORTS = 64
MAX_CHUNKS = 1 << 20
MAX_TENSORS = 1 << 20
MAX_SOURCES = 4096
"""Workers that a route may name."""
MAX_WAIT_S = 30.0
"""Longest a request for work, or for a chunk that has not come yet, may be held open."""
LEARNER = "learner"
"""Stands for the learner's host among the sources of a route."""

Name = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9._-]+$")]
Text = Annotated[str, Field(max_length=2000)]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Key = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
"""An Ed25519 public key."""
Signature = Annotated[str, Field(pattern=r"^[0-9a-f]{128}$")]
Url = Annotated[
    str, Field(max_length=300, pattern=r"^(https?://[A-Za-z0-9._:\[\]-]+(/[A-Za-z0-9._~/-]*)?)?$")
]
Ordinal = Annotated[int, Field(ge=0, lt=2**62)]
Version = Annotated[int, Field(ge=-1, lt=2**31)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
TokenIds = Annotated[tuple[TokenId, ...], Field(max_length=MAX_TOKENS, strict=False)]
Seconds = Annotated[float, Field(ge=0, le=1e9)]
Bps = Annotated[float, Field(ge=0, le=1e15)]


class Message(BaseModel):
    """What all messages share: exact types, no unknown fields, finite numbers."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


# ---- a worker introduces itself ------------------------------------------------------------------------


class Hello(Message):
    """`session` is new for every process; a hello of the same session gets the same lease back.

    `worker_id` is given by the learner to local workers; remote ones name their `pool` only. `relay_url`:
    where other workers reach this one's chunks; without it, it passes nothing on.
    """

    protocol: int
    session: Annotated[str, Field(min_length=8, max_length=64)]
    pool: Name
    engine: Name
    worker_id: Name | None = None
    relay_url: Url | None = None


class Welcome(Message):
    """`lease` goes into the header of every later request; it ends `lease_s` after the last one.

    `run_key` signs the manifests of this run; a worker that has seen one for a run takes no other.
    """

    run_id: Name
    worker_id: Name
    lease: Annotated[str, Field(min_length=16, max_length=128)]
    lease_s: Seconds
    run_key: Key | None = None


# ---- orders: from the learner to a worker --------------------------------------------------------------


class Start(Message):
    """Load the snapshot of `version` and start the engine; answer with `Up`. A running one may be kept."""

    kind: Literal["start"] = "start"
    incarnation: Ordinal
    version: Version
    slots: Annotated[int, Field(ge=1, le=65536)]
    context_tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS)]
    swap: Literal["keep", "wait", "abort"] = "keep"


class Play(Message):
    """A task of several turns, played beside the engine: its registered name, its options as JSON text.

    `template` is how prompts and answers become tokens; a turn has at most `turn_tokens`.
    """

    task: Annotated[str, Field(min_length=1, max_length=500)]
    options: Annotated[str, Field(max_length=20_000)] = "{}"
    template: Literal["auto", "chat", "plain"] = "auto"
    turn_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)]


class Generate(Message):
    """Complete a prompt `rollouts` times. `seed` is this group's own.

    With `play` an environment answers each completion; `max_tokens` then bounds the whole conversation.
    """

    kind: Literal["generate"] = "generate"
    group_id: Ordinal
    prompt: Ordinal
    attempt: Ordinal
    prompt_ids: TokenIds
    rollouts: Annotated[int, Field(ge=1, le=65536)]
    seed: Annotated[int, Field(ge=0, lt=2**63)]
    max_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)]
    stop_token_ids: TokenIds = ()
    temperature: Annotated[float, Field(gt=0, le=100)] = 1.0
    top_k: Annotated[int, Field(ge=0, le=MAX_TOKENS)] = 0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    play: Play | None = None


class Cancel(Message):
    """Stop a running group and forget it."""

    kind: Literal["cancel"] = "cancel"
    group_id: Ordinal


class Source(Message):
    """Who has chunks: a worker and the address of its relay, or `LEARNER` (no address)."""

    worker_id: Name
    url: Url = ""


class Draft(Message):
    """A delta that is being encoded: its chunks are told in signed pages (`pages`). `bytes`: as expected."""

    id: Digest
    bytes: Annotated[int, Field(ge=0, le=2**50)]


class Route(Message):
    """From whom each chunk of a payload comes: `sources[turns[i]]`; one turn: all of them from that source.

    The payload: the chunks of the full file, or of the deltas of the chain, oldest first. Without turns each
    chunk comes from whichever source has it, the rarest first. The learner is the last resort for all.
    `expected_s`: when all of it should be there by the plan; 0: nobody knows. With a `draft` the payload is
    that delta alone, of as many chunks as its pages will have, and the turns begin anew after the last.
    """

    sources: Annotated[tuple[Source, ...], Field(min_length=1, max_length=MAX_SOURCES, strict=False)]
    turns: Annotated[
        tuple[Annotated[int, Field(ge=0, lt=MAX_SOURCES)], ...],
        Field(max_length=MAX_CHUNKS, strict=False),
    ] = ()
    expected_s: Seconds = 0.0
    draft: Draft | None = None

    @model_validator(mode="after")
    def _turns_have_sources(self) -> Route:
        if self.turns and max(self.turns) >= len(self.sources):
            raise ValueError(f"a turn names source {max(self.turns)} of {len(self.sources)}")
        return self


class Fetch(Message):
    """Get the snapshot of `version`, verify it, swap to it; answer with `Live` or `Failed`.

    `parent`: the version held, from which the chain of deltas leads on; -1: take the full file. `route`:
    None means everything from the learner. Sent again for a version on its way, it changes the route of the
    chunks that are still missing, and nothing else.
    """

    kind: Literal["fetch"] = "fetch"
    version: Version
    parent: Version = -1
    route: Route | None = None


class Abort(Message):
    """Give up fetching the snapshot of `version`."""

    kind: Literal["abort"] = "abort"
    version: Version


class Stop(Message):
    """Stop generating and go back to standby; answer with `Down`."""

    kind: Literal["stop"] = "stop"
    reason: Text = ""


class Exit(Message):
    """Leave for good."""

    kind: Literal["exit"] = "exit"
    reason: Text = ""


Order = Annotated[Start | Generate | Cancel | Fetch | Abort | Stop | Exit, Field(discriminator="kind")]


class Numbered(Message):
    """An order and its number; numbers grow by one within a lease, from 1."""

    number: Ordinal
    order: Order


class WorkRequest(Message):
    """Ask for orders. `acked`: every order up to this number has arrived and need not be sent again."""

    acked: Ordinal = 0
    wait_s: Annotated[float, Field(ge=0, le=MAX_WAIT_S)] = 20.0
    running: Ordinal = 0
    unsent: Ordinal = 0


class WorkReply(Message):
    """Orders not yet acknowledged, oldest first; none when the wait was over first."""

    orders: Annotated[tuple[Numbered, ...], Field(max_length=65536, strict=False)] = ()


# ---- rollouts in ---------------------------------------------------------------------------------------


class WireSegment(Message):
    """From completion token `start` on, `version` generated."""

    start: Annotated[int, Field(ge=0, lt=MAX_TOKENS)]
    version: Version


class WireSpan(Message):
    """Completion tokens `start` to `end` - 1 were written by the environment."""

    start: Annotated[int, Field(ge=0, lt=MAX_TOKENS)]
    end: Annotated[int, Field(ge=1, le=MAX_TOKENS)]


class WireRollout(Message):
    """One finished completion. Prompt, attempt and prompt tokens are the learner's own: not sent back."""

    group_id: Ordinal
    index: Annotated[int, Field(ge=0, lt=65536)]
    token_ids: TokenIds
    logprobs: Annotated[tuple[float, ...], Field(max_length=MAX_TOKENS, strict=False)]
    segments: Annotated[tuple[WireSegment, ...], Field(max_length=4096, strict=False)]
    finish_reason: Literal["stop", "length", "abort"]
    environment: Annotated[tuple[WireSpan, ...], Field(max_length=4096, strict=False)] = ()


class Upload(Message):
    """Finished rollouts; each may be sent again until an answer has come."""

    incarnation: Ordinal
    rollouts: Annotated[tuple[WireRollout, ...], Field(min_length=1, max_length=MAX_ROLLOUTS, strict=False)]


Outcome = Literal["accepted", "duplicate", "late", "unknown", "mismatched", "refused"]


class Verdict(Message):
    """What became of one rollout. The worker may forget it whatever it says. `detail` explains a refusal."""

    group_id: Ordinal
    index: Ordinal
    outcome: Outcome
    detail: Text = ""


class UploadReply(Message):
    """One verdict for each rollout, in order."""

    verdicts: Annotated[tuple[Verdict, ...], Field(max_length=MAX_ROLLOUTS, strict=False)]


# ---- reports: from a worker to the learner -------------------------------------------------------------


class Up(Message):
    """The engine runs with the verified snapshot of `version`, whose identity is `weights`."""

    kind: Literal["up"] = "up"
    version: Version
    weights: Digest
    vocab_size: Annotated[int, Field(ge=1, le=2**31)]
    context_tokens: Annotated[int, Field(ge=1, le=2**31)]


class Live(Message):
    """The swap to `version` is done. Seconds: transfer, verification, and the pause without tokens."""

    kind: Literal["live"] = "live"
    version: Version
    transfer_s: Seconds
    check_s: Seconds
    pause_s: Seconds


class Failed(Message):
    """The snapshot of `version` could not be had, verified or swapped to; the old weights go on."""

    kind: Literal["failed"] = "failed"
    version: Version
    cause: Text


class Taken(Message):
    """What came of one fetch: bytes by source, whether it was finished or not. The learner pays for them."""

    kind: Literal["taken"] = "taken"
    version: Version
    sources: Annotated[dict[Name, Annotated[int, Field(ge=0, le=2**50)]], Field(max_length=MAX_SOURCES)]


class SourceFailed(Message):
    """A source did not give what the route says it should; the fetch goes on from others.

    gone: it cannot be reached, or refuses; slow: nothing came for too long; wrong-bytes: not what the digest
    says.
    """

    kind: Literal["source_failed"] = "source_failed"
    version: Version
    source_id: Name
    cause: Literal["gone", "slow", "wrong-bytes"]
    detail: Text = ""


class GroupFailed(Message):
    """A group cannot be generated here: refused by the engine, or lost with it."""

    kind: Literal["group_failed"] = "group_failed"
    group_id: Ordinal
    cause: Text


class Rate(Message):
    """Measured over `window_s` seconds in which all slots were taken: rollouts/s and tokens/s."""

    kind: Literal["rate"] = "rate"
    rollouts_per_s: Annotated[float, Field(ge=0, le=1e9)]
    tokens_per_s: Annotated[float, Field(ge=0, le=1e12)]
    window_s: Seconds


class Link(Message):
    """What the link has carried at its best in a real transfer, a lower bound; 0: nothing went that way.

    `uplink_limited`: data for several others was waiting all the while, so this is what the uplink gives.
    """

    kind: Literal["link"] = "link"
    downlink_bps: Bps
    uplink_bps: Bps = 0.0
    uplink_limited: bool = False


class Down(Message):
    """The engine has stopped, or died (`cause`); the process goes on in standby."""

    kind: Literal["down"] = "down"
    cause: Text


Report = Annotated[
    Up | Live | Failed | Taken | SourceFailed | GroupFailed | Rate | Link | Down, Field(discriminator="kind")
]


class Reports(Message):
    """Reports in the order in which they came about."""

    incarnation: Ordinal
    reports: Annotated[tuple[Report, ...], Field(min_length=1, max_length=MAX_REPORTS, strict=False)]


class Done(Message):
    """Taken in."""

    ok: bool = True


class Leave(Message):
    """The process ends; `cause` is for the log."""

    cause: Text


# ---- snapshots -----------------------------------------------------------------------------------------


class Chunk(Message):
    """A piece of a file by its digest (`digests`)."""

    digest: Digest
    size: Annotated[int, Field(ge=1, le=2**31)]


class File(Message):
    """A file as chunks in order. `name` has no path in it."""

    name: Name
    size: Annotated[int, Field(ge=0, le=2**50)]
    chunks: Annotated[tuple[Chunk, ...], Field(max_length=MAX_CHUNKS, strict=False)]


class TensorEntry(Message):
    """A tensor of the snapshot and the digest of its bytes."""

    name: Annotated[str, Field(min_length=1, max_length=512)]
    dtype: Annotated[str, Field(min_length=1, max_length=16)]
    shape: Annotated[tuple[Annotated[int, Field(ge=0, lt=2**40)], ...], Field(max_length=16, strict=False)]
    digest: Digest


class Manifest(Message):
    """A snapshot: model files (configuration, tokenizer) and weights of one version of one run.

    `weights` identifies the values: SHA-256 over the tensor table. `full` is all of them as
    `model.safetensors`, `delta` what makes them out of version `parent`, whose weights are `parent_weights`;
    a manifest has one of the two at least. `model_files` are the same for every version.
    """

    format: Literal[2] = 2
    run_id: Name
    version: Version
    parent: Version = -1
    parent_weights: Digest | None = None
    weights: Digest
    tensors: Annotated[tuple[TensorEntry, ...], Field(min_length=1, max_length=MAX_TENSORS, strict=False)]
    full: File | None = None
    delta: File | None = None
    model_files: Annotated[tuple[File, ...], Field(max_length=64, strict=False)]


class SignedManifest(Message):
    """A manifest as the very text that was signed, and the run key's Ed25519 signature over its UTF-8."""

    manifest: Annotated[str, Field(min_length=2, max_length=256 << 20)]
    signature: Signature


class Holdings(Message):
    """The chunks of a payload that a relay has, as a bitmap in hex: chunk i is bit i % 8 of byte i // 8.

    `payload` is the SHA-256 over the payload's digests, a line each: workers that hold different versions
    fetch different payloads.
    """

    version: Version
    payload: Digest
    chunks: Annotated[int, Field(ge=0, le=MAX_CHUNKS)]
    have: Annotated[str, Field(max_length=MAX_CHUNKS // 4 + 2, pattern=r"^[0-9a-f]*$")]


class Problem(Message):
    """Every refusal: a stable `error` code, what was wrong with which value, and what to do."""

    error: Name
    detail: Text
