"""The typed views: what a look-up returns, and what it refuses."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echo2 import traces
from echo2.errors import UserError
from echo2.policy.generation import steady_rate
from echo2.traces.engines import engine_rows, fit_steps
from echo2.traces.gpus import GPUS
from echo2.traces.links import weighted_quantile

MODELS = ("Qwen3-4B", "Qwen3-8B", "Qwen3-14B", "Qwen3-32B", "Qwen3-30B-A3B")


def test_gpu_spellings_mean_the_same_card() -> None:
    """Vendor words, form factors and underscores do not matter; a memory size picks the A100."""
    same = {
        "RTX 4090": ["NVIDIA GeForce RTX 4090", "4090", "rtx4090", "RTX_4090", "RTX 4090 (High freq.)"],
        "H100": ["NVIDIA H100 80GB HBM3", "h100_sxm", "H100 PCIe NVLink", "HGX H100 SXM"],
        "RTX PRO 6000": ["RTX Pro 6000 Blackwell", "rtx_pro_6000_server", "NVIDIA RTX 6000 Pro"],
        "A100": ["A100 (80 GB)", "a100_sxm"],
        "A100 40GB": ["A100-40GB", "NVIDIA A100 40GB"],
    }
    for name, spellings in same.items():
        assert {traces.canonical(s) for s in spellings} == {name}
    assert traces.gpu("A100", 40).vram_gb == 40


def test_canonical_names_are_their_own_spelling() -> None:
    """Every name of the table is understood as itself, in lower case too."""
    for card in GPUS:
        assert traces.canonical(card.name) == card.name == traces.canonical(card.name.lower())


@pytest.mark.parametrize("name", ["", "  ", "RTX 5091", "TPU v5", "RTX 4090 (48 GB mod)"])
def test_unknown_gpus_are_refused(name: str) -> None:
    """A card that is not in the table, or an altered one, is an error that offers others."""
    with pytest.raises(UserError, match=r"GPU .* is not known; (nearest|known)"):
        traces.gpu(name)


def test_model_sizes() -> None:
    """KV bytes per token and weight bytes of the models."""
    assert traces.model_info("Qwen/Qwen3-8B").kv_bytes_per_token == 147_456
    assert traces.model_info("Llama-3.1-8B").kv_bytes_per_token == 131_072
    sparse = traces.model_info("Qwen3-30B-A3B-Instruct-2507")
    assert sparse.is_sparse and sparse.bf16_bytes == pytest.approx(61e9, rel=0.01)
    with pytest.raises(UserError, match="Qwen3-8B"):
        traces.model_info("Qwen3-9B")


@pytest.mark.parametrize("epoch", ["2022-01-24", "2022-11-28"])
def test_region_matrix_is_complete_where_measured(epoch: str) -> None:
    """Every ordered pair has a capacity, the diagonal is filled, arrays cannot be changed."""
    matrix = traces.regions(epoch)
    size = len(matrix.regions)
    for array in (matrix.capacity_bps, matrix.rtt_s, matrix.egress_usd_per_gb):
        assert array.shape == (size, size)
        assert np.isfinite(np.diag(array)).all()
        with pytest.raises(ValueError):
            array[0, 0] = 1.0
    assert np.isfinite(matrix.capacity_bps).all() and (matrix.capacity_bps > 0).all()
    best = matrix.capacity_bps.max(axis=1)
    assert (np.diag(matrix.capacity_bps) >= best - 1).all()


def test_base_epoch_has_all_prices_and_filled_round_trips() -> None:
    """January 2022: egress known for every pair; the three regions without pings take a twin's."""
    matrix = traces.regions()
    assert np.isfinite(matrix.egress_usd_per_gb).all()
    unknown = np.isnan(matrix.rtt_s)
    assert {matrix.regions[i] for i in np.flatnonzero(unknown.sum(axis=1) > 10)} == {
        "aws:eu-west-3",
        "azure:eastus2",
        "azure:westus2",
    }
    filled = matrix.filled()
    assert np.isfinite(filled.rtt_s).all()
    assert (filled.rtt_s[~unknown] == matrix.rtt_s[~unknown]).all()


def test_unknown_regions_and_epochs_offer_the_nearest() -> None:
    """Misspelt regions and epochs are answered with near names."""
    with pytest.raises(UserError, match="aws:us-east-1"):
        traces.regions().index("aws:us-eas-1")
    with pytest.raises(UserError, match="2022-01-24"):
        traces.regions("2022-01-25")
    with pytest.raises(UserError, match="egress price of region"):
        traces.internet_egress_usd_per_gb("mars:north")


def test_price_gives_number_date_and_sources() -> None:
    """A quote is a quantile of dated quotes with their pages, newest table first."""
    quote = traces.price("h100", "on_demand")
    assert quote.date == "2026-05-24" and quote.quotes > 10
    assert all(url.startswith("http") for url in quote.source_urls)
    low, high = (traces.price("H100", "on_demand", quantile=q).usd_per_gpu_hour for q in (0, 1))
    assert low < quote.usd_per_gpu_hour < high
    assert traces.price("H100", "cheapest").usd_per_gpu_hour <= low
    aws = traces.price("A100 40GB", "spot", provider="aws")
    assert (aws.providers, aws.date) == (("AWS",), "2025-03-07")


