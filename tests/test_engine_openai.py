"""The openai engine: the engine contract on a real vLLM server, and what it refuses of a server that errs."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest

pytest.importorskip("transformers")

import test_engine_protocol as protocol
import torch
from engine_kit import collect, reference_logprobs, request, saved, tiny_model, worst_error
from test_engine_protocol import (
    Bench,
    test_a_bad_update_is_refused_and_changes_nothing,
    test_a_cancelled_group_ends_and_others_go_on,
    test_a_new_embedding_reaches_the_tied_head,
    test_a_stop_token_ends_a_rollout,
    test_greedy_is_top_k_one,
    test_rollouts_stream_as_each_ends,
    test_seeds_repeat_whatever_runs_beside,
    test_wait_lets_running_rollouts_end_on_the_old_weights,
    test_weights_may_come_as_a_file,
    test_what_does_not_fit_is_refused,
)

from echo2.errors import UserError
from echo2.runtime.data.rollout import Segment
from echo2.runtime.rollout.engine import EngineError, SwapMode
from echo2.runtime.rollout.openai_endpoint import TOKENS, Deadlines, Routes
from echo2.runtime.rollout.openai_engine import EndpointSettings, OpenaiEngine
from echo2.runtime.rollout.request import GeneratedRollout, GroupRequest
from echo2.runtime.worker.engines import EngineOrder, make_engine

START_S = 120.0
TOLERANCE, LONG, TRIES = 1e-4, 900, 6
# what runs on this module's own engine
SHARED = (
    test_a_bad_update_is_refused_and_changes_nothing,
    test_a_cancelled_group_ends_and_others_go_on,
    test_a_new_embedding_reaches_the_tied_head,
    test_a_stop_token_ends_a_rollout,
    test_greedy_is_top_k_one,
    test_rollouts_stream_as_each_ends,
    test_seeds_repeat_whatever_runs_beside,
    test_wait_lets_running_rollouts_end_on_the_old_weights,
    test_weights_may_come_as_a_file,
    test_what_does_not_fit_is_refused,
)
QUICK = Deadlines(connect_s=2.0, call_s=2.0, swap_s=2.0, rollout_s=2.0)
SERVER_ENVIRONMENT = {
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "HF_HUB_OFFLINE": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "TORCHDYNAMO_DISABLE": "1",
}
SERVER_OPTIONS = {
    "--host": "127.0.0.1",
    "--dtype": "float32",
    "--generation-config": "vllm",
    "--kv-cache-memory-bytes": "268435456",
    "--max-num-seqs": "64",
    "--logprobs-mode": "processed_logprobs",
    "--weight-transfer-config": '{"backend":"echo2"}',
    "--worker-extension-cls": "echo2.runtime.rollout.vllm_extension.WorkerExtension",
}
SERVER_FLAGS = ("--skip-tokenizer-init", "--enforce-eager", "--enable-scale-out")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def vllm_server(model: Path, log: Path) -> Iterator[str]:
    """A real vLLM server on the CPU; its URL."""
    if given := os.environ.get("ECHO2_TEST_ENDPOINT"):  # one that runs already: starting takes half a minute
        yield given
        return
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    options = [word for pair in SERVER_OPTIONS.items() for word in pair]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    command += ["--port", str(port), *options, *SERVER_FLAGS]
    environment = {**os.environ, **SERVER_ENVIRONMENT, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with log.open("wb") as output:
        server = subprocess.Popen(
            command, env=environment, stdout=output, stderr=output, start_new_session=True
        )
    try:
        deadline = time.monotonic() + START_S
        while not healthy(url):
            assert server.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(0.5)
        yield url
    finally:
        server.terminate()
        try:
            server.wait(timeout=20)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)  # its children too: the session is its own
            server.wait()


def healthy(url: str) -> bool:
    try:
        with urlopen(f"{url}/health", timeout=2) as answer:
            return answer.status == 200
    except (URLError, OSError):
        return False


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """The engine on a server that was started with other weights, which its start must replace."""
    if find_spec("vllm") is None:
        pytest.skip("vLLM not installed")
    place = tmp_path_factory.mktemp("openai")
    others = saved(tiny_model(99), place / "others")
    model = tiny_model(0)
    path = saved(model, place / "model")
    with vllm_server(others, place / "server.log") as url:
        made = Bench(OpenaiEngine(EndpointSettings(url, place / "weights"), path, first_version=3), model)
        yield made
        made.loop.run(made.engine.stop())


@pytest.fixture(params=["tokens", "completions"])
def route(request: pytest.FixtureRequest, bench: Bench) -> Iterator[None]:
    """Either way to generate: vLLM's tokens route, and the streamed completions of any endpoint."""
    engine: Any = bench.engine
    assert engine._exact, "the server's tokens route was not found"
    engine._exact = request.param == "tokens"
    yield
    engine._exact = True


