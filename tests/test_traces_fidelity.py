"""The shipped files still say what the sources say: the figures of the data survey, within its rounding."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from echo2 import traces
from echo2.traces.engines import engine_rows

CONTINENTS = {"eu": "EU", "us": "NA", "ca": "NA", "ap": "AS", "me": "ME", "sa": "SA", "af": "AF"}


def _aws_pairs() -> pd.DataFrame:
    """AWS to AWS rows of both epochs with a `between` column like AS-EU."""
    frame = pd.concat([traces.load(e.trace_id) for e in traces.entries() if e.kind == "region_pair"])
    frame = frame[frame["src"].str.startswith("aws") & frame["dst"].str.startswith("aws")]
    ends = [sorted(CONTINENTS[r[4:6]] for r in pair) for pair in zip(frame["src"], frame["dst"])]
    return frame.assign(between=["-".join(e) for e in ends])


@pytest.mark.parametrize(
    ("between", "mbps", "within"),
    [
        ("EU-EU", 4668, 0.01),
        ("NA-NA", 4467, 0.01),
        ("EU-NA", 3946, 0.02),
        ("AS-NA", 3386, 0.03),
        ("AS-EU", 2983, 0.10),
        ("AS-SA", 1945, 0.15),
        ("AF-AS", 1690, 0.15),
    ],
)
def test_aws_capacity_by_continent(between: str, mbps: float, within: float) -> None:
    """Median capacity between continents is the survey's (which pools two more epochs, hence the width)."""
    pairs = _aws_pairs()
    median = pairs[pairs["between"] == between]["capacity_mbps"].astype(float).median()
    assert median == pytest.approx(mbps, rel=within)


def test_aws_capacity_of_the_base_epoch() -> None:
    """AWS to AWS in January 2022: p10/50/90 2,017 / 3,618 / 4,577 Mbit/s."""
    pairs = _aws_pairs()
    base = pairs[pairs["epoch_utc"] == "2022-01-24"]["capacity_mbps"].astype(float)
    assert np.quantile(base, [0.1, 0.5, 0.9]) == pytest.approx([2017, 3618, 4577], rel=0.001)


def test_round_trips_and_their_relation_to_capacity() -> None:
    """RTT p10/50/90 is near 31 / 153 / 257 ms and falls with capacity (rank correlation about -0.8)."""
    frame = traces.load("skyplane-2022-01-24")
    rtt, rate = frame["rtt_ms"].astype(float), frame["capacity_mbps"].astype(float)
    assert np.nanquantile(rtt, [0.1, 0.5, 0.9]) == pytest.approx([31, 153, 257], rel=0.06)
    assert -0.9 < rtt.rank().corr(rate.rank()) < -0.7


def test_egress_prices() -> None:
    """AWS to AWS 0.02 USD/GB in the median; AWS, Azure and GCP to the internet 0.09, 0.0875 and 0.12."""
    assert _aws_pairs()["egress_usd_per_gb"].astype(float).median() == pytest.approx(0.02)
    usd = [traces.internet_egress_usd_per_gb(cloud) for cloud in ("aws", "azure", "gcp")]
    assert usd == pytest.approx([0.09, 0.0875, 0.12])
    assert traces.internet_egress_usd_per_gb("aws:sa-east-1") == pytest.approx(0.15)


def test_one_flow_moves_a_constant_per_round_trip() -> None:
    """Rate x RTT of single flows over 20 ms is 2.24/2.55/2.67 MiB (350 points)."""
    frame = traces.load("hivemind-flows")
    single = frame[(frame["streams"] == 1) & (frame["rtt_ms"] > 20)]
    mib = single["throughput_mbps"].astype(float) * single["rtt_ms"].astype(float) * 1e3 / 8 / 2**20
    assert len(single) == 350
    assert np.quantile(mib, [0.1, 0.5, 0.9]) == pytest.approx([2.24, 2.55, 2.67], abs=0.01)


def test_streams_add_up_to_the_network_card() -> None:
    """GCP EU to US over 1/5/10/20/40/80 streams: 210 / 1,060 / 2,110 / 4,270 / 6,170 / 6,220 Mbit/s."""
    frame = traces.load("hivemind-flows")
    rows = frame[(frame["src_host"].str.startswith("gc-t4-2-eu-")) & (frame["dst_site"] == "gcp:us")]
    assert set(rows["src_site"]) == {"gcp:eu"}
    medians = rows.groupby("streams")["throughput_mbps"].median()
    assert medians.to_dict() == pytest.approx({1: 210, 5: 1060, 10: 2110, 20: 4270, 40: 6170, 80: 6220})


def test_sites_agree_with_their_pings() -> None:
    """The sites read from the host labels fit the pings: within a site under 3 ms, US-EU near 103 ms."""
    frame = traces.load("hivemind-flows")
    same = frame[frame["src_site"] == frame["dst_site"]]
    assert same["rtt_ms"].astype(float).max() < 3
    for sites, rtt_ms in ((("gcp:us", "gcp:eu"), 103), (("gcp:asia", "gcp:eu"), 253)):
        rows = frame[[{s, d} == set(sites) for s, d in zip(frame["src_site"], frame["dst_site"])]]
        assert rows["rtt_ms"].astype(float).between(rtt_ms - 2, rtt_ms + 2).all()


