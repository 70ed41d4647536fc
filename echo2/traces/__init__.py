"""Real measured data: the index of shipped traces, checked loading, and typed views of it.

Importing this loads neither pandas nor numpy; each function does when called. The schema and the
provenance of every trace are in docs/traces.md.
"""

from echo2.traces.catalogue import TraceEntry, data_folder, entries, entry, load
from echo2.traces.engines import EngineProfile, decode_model
from echo2.traces.gpus import GPUS, Gpu, canonical, gpu, is_known
from echo2.traces.learners import LearnerProfile, learner_tokens_per_s
from echo2.traces.lengths import lengths
from echo2.traces.links import (
    AccessLevel,
    LinkSeries,
    LinkShape,
    NicBucket,
    access,
    link,
    nic_bucket,
    shape,
)
from echo2.traces.models import MODELS, ModelInfo, model_info
from echo2.traces.prices import CHEAPEST, PriceQuote, offers, price
from echo2.traces.regions import RegionMatrix, internet_egress_usd_per_gb, regions
from echo2.traces.schema import KINDS
from echo2.traces.spot import AvailabilityTrace, availability

__all__ = [
    "CHEAPEST",
    "GPUS",
    "KINDS",
    "MODELS",
    "AccessLevel",
    "AvailabilityTrace",
    "EngineProfile",
    "Gpu",
    "LearnerProfile",
    "LinkSeries",
    "LinkShape",
    "ModelInfo",
    "NicBucket",
    "PriceQuote",
    "RegionMatrix",
    "TraceEntry",
    "access",
    "availability",
    "canonical",
    "data_folder",
    "decode_model",
    "entries",
    "entry",
    "gpu",
    "internet_egress_usd_per_gb",
    "is_known",
    "learner_tokens_per_s",
    "lengths",
    "link",
    "load",
    "model_info",
    "nic_bucket",
    "offers",
    "price",
    "regions",
    "shape",
]