@pytest.mark.usefixtures("route")
@pytest.mark.parametrize("sampling", protocol.SAMPLINGS, ids=["T1", "T0.7", "topk-topp"])
def test_logprobs_are_those_of_the_sampling_distribution(bench: Bench, sampling: dict[str, Any]) -> None:
    """On both routes, before and after a swap, as on every engine; whatever the server was started with."""
    protocol.test_behaviour_logprobs_are_those_of_the_sampling_distribution(bench, sampling)


Flight = tuple[Any, int, GroupRequest, list[GeneratedRollout]]


def in_flight(bench: Bench, mode: str, cut: Callable[[GeneratedRollout], bool]) -> Flight:
    """Old model, its version, a long group with a swap in its middle. Tried again where the swap came late:
    on a busy machine the server may answer it only after the group has ended."""
    for number in range(TRIES):
        old, version, new = bench.model, bench.engine.version, protocol.state(tiny_model(20 + number))
        wanted = bench.request(rollouts=2, max_tokens=LONG)

        async def run(
            wanted: GroupRequest = wanted, new: Any = new, wait_s: float = 0.15 / (number + 1)
        ) -> list[GeneratedRollout]:
            running = asyncio.create_task(collect(bench.engine, wanted))
            await asyncio.sleep(wait_s)
            await bench.engine.update_weights(bench.engine.version + 1, new, mode)  # type: ignore[arg-type]
            return await running

        rollouts = bench.loop.run(run())
        bench.model = tiny_model(20 + number)
        if all(cut(rollout) for rollout in rollouts):
            return old, version, wanted, rollouts
    pytest.skip(f"machine too busy: no swap came before its group had ended, in {TRIES} tries")


@pytest.mark.usefixtures("route")
def test_a_rollout_across_a_swap_carries_both_versions(bench: Bench) -> None:
    """Mode keep, on both routes: exact up to the boundary, and of neither version after it."""
    # A boundary at 1 may stand for a swap before the first token, which counts as the older version's.
    old, version, wanted, rollouts = in_flight(
        bench, "keep", lambda r: len(r.segments) == 2 and r.segments[1].start > 1
    )
    for rollout in rollouts:
        (_, first), (at, second) = [(s.start, s.version) for s in rollout.segments]
        assert (first, second) == (version, version + 1) and 0 < at < LONG == len(rollout.token_ids)
        recorded, by_old = torch.tensor(rollout.logprobs), reference_logprobs(old, wanted, rollout)
        assert float((recorded - by_old)[:at].abs().max()) < TOLERANCE
        assert float((recorded - by_old)[at:].abs().mean()) > 0.05
        by_new = reference_logprobs(bench.model, wanted, rollout)
        assert float((recorded - by_new)[at : at + 20].abs().mean()) > 0.05


