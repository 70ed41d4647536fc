"""A file that cannot be true is refused with its name, the row, the value and the fix."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from echo2 import traces
from echo2.errors import UserError

LINK = "trace_id,t_s,down_mbps,up_mbps,rtt_ms,ok\n"
PRICE = "date,provider,region,gpu,gpus,vram_gb,market,usd_per_gpu_hour,source_url\n"
AVAILABILITY = "trace_id,start_s,end_s,pool,node,alive\n"
LENGTH = "population,kind,tokens_lo,tokens_hi,mass\n"
REGION = "epoch_utc,src,dst,src_tier,dst_tier,capacity_mbps,streams,rtt_ms,egress_usd_per_gb\n"
ENGINE = (
    "gpu,gpus,model,dtype,engine,phase,batch,context_tokens,step_ms,tokens_per_s,"
    "kv_pool_tokens,basis,source\n"
)
NIC = "instance,burst_mbps,sustained_mbps,bucket_gbit\n"

BAD = {
    "negative rate": (LINK + "a,0,5,1,,1\na,1,-5,1,,1\n", r"row 2 \(line 3\): down_mbps = '-5' must be > 0"),
    "zero rate": (LINK + "a,0,0,1,,1\n", r"row 1 \(line 2\): down_mbps = '0' must be > 0; .*ok = 0"),
    "time going back": (
        LINK + "a,0,5,1,,1\na,9,5,1,,1\na,3,5,1,,1\n",
        r"row 3 \(line 4\): t_s = 3 is not after 9",
    ),
    "time standing": (LINK + "a,0,5,1,,1\na,0,5,1,,1\n", r"row 2 .*not after"),
    "negative time": (LINK + "a,-1,5,1,,1\n", "t_s = '-1' must be >= 0"),
    "nan": (LINK + "a,0,nan,1,,1\n", "down_mbps = 'nan' is not a finite number"),
    "inf": (LINK + "a,0,5,inf,,1\n", "up_mbps = 'inf' is not a finite number"),
    "non-numeric": (LINK + "a,0,fast,1,,1\n", "down_mbps = 'fast' is not a finite number"),
    "decimal comma": (LINK + 'a,0,"5,5",1,,1\n', "'5,5' is not a finite number"),
    "bits instead of Mbit": (LINK + "a,0,50000000,1,,1\n", r"must be <= 1e\+06; give Mbit/s"),
    "absurd ping": (LINK + "a,0,5,1,1800000,1\n", "rtt_ms = '1800000' must be <= 60000"),
    "ok not a flag": (LINK + "a,0,5,1,,yes\n", "ok = 'yes'"),
    "up but no rate": (LINK + "a,0,,,,1\n", "neither down_mbps nor up_mbps is given"),
    "never up": (LINK + "a,0,,,,0\n", "never up"),
    "empty id": (LINK + ",0,5,1,,1\n", "trace_id = '' is empty"),
    "blank line": (LINK + "a,0,5,1,,1\n\na,1,5,1,,1\n", r"row 2 \(line 3\): 0 fields where"),
    "series not together": (LINK + "a,0,5,1,,1\nb,0,5,1,,1\na,1,5,1,,1\n", "must stand together"),
    "wrong unit": (
        LINK.replace("up_mbps", "up_kbps") + "a,0,5,1,,1\n",
        "'up_mbps' is missing; found 'up_kbps'",
    ),
    "missing column": ("trace_id,t_s,down_mbps,up_mbps,rtt_ms\na,0,5,1,\n", "column 'ok' is missing"),
    "too many fields": (LINK + "a,0,5,1,,1,9,9\n", r"row 1 \(line 2\): 8 fields where the header has 6"),
    "no rows": (LINK, "no data rows"),
    "empty file": ("", "is empty; its first row must name"),
    "column twice": (LINK.replace("up_mbps", "t_s") + "a,0,5,1,,1\n", "names a column twice"),
    "too few fields": (LINK + "a,0,5\n", "3 fields where"),
    "unknown gpu": (
        PRICE + "2026-01-01,x,,RTX 4900,1,24,spot,0.3,u\n",
        r"line 2\): GPU 'RTX 4900'.*RTX 4090",
    ),
    "price too good": (
        PRICE + "2026-01-01,x,,H100,1,80,spot,2,u\n2026-01-01,x,,H100,1,80,spot,0.01,u\n",
        r"row 2 \(line 3\): usd_per_gpu_hour = 0.01 for H100 is an error, not a bargain",
    ),
    "free": (PRICE + "2026-01-01,x,,H100,1,80,spot,0,u\n", "usd_per_gpu_hour = '0' must be > 0"),
    "price in cents": (PRICE + "2026-01-01,x,,H100,1,80,spot,1999,u\n", "must be <= 500; give USD"),
    "no such market": (PRICE + "2026-01-01,x,,H100,1,80,cheap,2,u\n", "market = 'cheap' must be one of"),
    "bad date": (PRICE + "01.02.2026,x,,H100,1,80,spot,2,u\n", "is not a date"),
    "no source": (PRICE + "2026-01-01,x,,H100,1,80,spot,2,\n", "source_url = '' is empty"),
    "half a gpu": (PRICE + "2026-01-01,x,,H100,0.5,80,spot,2,u\n", "gpus = '0.5' must be >= 1"),
    "interval backwards": (AVAILABILITY + "a,10,5,p,n1,1\n", "end_s = 5 is not after start_s = 10"),
    "overlap in a node": (
        AVAILABILITY + "a,0,10,p,n1,1\na,5,20,p,n1,1\n",
        r"row 2 .*start_s = 5 lies before",
    ),
    "two of one node": (AVAILABILITY + "a,0,10,p,n1,2\n", "alive must be 0 or 1"),
    "negative count": (AVAILABILITY + "a,0,10,p,,-1\n", "alive = '-1' must be >= 0"),
    "mass not 1": (LENGTH + "p,output,1,1,0.5\np,output,2,2,0.4\n", "sum to 0.9"),
    "bins overlap": (LENGTH + "p,output,1,5,0.5\np,output,4,9,0.5\n", "overlap"),
    "bin backwards": (LENGTH + "p,output,5,1,1\n", "tokens_hi must be >= tokens_lo"),
    "region not cloud:region": (
        REGION + "2022-01-01,us-east-1,b:c,,,5,64,,\n",
        "'us-east-1' is not cloud:region",
    ),
    "pair twice": (REGION + "2022-01-01,a:b,b:c,,,5,64,,\n" * 2, "stands twice"),
    "failed run": (ENGINE + "H100,1,m,,,decode,1,1024,0,0,1000,measured,s\n", "step_ms = '0' must be > 0"),
    "no such basis": (
        ENGINE + "H100,1,m,,,decode,1,1024,5,5,1000,guess,s\n",
        "basis = 'guess' must be one of",
    ),
    "burst under sustained": (NIC + "x,5,10,1\n", "burst_mbps must be >= sustained_mbps"),
}


@pytest.mark.parametrize("case", sorted(BAD))
def test_bad_rows_are_refused_with_file_row_value_and_fix(case: str, tmp_path: Path) -> None:
    """Each way a row can be wrong raises a one-line UserError that names the file."""
    text, pattern = BAD[case]
    path = tmp_path / "mine.csv"
    path.write_text(text)
    opener = traces.link if case == "never up" else traces.load
    with pytest.raises(UserError, match=pattern) as caught:
        opener(path)
    assert "mine.csv" in str(caught.value) and "\n" not in str(caught.value)


def test_truncated_gz_is_refused(tmp_path: Path) -> None:
    """A gz file cut short says so."""
    whole = gzip.compress((LINK + "".join(f"a,{i},5,1,,1\n" for i in range(500))).encode())
    path = tmp_path / "mine.csv.gz"
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=r"mine.csv.gz is cut short or not gzip"):
        traces.load(path)


def test_plain_text_called_gz_is_refused(tmp_path: Path) -> None:
    """A csv that only carries the name .gz says so."""
    path = tmp_path / "mine.csv.gz"
    path.write_text(LINK + "a,0,5,1,,1\n")
    with pytest.raises(UserError, match="not gzip"):
        traces.load(path)


def test_other_encoding_is_refused(tmp_path: Path) -> None:
    """Bytes that are not UTF-8 are named."""
    path = tmp_path / "mine.csv"
    path.write_bytes(LINK.encode() + "a\xe9,0,5,1,,1\n".encode("latin-1"))
    with pytest.raises(UserError, match="not UTF-8"):
        traces.load(path)


def test_columns_of_no_kind_list_the_kinds(tmp_path: Path) -> None:
    """A table of something else is answered with the kinds and their columns."""
    path = tmp_path / "mine.csv"
    path.write_text("when,what\n1,2\n")
    with pytest.raises(UserError, match=r"fit no kind of trace; kinds: link: trace_id"):
        traces.load(path)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    row=st.integers(0, 9),
    column=st.sampled_from(["t_s", "down_mbps", "up_mbps", "rtt_ms", "ok"]),
    value=st.sampled_from(["-1", "nan", "inf", "-inf", "x", "1e400"]),
)
def test_the_row_named_is_the_row_that_is_wrong(tmp_path: Path, row: int, column: str, value: str) -> None:
    """Wherever one impossible value stands, the error names that row, column and value."""
    names = LINK.strip().split(",")
    rows = [["a", str(i), "5", "1", "20", "1"] for i in range(10)]
    rows[row][names.index(column)] = value
    path = tmp_path / "mine.csv"
    path.write_text(LINK + "\n".join(",".join(r) for r in rows) + "\n")
    with pytest.raises(UserError) as caught:
        traces.load(path)
    assert f"row {row + 1} (line {row + 2}): {column} = {value!r}" in str(caught.value)
