"""A file of one's own in the same schema works by its path."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from echo2 import traces
from echo2.errors import UserError

LINK = (
    "trace_id,t_s,down_mbps,up_mbps,rtt_ms,ok\n"
    "a,0,100,10,20,1\na,10,50,5,,1\na,30,,,,0\na,40,100,10,20,1\na,100,100,10,20,1\n"
)


def test_own_link_by_path_and_by_str(tmp_path: Path) -> None:
    """Rates come in bit/s, an outage is 0, the last row ends the trace."""
    path = tmp_path / "line.csv"
    path.write_text(LINK)
    for given in (path, str(path)):
        series = traces.link(given)
        assert series.t_s.tolist() == [0, 10, 30, 40, 100]
        assert series.down_bps.tolist() == [100e6, 50e6, 0, 100e6, 100e6]
        assert series.ok.tolist() == [True, True, False, True, True]
        assert series.duration_s == 100
        assert np.isnan(series.rtt_s[1]) and series.rtt_s[0] == pytest.approx(0.02)


def test_normalised_has_median_one_by_time(tmp_path: Path) -> None:
    """The shape is relative to the rate held for most of the time up, here 100 Mbit/s."""
    path = tmp_path / "line.csv"
    path.write_text(LINK)
    assert traces.link(path).normalised().down.tolist() == [1, 0.5, 0, 1, 1]
    assert traces.shape(path).up.tolist() == [1, 0.5, 0, 1, 1]


def test_one_of_several_series_is_picked_by_its_name(tmp_path: Path) -> None:
    """A file of two lines needs `path#name`; the error without it says so."""
    path = tmp_path / "lines.csv"
    path.write_text(LINK + LINK.split("\n", 1)[1].replace("a,", "b,").replace(",100,10,", ",7,3,"))
    with pytest.raises(UserError, match=r"holds 2 series; pick one with .*#a"):
        traces.link(path)
    assert traces.link(f"{path}#b").down_bps[0] == 7e6
    with pytest.raises(UserError, match="known: a, b"):
        traces.link(f"{path}#zz")


def test_kind_is_taken_from_the_columns_or_given(tmp_path: Path) -> None:
    """The kind may be left out; the wrong one is refused, an unknown one is answered with the known."""
    path = tmp_path / "line.csv"
    path.write_text(LINK)
    assert len(traces.load(path)) == len(traces.load(path, "link")) == 5
    with pytest.raises(UserError, match="missing"):
        traces.load(path, "price")
    with pytest.raises(UserError, match=r"kind of trace 'lnk'.*link"):
        traces.load(path, "lnk")


def test_gz_and_columns_of_ones_own_are_welcome(tmp_path: Path) -> None:
    """A .csv.gz works, and columns beyond the schema stay in the table."""
    path = tmp_path / "line.csv.gz"
    lines = LINK.strip().split("\n")
    text = "\n".join([lines[0] + ",note", *(f"{line},x" for line in lines[1:])])
    path.write_bytes(gzip.compress(text.encode()))
    assert set(traces.load(path)["note"]) == {"x"}


def test_own_availability_counts_and_nodes(tmp_path: Path) -> None:
    """Counts become correlated slots; named nodes are packed into as many slots as were up at once."""
    head = "trace_id,start_s,end_s,pool,node,alive\n"
    counts = tmp_path / "counts.csv"
    counts.write_text(head + "c,0,10,p,,3\nc,10,20,p,,1\nc,20,30,p,,2\n")
    got = traces.availability(counts)
    assert got.nodes == (((0, 30),), ((0, 10), (20, 30)), ((0, 10),))
    assert (got.peak, got.mean_alive, got.preemptions) == (3, 2, 2)
    nodes = tmp_path / "nodes.csv"
    nodes.write_text(head + "n,0,10,p,x,1\nn,5,30,p,y,1\nn,12,20,p,z,1\nn,25,30,p,x,1\n")
    packed = traces.availability(nodes)
    assert packed.nodes == (((0, 10), (12, 20), (25, 30)), ((5, 30),))


def test_own_prices_engines_lengths_and_regions(tmp_path: Path) -> None:
    """The same look-ups answer from one's own files."""
    price = tmp_path / "price.csv"
    price.write_text(
        "date,provider,region,gpu,gpus,vram_gb,market,usd_per_gpu_hour,source_url\n"
        "2026-01-01,me,home,nvidia geforce rtx 4090,1,24,spot,0.11,bill\n"
    )
    quote = traces.price("RTX 4090", path=price)
    assert (quote.usd_per_gpu_hour, quote.providers, quote.quotes) == (0.11, ("me",), 1)
    engine = tmp_path / "engine.csv"
    engine.write_text(
        "gpu,gpus,model,dtype,engine,phase,batch,context_tokens,step_ms,tokens_per_s,kv_pool_tokens,basis,source\n"
        "L4,1,tiny,bf16,x,decode,1,1000,11,90,9000,measured,me\n"
        "L4,1,tiny,bf16,x,decode,1,2000,12,83,9000,measured,me\n"
    )
    profile = traces.decode_model("L4", "tiny", path=engine)
    assert profile.model.step_s(1, 4000) == pytest.approx(0.014)
    assert profile.basis == "measured"
    length = tmp_path / "length.csv"
    length.write_text("population,kind,tokens_lo,tokens_hi,mass\nme,output,10,10,0.5\nme,output,30,30,0.5\n")
    assert traces.lengths(length).mean == 20
    region = tmp_path / "region.csv"
    region.write_text(
        "epoch_utc,src,dst,src_tier,dst_tier,capacity_mbps,streams,rtt_ms,egress_usd_per_gb\n"
        "2026-01-01,a:x,b:y,,,1000,8,50,0.1\n"
    )
    matrix = traces.regions(str(region))
    assert matrix.regions == ("a:x", "b:y")
    assert matrix.capacity_bps[0, 1] == 1e9 and np.isnan(matrix.capacity_bps[1, 0])


def test_missing_file_is_named() -> None:
    """A path that is not there is not taken for an id."""
    with pytest.raises(UserError, match=r"nowhere\.csv does not exist"):
        traces.load("nowhere.csv")