@pytest.mark.usefixtures("route")
def test_abort_gives_what_there_is(bench: Bench) -> None:
    """Mode abort, on both routes: shorter rollouts of the old version, exact, with finish reason abort."""
    old, version, wanted, rollouts = in_flight(bench, "abort", lambda r: r.finish_reason == "abort")
    for rollout in rollouts:
        assert 0 < len(rollout.token_ids) < LONG and rollout.segments == (Segment(0, version),)
    assert worst_error(old, wanted, rollouts) < TOLERANCE


# last of those on the shared engine
test_stopping_ends_everything = protocol.test_stopping_ends_everything


# ---- an endpoint that errs: a small server of our own -----------------------------------------------


class Fake:
    """An endpoint that answers as vLLM does, except for `fault`. Logits of its model: minus the token id."""

    def __init__(self, fault: str = "") -> None:
        self.fault, self.version = fault, "default"
        self.posts: list[str] = []
        self.paused = threading.Event()
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_args: object) -> None:
                pass

            def do_GET(self) -> None:
                if self.path == "/v1/models":
                    self.say(200, {"data": [{"id": "m", "max_model_len": 1024}]})
                else:
                    self.say(200, {"weight_version": fake.version})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
                fake.posts.append(self.path)
                if self.path.startswith("/pause"):
                    fake.paused.set()
                if fake.fault == "key" and self.headers.get("Authorization") != "Bearer secret":
                    return self.say(401, {"error": "Unauthorized"})
                if self.path == "/v1/completions":
                    return self.stream(body)
                if self.path == TOKENS and fake.fault == "tokens route aborts":
                    nothing: dict[str, Any] = {"token_ids": [], "logprobs": None, "weight_versions": []}
                    return self.say(200, {"choices": [{**nothing, "finish_reason": "abort"}]})
                if fake.fault == "hangs" and self.path.startswith("/update"):
                    time.sleep(4)
                if fake.fault == "fails" and self.path.startswith("/update"):
                    return self.say(500, {"error": "out of memory"})
                known = ("/pause", "/start", "/update", "/finish", "/resume", "/swap")
                if fake.fault == "routes" or not self.path.startswith(known):
                    return self.say(404, {"detail": "Not Found"})
                if "weight_version" in body:
                    fake.version = body["weight_version"]
                return self.say(200, {})

            def stream(self, body: dict[str, Any]) -> None:
                if fake.fault == "empty" or (fake.fault == "aborts" and not fake.paused.is_set()):
                    if fake.fault == "aborts":
                        fake.paused.wait(10)
                    self.send_response(200)
                    self.end_headers()
                    self.wfile.write(b"data: [DONE]\n\n")
                    return
                t = 1.0 if fake.fault == "raw" else body["temperature"]
                total = sum(2.718281828 ** (-i / t) for i in range(97))
                shown = {f"token_id:{i}": -i / t - float(torch.tensor(total).log()) for i in range(5)}
                if body.get("top_k") == 1 and fake.fault not in ("raw", "top-k"):
                    shown = {"token_id:0": 0.0}
                if fake.fault == "text":
                    shown = {"a": -0.1, "b": -2.0}
                chosen = next(iter(shown))
                found = {"tokens": [chosen], "token_logprobs": [shown[chosen]], "top_logprobs": [shown]}
                choice = {
                    "index": 0,
                    "token_ids": None if fake.fault == "no ids" else [0],
                    "logprobs": None if fake.fault == "no logprobs" else found,
                    "finish_reason": "length",
                }
                if fake.fault == "no ids":
                    found["tokens"] = ["a"]
                if fake.fault == "never ends":
                    choice["finish_reason"] = None
                self.send_response(200)
                self.end_headers()
                piece = f"data: {json.dumps({'choices': [choice]})}\n\n".encode()
                for _ in range(500 if fake.fault == "never ends" else 1):
                    self.wfile.write(piece)
                self.wfile.write(b"data: [DONE]\n\n")

            def say(self, status: int, body: object) -> None:
                self.send_response(status)
                self.end_headers()
                self.wfile.write(json.dumps(body).encode())

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def faked(tmp_path: Path, fault: str = "", **settings: Any) -> Iterator[tuple[Fake, OpenaiEngine]]:
    fake = Fake(fault)
    try:
        endpoint = EndpointSettings(fake.url, tmp_path / "shared", deadlines=QUICK, **settings)
        yield fake, OpenaiEngine(endpoint, saved(tiny_model(0), tmp_path / "model"), first_version=4)
    finally:
        fake.close()


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("raw", r"grows 1\.00 times instead of 2.*--logprobs-mode processed_logprobs"),
        ("top-k", r"under top-k 1 .*--logprobs-mode processed_logprobs"),
        ("no logprobs", r"log-probs"),
        ("no ids", r"return_token_ids"),
        ("text", r"token_ids"),
        ("key", r"answers 401.*ECHO2_ENDPOINT_KEY"),
        ("routes", r"/pause.* answers 404.*VLLM_SERVER_DEV_MODE=1"),
        ("fails", r"/update_weights answers 500 .*out of memory"),
        ("hangs", r"/update_weights gave no answer for 2 s"),
    ],
)
def test_an_endpoint_that_will_not_do_is_refused_at_the_start(fault: str, says: str, tmp_path: Path) -> None:
    """What is wrong with it comes as one error with its URL and the fix, within the deadlines."""
    with faked(tmp_path, fault) as (fake, engine), pytest.raises(UserError, match=says) as refusal:
        asyncio.run(asyncio.wait_for(engine.start(), 20))
    assert fake.url in str(refusal.value)