@pytest.mark.parametrize(
    ("arguments", "pattern"),
    [
        ({"gpu": "RTX 5091"}, "RTX 5090"),
        ({"gpu": "H100", "provider": "lamda", "market": "on_demand"}, "lambda"),
        ({"gpu": "H100", "market": "sopt"}, "spot"),
        ({"gpu": "H100", "quantile": 1.5}, r"0\.\.1"),
        ({"gpu": "H100", "region": "moon"}, "region 'moon'"),
    ],
)
def test_price_refuses_what_it_does_not_know(arguments: dict[str, object], pattern: str) -> None:
    """Unknown GPU, provider, market, quantile or region is an error with the way out."""
    with pytest.raises(UserError, match=pattern):
        traces.price(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("trace_id", ["bamboo-p3", "bamboo-g4dn", "bamboo-a100", "bamboo-v100"])
def test_slots_keep_the_number_of_machines(trace_id: str) -> None:
    """At any time as many slots are up as machines in the table; a slot's intervals do not overlap."""
    trace, frame = traces.availability(trace_id), traces.load(trace_id)
    start, end, alive = (frame[c].to_numpy(float) for c in ("start_s", "end_s", "alive"))
    for at in np.linspace(1, trace.duration_s - 1, 300):
        up = sum(s <= at < e for slot in trace.nodes for s, e in slot)
        assert up == alive[(start <= at) & (at < end)].sum()
    for slot in trace.nodes:
        assert all(a[1] <= b[0] for a, b in pairwise(slot))


def test_decode_models_fit_their_rows() -> None:
    """The lines through the steps miss no fitting row by more than 5 %, and never fall with context."""
    rows = engine_rows()
    rows = rows[rows["phase"] == "decode"]
    for key, part in rows.groupby(["basis", "model", "gpu"]):
        fit = fit_steps(part, float(part["kv_pool_tokens"].min()))
        assert fit.worst < 0.05, key
        assert min(fit.slope_s) >= 0 and min(fit.base_s) > 0, key


@pytest.mark.parametrize("model", MODELS)
def test_profiles_give_rates_in_the_order_of_the_cards(model: str) -> None:
    """Every model runs on A100 to B200, newer is faster, and what does not fit is refused."""
    lengths = traces.lengths("r1-client_35")
    rates = []
    for card in ("A100", "H100", "H200", "B200"):
        profile = traces.decode_model(card, model)
        assert profile.gpus == (2 if model == "Qwen3-32B" else 1)
        rates.append(steady_rate(profile.model, lengths, 300).rollouts_per_s)
    assert rates == sorted(rates)


def test_what_does_not_fit_a_card_lists_the_cards_known() -> None:
    """Qwen3-32B on a 4090 is refused with the GPUs it is known for."""
    with pytest.raises(UserError, match="known GPUs for Qwen3-32B: A100, B200, H100"):
        traces.decode_model("RTX 4090", "Qwen3-32B")


def test_better_basis_wins_and_cap_is_kept() -> None:
    """Derived rows are taken before scaled ones; max_running is passed on."""
    assert traces.decode_model("RTX PRO 6000", "Llama-3.1-8B").basis == "derived"
    assert traces.decode_model("H100", "Qwen3-8B", max_running=7).model.max_running == 7


@pytest.mark.parametrize("card", ["H100", "H200", "B200"])
@pytest.mark.parametrize("model", MODELS)
def test_learners_are_known_for_one_to_eight_cards(card: str, model: str) -> None:
    """1 to 8 cards, full and LoRA: more cards are faster; what is not measured says how it was scaled."""
    for tuning in ("full", "lora"):
        rates = [traces.learner_tokens_per_s(card, n, model, tuning) for n in (1, 2, 4, 8)]
        speeds = [r.tokens_per_s for r in rates]
        assert speeds == sorted(speeds) and speeds[0] > 0
        assert all(
            (" x " in r.source.split(";", 1)[-1]) == (r.basis == "scaled") for r in rates if ";" in r.source
        )
        assert all(r.basis == "scaled" for r in rates if ";" in r.source)


def test_learner_says_whether_it_fits() -> None:
    """16 bytes a parameter: 8B fits two H100, not one; unknown cards and tunings are refused."""
    assert not traces.learner_tokens_per_s("H100", 1, "Qwen3-8B").fits_memory
    assert traces.learner_tokens_per_s("H100", 2, "Qwen3-8B").fits_memory
    with pytest.raises(UserError, match=r"nearest: H.00"):
        traces.learner_tokens_per_s("A100", 8, "Qwen3-8B")
    with pytest.raises(UserError, match="full"):
        traces.learner_tokens_per_s("H100", 8, "Qwen3-8B", "ful")


def test_unknown_instances_and_lines_offer_the_nearest() -> None:
    """Misspelt instances and providers are answered with near names."""
    with pytest.raises(UserError, match=r"c5\.large"):
        traces.nic_bucket("c5.lrge")
    with pytest.raises(UserError, match="Starlink"):
        traces.access("Starlnk")


@settings(max_examples=100, deadline=None)
@given(
    values=st.lists(st.floats(0.1, 1e6), min_size=1, max_size=30),
    p=st.floats(0.01, 0.99),
    data=st.data(),
)
def test_weighted_quantile_holds_its_share_of_time(
    values: list[float], p: float, data: st.DataObject
) -> None:
    """At least a share p of the time is at or below the quantile, and less than p strictly below it."""
    weights = np.array(
        data.draw(st.lists(st.integers(1, 50), min_size=len(values), max_size=len(values))), float
    )
    at = weighted_quantile(np.array(values), weights, p)
    below, upto = (weights[op(np.array(values), at)].sum() for op in (np.less, np.less_equal))
    assert at in values
    assert below <= p * weights.sum() * (1 + 1e-9) and upto >= p * weights.sum() * (1 - 1e-9)
