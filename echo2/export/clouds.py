"""What SkyPilot calls the clouds and GPUs of our catalogue (SkyPilot 0.14)."""

from __future__ import annotations

from echo2.errors import UserError
from echo2.traces import canonical, is_known

# constants.ALL_CLOUDS of SkyPilot.
SKY_CLOUDS = (
    "aws", "azure", "gcp", "ibm", "lambda", "scp", "oci", "kubernetes", "runpod", "vast", "vsphere", "cudo",
    "fluidstack", "paperspace", "primeintellect", "do", "nebius", "ssh", "slurm", "hyperbolic", "seeweb",
    "shadeform", "yotta", "mithril", "verda",
)  # fmt: skip
ALIASES = {
    "vast-ai": "vast",
    "runpod.io": "runpod",
    "datacrunch": "verda",
    "digitalocean": "do",
    "oracle cloud": "oci",
    "cudo compute": "cudo",
}
# Where SkyPilot rents spot machines; elsewhere a spot price can't be had through it.
SPOT_CLOUDS = frozenset({"aws", "azure", "gcp", "ibm", "oci", "runpod", "vast", "nebius", "mithril", "verda"})
# Whose regions our matrix knows: of others `region` says only near what they are.
REGION_CLOUDS = frozenset({"aws", "azure", "gcp"})
NO_PORTS = frozenset({"ibm", "mithril", "verda", "hyperbolic", "slurm", "vsphere"})
GPUS = {
    "A100": "A100-80GB",
    "A100 40GB": "A100",
    "V100 32GB": "V100-32GB",
    "RTX 6000 Ada": "RTX6000-Ada",
    "RTX 4000 Ada": "RTX4000-Ada",
}
NO_GPU = "CPU"


def sky_cloud(provider: str) -> str:
    """SkyPilot's name of a provider; empty for one that it does not know."""
    name = provider.strip().lower()
    name = ALIASES.get(name, name)
    return name if name in SKY_CLOUDS else ""


def sky_infra(provider: str, region: str) -> str:
    """`cloud/region`, or the cloud alone where the region is only near it; empty for an unknown provider."""
    cloud, place = sky_cloud(provider), region.partition(":")[2]
    return f"{cloud}/{place}" if cloud in REGION_CLOUDS and place else cloud


def sky_gpu(where: str, gpu: str) -> str:
    """SkyPilot's name of a GPU; empty for no GPU at all. One that the catalogue does not have: UserError."""
    if gpu.upper() == NO_GPU:
        return ""
    if not is_known(gpu):
        raise UserError(
            f"{where}.gpu = {gpu!r}: is no GPU of the catalogue, so SkyPilot's name of it is not known; take "
            f"one of `echo2 traces`, or {NO_GPU!r} for none"
        )
    name = canonical(gpu)
    return GPUS.get(name, name.replace(" ", ""))