def test_a_rollout_aborted_before_its_first_token_begins_anew(tmp_path: Path) -> None:
    """vLLM ends such a stream without a word: the rollout then comes from the new weights, whole."""

    async def run(fake: Fake, engine: OpenaiEngine) -> list[GeneratedRollout]:
        await engine.start()
        fake.fault = "aborts"
        fake.paused.clear()
        running = asyncio.create_task(collect(engine, request(1, max_tokens=1)))
        while "/v1/completions" not in fake.posts[-1]:
            await asyncio.sleep(0.01)
        await engine.update_weights(5, protocol.state(tiny_model(1)), SwapMode.ABORT)
        try:
            return await running
        finally:
            await engine.stop()

    with faked(tmp_path) as (fake, engine):
        rollouts = asyncio.run(asyncio.wait_for(run(fake, engine), 20))
    assert {rollout.segments[0].version for rollout in rollouts} == {5}
    assert all(len(rollout.token_ids) == 1 for rollout in rollouts)


@pytest.mark.parametrize("route", ["tokens route aborts", ""])
def test_an_endpoint_that_ends_rollouts_without_a_token_is_an_error(route: str, tmp_path: Path) -> None:
    """Without a swap there is nothing to begin anew for: the engine fails instead of asking for ever."""

    async def run(fake: Fake, engine: OpenaiEngine) -> None:
        await engine.start()
        fake.fault = fake.fault or "empty"
        try:
            await collect(engine, request(1, max_tokens=1))
        finally:
            await engine.stop()

    with (
        faked(tmp_path, route) as (fake, engine),
        pytest.raises(EngineError, match="without a token and without a swap"),
    ):
        asyncio.run(asyncio.wait_for(run(fake, engine), 20))


def test_an_endpoint_that_never_ends_a_rollout_is_an_error(tmp_path: Path) -> None:
    """More tokens than were asked for end the engine, not this machine's memory."""

    async def run(fake: Fake, engine: OpenaiEngine) -> None:
        await engine.start()
        fake.fault = "never ends"
        try:
            await collect(engine, request(1, max_tokens=3))
        finally:
            await engine.stop()

    with (
        faked(tmp_path) as (fake, engine),
        pytest.raises(EngineError, match="4 tokens where 3 were asked for"),
    ):
        asyncio.run(asyncio.wait_for(run(fake, engine), 20))


