"""Signed manifests: what the run key has not signed is not believed, and a worker keeps to one key."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path

import pytest

from echo2.errors import UserError
from echo2.runtime.driver import run_dir
from echo2.runtime.transport.client import Client
from echo2.runtime.transport.manifest_check import SnapshotError
from echo2.runtime.transport.messages import Manifest, SignedManifest
from echo2.runtime.transport.receive import SnapshotReceiver
from echo2.runtime.transport.signing import DOMAIN, RunKey, checked_key, kept_key, pinned, verified
from echo2.runtime.transport.snapshot import SnapshotStore
from tests.transport_kit import HELLO, KEY, RUN, TOKEN, Desk, joined, serving, weights


def store_at(path: Path, run_id: str = RUN, key: RunKey = KEY, versions: int = 1) -> SnapshotStore:
    """A store with some versions and no model files."""
    store = SnapshotStore(path, run_id, [], key, keep=10)
    for version in range(versions):
        store.put(version, weights(version))
    return store


def test_a_signature_is_over_every_byte(tmp_path: Path) -> None:
    """The run key's manifest is read as it was written; any other text, key or signature is refused."""
    store = store_at(tmp_path / "a")
    signed = store.signed()
    assert verified(signed, store.run_key) == store.manifest()
    text, signature = signed.manifest, signed.signature
    flipped = f"{int(signature[0], 16) ^ 1:x}" + signature[1:]
    plain = KEY._key.sign(text.encode()).hex()  # of the same key over the same text, for another purpose
    tampered = [
        SignedManifest(manifest=text.replace('"version":0', '"version":1'), signature=signature),
        SignedManifest(manifest=text + " ", signature=signature),
        SignedManifest(manifest=text, signature=flipped),
        SignedManifest(manifest=text, signature=plain),
    ]
    for wrong in tampered:
        with pytest.raises(SnapshotError, match=f"not signed by the run key {KEY.public[:12]}"):
            verified(wrong, KEY.public)
    with pytest.raises(SnapshotError, match="not signed by the run key"):
        verified(signed, RunKey.new().public)


def test_a_signed_text_that_is_no_manifest() -> None:
    """Even what the key has signed must be a manifest of this format."""
    for text in ("{}", "[1]", "no JSON"):
        signature = KEY._key.sign(DOMAIN + text.encode()).hex()
        with pytest.raises(SnapshotError, match="a signed manifest cannot be read"):
            verified(SignedManifest(manifest=text, signature=signature), KEY.public)


def test_the_key_of_a_run_is_kept(tmp_path: Path) -> None:
    """One key for all lives, readable by its owner alone, nothing left beside it; a damaged file is told."""
    file = tmp_path / "run.key"
    first = kept_key(file)
    assert kept_key(file).public == first.public != kept_key(tmp_path / "other.key").public
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert sorted(p.name for p in tmp_path.iterdir()) == ["other.key", "run.key"]
    for damaged in ("", file.read_text()[:-5], "z" * 64):
        file.write_text(damaged)
        with pytest.raises(UserError, match=r"run\.key' holds no run key"):
            kept_key(file)
    with pytest.raises(UserError, match="cannot be kept"):
        kept_key(tmp_path / "nowhere" / "run.key")


def test_a_run_keeps_its_key_over_a_resume(tmp_path: Path) -> None:
    """The second life of a run signs with the key of the first; another run has another."""
    first = run_dir.begin(tmp_path / "run", "", {})
    key = kept_key(first.run_key).public
    again = run_dir.find(tmp_path / "run", {})
    assert again.life == 2 and kept_key(again.run_key).public == key
    assert kept_key(run_dir.begin(tmp_path / "other", "", {}).run_key).public != key


def test_which_key_is_pinned() -> None:
    """The first key of a run stays; another, none at all and a malformed one are refused."""
    one, two = RunKey.new().public, RunKey.new().public
    assert pinned("", one, RUN) == pinned(one, one, RUN) == one
    with pytest.raises(UserError, match=rf"names run key {two[:12]}.*this worker has pinned {one[:12]}"):
        pinned(one, two, RUN)
    with pytest.raises(UserError, match="names no run key"):
        pinned("", None, RUN)
    for wrong in ("", "0" * 63, "G" * 64, one.upper()):
        with pytest.raises(UserError, match="give the 64 hex digits"):
            checked_key(wrong)


def test_another_key_for_the_same_run_is_refused(tmp_path: Path) -> None:
    """A learner that names another key when the worker says hello again is not worked for; a key given
    beforehand holds from the first hello on."""

    async def main() -> None:
        desk = Desk(store_at(tmp_path / "s"))
        async with serving(desk) as server, joined(server.url) as client:
            assert client.run_key == KEY.public
            desk.run_key = RunKey.new().public
            with pytest.raises(UserError, match="another run or another learner: check --join and --run-key"):
                await client.hello(HELLO)
            assert client.run_key == KEY.public
            strict = Client(server.url, TOKEN, run_key=KEY.public)
            with pytest.raises(UserError, match="has pinned"):
                await strict.hello(HELLO)
            await strict.close()

    asyncio.run(main())


def test_manifests_that_are_not_the_learners_are_not_followed(tmp_path: Path) -> None:
    """Over HTTP: a manifest signed by another key, one of another version and one of another run, both
    signed by the right key and sent again, end in an error before a chunk is asked for."""

    async def main() -> None:
        desk = Desk(store_at(tmp_path / "s", versions=3))
        forged = store_at(tmp_path / "f", key=RunKey.new(), versions=3).signed(2)
        other_run = store_at(tmp_path / "o", "run-0", versions=3).signed(2)
        assert desk.store is not None
        old = desk.store.signed(1)
        cases = [
            (forged, "not signed by the run key"),
            (old, "asked for version 2, the learner sent snapshot 1"),
            (other_run, "snapshot 2 is of run 'run-0', this worker is in run 'run-1'"),
        ]
        async with serving(desk) as server, joined(server.url) as client:
            receiver = SnapshotReceiver(client, tmp_path / "got")
            for answer, said in cases:
                desk.store.signed = lambda version=-1, answer=answer: answer  # type: ignore[misc,assignment]
                with pytest.raises(SnapshotError, match=said):
                    await receiver.fetch(2)
            assert desk.asked == [] and not (tmp_path / "got").exists()

    asyncio.run(main())


def test_a_store_takes_only_its_own_manifests_back(tmp_path: Path) -> None:
    """A manifest on disk that was changed, or signed by another key, is gone when the store is opened."""
    store = store_at(tmp_path / "s", versions=3)
    changed = tmp_path / "s" / "manifests" / "00000001.json"
    signed = SignedManifest.model_validate_json(changed.read_bytes())
    text = signed.manifest.replace(RUN, "run-9")
    changed.write_text(SignedManifest(manifest=text, signature=signed.signature).model_dump_json())
    other = RunKey.new().sign(Manifest.model_validate_json(store.signed(2).manifest))
    (tmp_path / "s" / "manifests" / "00000002.json").write_text(other.model_dump_json())
    assert store_at(tmp_path / "s", versions=0).versions == (0,)
