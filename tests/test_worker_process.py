"""`echo2 worker` as a real process: it ends when and how it is told to, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("fastapi")

from worker_kit import TOKEN, Host, generate, run, start
from worker_process_kit import worker

from echo2.runtime.transport import messages as m


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_it_in_order(number: signal.Signals, code: int, tmp_path: Path) -> None:
    """Finished rollouts are sent, it says good-bye, and is gone within 10 s with 128 + the signal."""

    async def scenario() -> None:
        host = Host(tmp_path)
        host.publish(0)
        bench = await host.up()
        common = ("--join", host.url, "--engine", "simulated", "--simulated", "100:10")
        async with worker(*common) as process:
            await bench.joined()
            bench.order(start(0))
            await bench.report(m.Up)
            bench.order(generate(1), generate(2, rollouts=64))
            await bench.group(1, 4)
            os.kill(process.inner.pid, number)
            found, err = await process.ended(10)
            assert (found, "Traceback" in err) == (code, False)
            assert bench.left == [f"signal {number.name}"]
        await host.down()

    run(scenario())


def test_an_exit_order_and_a_vanished_parent_end_it(tmp_path: Path) -> None:
    """Exit: code 0. A worker whose parent is gone ends too, though the learner would still answer."""

    async def scenario() -> None:
        host = Host(tmp_path)
        host.publish(0)
        bench = await host.up()
        sleeper = await asyncio.create_subprocess_exec("sleep", "600")
        async with worker("--join", host.url, "--engine", "simulated") as process:
            await bench.joined()
            bench.order(m.Exit(reason="the run is over"))
            assert (await process.ended(10))[0] == 0
        bench.forget_leases()
        async with worker(
            "--join", host.url, "--engine", "simulated", "--parent-pid", sleeper.pid
        ) as process:
            await bench.joined()
            sleeper.kill()
            await sleeper.wait()
            code, err = await process.ended(10)
            assert code == 143 and "parent process is gone" in err
        await host.down()

    run(scenario())


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    """Wrong token, unknown engine, bad URL, no token: exit code 2; nobody there: exit code 3."""

    async def scenario() -> None:
        host = Host(tmp_path)
        await host.up()
        simulated = ("--engine", "simulated")
        cases = [
            (("--join", host.url, *simulated), "a-wrong-token-here", 2, "wrong token"),
            (("--join", host.url, "--engine", "vlm"), TOKEN, 2, "nearest: vllm"),
            (("--join", "learner:1", *simulated), TOKEN, 2, "no learner's URL"),
            (("--join", host.url, *simulated), "", 2, "ECHO2_TOKEN"),
            (("--join", host.url, *simulated, "--pool", "a b"), TOKEN, 2, "--pool"),
            (("--join", "http://127.0.0.1:9", *simulated, "--give-up-after", 0.2), TOKEN, 3, "127.0.0.1:9"),
        ]

        async def check(arguments: tuple[object, ...], token: str, code: int, says: str) -> None:
            async with worker(*arguments, token=token) as process:
                found, err = await process.ended(20)
                assert found == code and says in err and "Traceback" not in err, err
                assert err.splitlines()[-1].startswith("error: ") and err.count("error: ") == 1

        for case in cases:
            await check(*case)
        await host.down()

    run(scenario())