def test_an_endpoint_that_is_not_there_is_named(tmp_path: Path) -> None:
    """Nothing listens: the error has the URL and the option."""
    with faked(tmp_path) as (fake, engine):
        fake.close()
        with pytest.raises(UserError, match=rf"{fake.url}/v1/models cannot be reached.*--endpoint"):
            asyncio.run(asyncio.wait_for(engine.start(), 20))


def test_a_good_endpoint_gets_the_weights_of_the_model_directory_first(tmp_path: Path) -> None:
    """The start replaces whatever the endpoint held, and its label; its key is sent."""

    async def run(engine: OpenaiEngine) -> list[GeneratedRollout]:
        await engine.start()
        rollouts = await collect(engine, request(1, rollouts=2, max_tokens=1))
        await engine.stop()
        return rollouts

    with faked(tmp_path, "key", key="secret") as (fake, engine):
        rollouts = asyncio.run(run(engine))
        assert fake.version == "4" and fake.posts[0] == "/pause?mode=abort&clear_cache=true"
        assert [r.segments for r in rollouts] == [(Segment(0, 4),)] * 2
        assert (tmp_path / "shared/version-4/model.safetensors").is_file()


def test_a_restarted_endpoint_is_noticed_before_a_rollout_is_handed_over(tmp_path: Path) -> None:
    """It holds weights of another label than ours: the engine is dead and says why."""

    async def run(fake: Fake, engine: OpenaiEngine) -> None:
        await engine.start()
        fake.version = "default"
        with pytest.raises(EngineError, match=r"version 'default' instead of 4; it was restarted"):
            await collect(engine, request(1, max_tokens=1))

    with faked(tmp_path) as (fake, engine):
        asyncio.run(asyncio.wait_for(run(fake, engine), 20))


def test_a_swap_that_fails_half_way_ends_the_engine(tmp_path: Path) -> None:
    """The endpoint then answers for no version: running and later groups raise, nothing is acknowledged."""

    async def run(fake: Fake, engine: OpenaiEngine) -> None:
        await engine.start()
        fake.fault = "fails"
        with pytest.raises(EngineError, match="version 5 failed half-way"):
            await engine.update_weights(5, protocol.state(tiny_model(1)))
        assert engine.version == 4
        with pytest.raises(EngineError, match="version 5 failed half-way"):
            await collect(engine, request(1, max_tokens=1))

    with faked(tmp_path) as (fake, engine):
        asyncio.run(asyncio.wait_for(run(fake, engine), 20))


def test_routes_can_be_those_of_another_server(tmp_path: Path) -> None:
    """A file of routes replaces vLLM's, with the directory as the endpoint sees it; a bad one is refused."""
    file = tmp_path / "routes.json"
    swap = ["/swap", {"directory": "{path}", "weight_version": "{version}"}]
    file.write_text(json.dumps({"update": [swap], "pause": ["/pause?how={mode}", None]}))
    with faked(tmp_path, routes=file, seen_as="/mnt/weights/") as (fake, engine):
        asyncio.run(engine.start())
        assert fake.posts[:3] == ["/pause?how=abort", "/swap", "/resume"] and fake.version == "4"
    values = {"path": "/mnt/weights/version-4", "version": "4"}
    assert Routes.read(file).update[0].filled(values)[1]["directory"] == "/mnt/weights/version-4"
    file.write_text('{"updates": []}')
    with pytest.raises(UserError, match="'updates' is not one of"):
        Routes.read(file)


def test_the_worker_asks_for_what_is_missing(tmp_path: Path) -> None:
    """The engine by name needs its endpoint."""
    with pytest.raises(UserError, match="--endpoint and --endpoint-weights"):
        make_engine("openai", EngineOrder(saved(tiny_model(0), tmp_path), 0, 4))
