"""What is shipped: every trace loads, is what the index says, and names its source and licence."""

from __future__ import annotations

import gzip
import hashlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from echo2 import traces
from echo2.errors import UserError
from echo2.traces import catalogue

FACTS_ONLY = ("skypilot", "cloudrift")
LICENCES = {"Apache-2.0", "MIT", "CC BY 4.0"}


def test_every_shipped_trace_loads_and_is_not_empty() -> None:
    """Each id of the index gives a checked table of its kind."""
    assert len(traces.entries()) > 60
    for entry in traces.entries():
        frame = traces.load(entry.trace_id, entry.kind)
        assert len(frame) > 0, entry.trace_id


def test_shipped_files_have_the_sha256_of_the_index() -> None:
    """The index gives the sha256 of the bytes on disk."""
    for entry in traces.entries():
        data = (traces.data_folder() / entry.file).read_bytes()
        assert hashlib.sha256(data).hexdigest() == entry.sha256, entry.file


def test_gzip_files_carry_no_time() -> None:
    """The gz header's time is 0, so the bytes do not depend on when they were made."""
    packed = {e.file for e in traces.entries() if e.file.endswith(".gz")}
    assert packed
    for name in packed:
        assert (traces.data_folder() / name).read_bytes()[4:8] == b"\0\0\0\0", name


def test_no_file_is_shipped_without_an_index_row() -> None:
    """Every csv under the folder stands in the index, and the whole is under 1.3 MB."""
    folder = traces.data_folder()
    files = {str(p.relative_to(folder)) for p in folder.rglob("*.csv*")} - {"index.csv"}
    assert files == {e.file for e in traces.entries()}
    assert sum((folder / f).stat().st_size for f in files) < 1.3e6


def test_every_trace_has_an_open_licence_and_a_credit() -> None:
    """Licences are Apache-2.0, MIT or CC BY 4.0; each source and its licence stand in NOTICE.md."""
    notice = (traces.data_folder() / "NOTICE.md").read_text()
    for entry in traces.entries():
        assert entry.licence in LICENCES, entry.trace_id
        assert entry.basis in ("measured", "derived", "estimate", "scaled")
        assert not any(word in entry.source for word in FACTS_ONLY)
        if entry.source.startswith("github.com/"):
            assert entry.source in notice and entry.source_commit[:7] in notice, entry.source
    assert "WizardTim, speedtest-data, CC BY 4.0, modified" in notice
    assert "internetspeedtest.net" in notice and "Microsoft Azure" in notice


def test_trace_ids_are_unique_and_files_hold_their_series() -> None:
    """An id names one trace; in a file of several series it selects its own rows only."""
    ids = [e.trace_id for e in traces.entries()]
    assert len(ids) == len(set(ids))
    for entry in traces.entries():
        series = traces.KINDS[entry.kind].series
        if series:
            assert set(traces.load(entry.trace_id)[series]) == {entry.trace_id}


def test_unknown_id_offers_the_nearest() -> None:
    """A misspelt id is answered with the near ones."""
    with pytest.raises(UserError, match="bamboo-p3"):
        traces.entry("bambo-p3")


def test_wrong_kind_of_a_shipped_trace_is_refused() -> None:
    """Asking for an availability trace as a link says what it is."""
    with pytest.raises(UserError, match="kind availability, not link"):
        traces.load("bamboo-p3", "link")


def test_importing_traces_loads_no_heavy_library() -> None:
    """`import echo2.traces` loads neither pandas, numpy nor matplotlib."""
    code = (
        "import sys, echo2.traces, echo2.traces.show; "
        "print([m for m in ('pandas','numpy','matplotlib','scipy') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).resolve().parent.parent,
    )
    assert done.stdout.strip() == "[]"


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the shipped folder that the loader takes for the real one."""
    folder = tmp_path / "traces"
    shutil.copytree(catalogue.data_folder(), folder)
    monkeypatch.setattr(catalogue, "data_folder", lambda: folder)
    catalogue.entries.cache_clear()
    catalogue._shipped.cache_clear()
    yield folder
    monkeypatch.undo()
    catalogue.entries.cache_clear()
    catalogue._shipped.cache_clear()


def test_a_changed_shipped_file_is_refused(copied: Path) -> None:
    """One changed digit in a shipped file is found by its sha256."""
    name = next(e.file for e in catalogue.entries() if e.trace_id == "bamboo-p3")
    path = copied / name
    path.write_bytes(path.read_bytes().replace(b"1", b"2", 1))
    with pytest.raises(UserError, match=r"bamboo_nodes.csv was changed: sha256"):
        catalogue.load("bamboo-p3")


def test_a_missing_shipped_file_is_named(copied: Path) -> None:
    """A missing file gives its name, not a traceback of the system."""
    name = next(e.file for e in catalogue.entries() if e.trace_id == "access-2026-08")
    (copied / name).unlink()
    with pytest.raises(UserError, match=r"home_lines_2026-08\.csv does not exist"):
        catalogue.load("access-2026-08")


def test_a_rezipped_file_is_refused_too(copied: Path) -> None:
    """Same rows, other compression: still not the file of the index."""
    name = next(e.file for e in catalogue.entries() if e.trace_id == "home-brisbane-2017")
    path = copied / name
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()), compresslevel=1, mtime=7))
    with pytest.raises(UserError, match="sha256"):
        catalogue.load("home-brisbane-2017")