@pytest.mark.parametrize(
    ("instance", "gbps", "tbit"),
    [("c5.large", 0.75, 2.6), ("c5.xlarge", 1.25, 4.5), ("c5.2xlarge", 2.5, 7.6), ("c5.4xlarge", 5.0, 10.5)],
)
def test_network_card_buckets(instance: str, gbps: float, tbit: float) -> None:
    """Sustained rates 0.75 to 5 Gbit/s after a bucket of 2.6 to 10.5 Tbit."""
    bucket = traces.nic_bucket(instance)
    assert bucket.sustained_bps / 1e9 == pytest.approx(gbps, rel=0.01)
    assert bucket.bucket_bits / 1e12 == pytest.approx(tbit, rel=0.03)
    assert bucket.burst_bps / 1e9 == pytest.approx(9.69, rel=0.01)


def test_ec2_cards_are_steady_until_the_bucket_is_empty() -> None:
    """Fewer rows, the same step function: 40 runs, 49,708 samples and one second missed, no zero."""
    runs = [traces.link(e.trace_id) for e in traces.entries() if e.trace_id.startswith("ec2-c5")]
    assert len(runs) == 40
    assert sum(run.duration_s for run in runs) == pytest.approx(49_709)
    assert all(run.ok.all() for run in runs)
    assert {round(float(np.median(run.down_bps)) / 1e9) for run in runs} <= {5, 9, 10}


def test_home_line() -> None:
    """Down p1/10/50/90/99 26.6/33.5/48.1/55.6/102.9, up 0.86/1.05/4.95/5.59/6.71 Mbit/s."""
    line = traces.link("home-brisbane-2017")
    at = [0.01, 0.1, 0.5, 0.9, 0.99]
    down, up = (np.quantile(rate[line.ok] / 1e6, at) for rate in (line.down_bps, line.up_bps))
    assert down == pytest.approx([26.6, 33.5, 48.1, 55.6, 102.9], rel=0.02)
    assert up == pytest.approx([0.86, 1.05, 4.95, 5.59, 6.71], rel=0.02)
    assert 45 <= (~line.ok).sum() <= 60


def test_home_line_shape() -> None:
    """Divided by the month's median: CV 0.142, p1 0.63, p10 0.87; half-hour autocorrelation 0.69."""
    shape = traces.shape("home-brisbane-2017-shape")
    down = shape.down[shape.ok]
    assert np.std(down) / np.mean(down) == pytest.approx(0.142, abs=0.003)
    assert np.quantile(down, [0.01, 0.1]) == pytest.approx([0.63, 0.87], abs=0.01)
    assert np.corrcoef(down[1:], down[:-1])[0, 1] == pytest.approx(0.69, abs=0.03)


def test_access_lines_of_today() -> None:
    """US down p25/50/75 64/213/466, up 17/36/88 Mbit/s; Starlink 41/17; Canada down 731."""
    us = traces.access("US")
    assert np.array(us.down_bps) / 1e6 == pytest.approx([64, 213, 466], abs=0.6)
    assert np.array(us.up_bps) / 1e6 == pytest.approx([17, 36, 88], abs=0.6)
    assert traces.access("starlink").down_bps[1] == pytest.approx(41e6, rel=0.01)
    assert traces.access("CA").down_bps[1] == pytest.approx(731e6, rel=0.01)


@pytest.mark.parametrize(
    ("trace_id", "rate", "peak"),
    [
        ("bamboo-p3", 0.61, 32),
        ("bamboo-g4dn", 0.56, 24),
        ("bamboo-a100", 0.10, 64),
        ("bamboo-v100", 0.28, 80),
    ],
)
def test_spot_losses(trace_id: str, rate: float, peak: int) -> None:
    """Losses per machine-hour and the most machines at once of the four Bamboo traces."""
    trace = traces.availability(trace_id)
    assert trace.preemptions_per_node_hour == pytest.approx(rate, abs=0.02)
    assert trace.peak == peak


@pytest.mark.parametrize(("trace_id", "drop"), [("bamboo-a100", 36), ("bamboo-v100", 40)])
def test_worst_single_drop(trace_id: str, drop: int) -> None:
    """A zone loses 36 of 64, or 40 of 80, between two polls: drops stay together."""
    trace = traces.availability(trace_id)
    ends = [end for slot in trace.nodes for _, end in slot if end < trace.duration_s]
    assert max(ends.count(t) for t in set(ends)) == drop


def test_spot_up_and_down_runs() -> None:
    """FrontierCS: up p10/50/90 0.17/0.5/3.7 h, longest outage 97.5 h, availability 0.25 to 0.95."""
    series = [
        traces.availability(e.trace_id) for e in traces.entries() if e.trace_id.startswith("frontiercs")
    ]
    assert len(series) == 8
    up = [(end - start) / 3600 for t in series for start, end in t.nodes[0]]
    gaps = [(b[0] - a[1]) / 3600 for t in series for a, b in zip(t.nodes[0], t.nodes[0][1:])]
    assert np.quantile(up, [0.1, 0.5, 0.9]) == pytest.approx([0.17, 0.5, 3.7], rel=0.05)
    assert max(gaps) == pytest.approx(97.5, rel=0.01)
    shares = sorted(t.mean_alive for t in series)
    assert (shares[0], shares[-1]) == pytest.approx((0.25, 0.95), abs=0.01)


@pytest.mark.parametrize(
    ("gpu", "usd"),
    [
        ("RTX 4090", (0.33, 0.46, 0.69)),
        ("RTX 5090", (0.49, 0.62, 0.70)),
        ("H100", (1.72, 2.40, 4.07)),
        ("H200", (2.52, 3.47, 4.53)),
        ("B200", (3.97, 5.26, 6.32)),
    ],
)
def test_rental_prices_without_spot(gpu: str, usd: tuple[float, float, float]) -> None:
    """Quotes of May 2026 that are not interruptible: p10/50/90 as surveyed."""
    frame = traces.load("prices-2026-05")
    rows = frame[(frame["gpu"] == gpu) & ~frame["tier"].isin(["spot", "marketplace", "prototyping"])]
    assert np.quantile(rows["usd_per_gpu_hour"].astype(float), [0.1, 0.5, 0.9]) == pytest.approx(
        usd, rel=0.03
    )


@pytest.mark.parametrize(
    ("gpu", "usd"), [("RTX 4090", 0.34), ("RTX 5090", 0.38), ("H100", 1.20), ("H200", 1.19), ("B200", 1.71)]
)
def test_spot_prices(gpu: str, usd: float) -> None:
    """Median spot prices are the survey's within 8 % (it still counted runpod and marketplace rows)."""
    assert traces.price(gpu, "spot").usd_per_gpu_hour == pytest.approx(usd, rel=0.08)


@pytest.mark.parametrize(
    ("population", "mean", "quantiles"),
    [
        ("r1-client_66", 8500, (2700, 7100, 16_400, 23_100)),
        ("r1-client_35", 2600, (None, 1600, 5800, 12_500)),
        ("r1-all", 1527, (285, 792, 3408, 12_532)),
        ("azure-conv", 211, (None, 129, None, 601)),
    ],
)
def test_rollout_lengths(population: str, mean: float, quantiles: tuple[float | None, ...]) -> None:
    """Mean and p10/50/90/99 of the output lengths."""
    lengths = traces.lengths(population)
    assert lengths.mean == pytest.approx(mean, rel=0.01)
    for p, tokens in zip((0.1, 0.5, 0.9, 0.99), quantiles):
        if tokens is not None:
            assert float(lengths.quantile(p)) == pytest.approx(tokens, rel=0.02)


@pytest.mark.parametrize(
    ("gpu", "tokens_per_s"),
    [("A100", 774), ("H100", 1655), ("H200", 2799), ("B200", 5038), ("L40S", 299), ("RTX PRO 6000", 852)],
)
def test_engine_estimates(gpu: str, tokens_per_s: float) -> None:
    """Qwen3-8B at 8k context, best batch that fits by the estimator's own memory figure."""
    rows = traces.load("engines-aiconfigurator")
    rows = rows[(rows["model"] == "Qwen3-8B") & (rows["gpu"] == gpu) & (rows["phase"] == "decode")]
    rows = rows[(rows["context_tokens"] == 8192) & (rows["fits"].astype(int) == 1)]
    assert rows["tokens_per_s"].max() == pytest.approx(tokens_per_s, abs=1)


def test_the_4090_as_derived_from_its_kernels() -> None:
    """RTX 4090, Llama-3.1-8B: 363 tok/s at batch 8 x 4k, 183 at 4 x 8k, KV pool 41,408 tokens."""
    profile = traces.decode_model("RTX 4090", "Llama-3.1-8B")
    assert profile.basis == "derived" and profile.model.kv_pool_tokens == 41_408
    assert profile.model.tokens_per_s(8, 4096) == pytest.approx(363, rel=0.01)
    assert profile.model.tokens_per_s(4, 8192) == pytest.approx(183, rel=0.01)


def test_the_5090_is_twice_the_4090() -> None:
    """Scaled rows of the 5090 are the 4090's over 2.02, and say `scaled`."""
    slow, fast = (traces.decode_model(g, "Qwen3-8B") for g in ("RTX 4090", "RTX 5090"))
    assert slow.model.step_s(4, 4096) / fast.model.step_s(4, 4096) == pytest.approx(2288 / 1131, rel=1e-3)
    assert slow.basis == fast.basis == "scaled"


def test_learner_rows_are_the_measured_ones() -> None:
    """Qwen3-4B full RL on 8 H100 26,026 tokens/s; no failed run is shipped."""
    rows = engine_rows()
    rows = rows[rows["phase"] == "train"]
    assert len(rows) == 53 and (rows["tokens_per_s"] > 0).all()
    profile = traces.learner_tokens_per_s("H100", 8, "Qwen3-4B")
    assert (round(profile.tokens_per_s), profile.basis) == (26_026, "measured")
