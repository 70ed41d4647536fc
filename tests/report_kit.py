"""A small run with hostile names and its page taken apart, for the tests of the report."""

from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from echo2.policy.facts import WorkerOffer
from echo2.policy.generation import DecodeModel, TokenLengths, steady_rate
from echo2.policy.links import LinkTable
from echo2.policy.plan_types import PlanProblem
from echo2.policy.planner import plan_run, settings_for
from echo2.report.payload import unpack
from echo2.sim.inputs import Availability, LearnerModel, SimWorker, WorldInputs
from echo2.sim.run import SimResult, simulate

HOSTILE = "<script>alert('pool & co')</script>"
OPTIONAL = ("plan.json", "log.jsonl", "config.toml", "baselines.json", "trace.json")


def small_run(directory: Path, steps: int = 30, rollouts: int = 64) -> SimResult:
    """A planned and simulated run of ten workers, four of them preempted, as the CLI writes it.

    What the world says of a preemption is replaced by a hostile text in the log.
    """
    lengths = TokenLengths.constant(1000.0)
    decode = DecodeModel((1.0, 16.0), (0.02, 0.03), (0.0, 0.0), max_running=16)
    rate = steady_rate(decode, lengths, 0.0)
    offers = tuple(
        WorkerOffer(
            f"w{i}", HOSTILE if i % 2 else "plain", "GPU", "here", 1.0, rate.rollouts_per_s, rate.slots,
            rate.mean_s, rate.tail_s, 1e9, 2e9, startup_s=10.0,
        )
        for i in range(10)
    )  # fmt: skip
    links = LinkTable(("here",), ((1e12,),), ((0.05,),), ((0.01,),), "here", 4e9, 4e9, 64)
    problem = PlanProblem(
        4, 0, rollouts, 4, steps, 20.0, 0.05, 10.0, 2e9, 2e9, offers, {o.worker_id: decode for o in offers},
        lengths, 0.0, links, best_effort=True,
    )  # fmt: skip
    plan = plan_run(problem)
    cut = Availability(((0.0, 250.0), (330.0, 1e6)), 1e6)
    workers = tuple(
        SimWorker(offer, decode, availability=cut if offer.worker_id in plan.chosen[:4] else None)
        for offer in offers
    )
    world = WorldInputs(settings_for(problem, plan), workers, LearnerModel(20.0, 0.0, 0.05), lengths, 0.0)
    result = simulate(world, 3, keep_log=True)
    result.write(directory)
    log = directory / "log.jsonl"
    log.write_text(log.read_text(encoding="utf-8").replace("preempted", HOSTILE), encoding="utf-8")
    price = {
        "what": f"pool {HOSTILE}",
        "usd_per_h": 1.0,
        "unit": "GPU",
        "date": "2026-05-24",
        "source": "a test",
    }
    about = {"name": "small", **plan.to_json(), "prices": [price], "notes": ["links: hand-made"]}
    (directory / "plan.json").write_text(json.dumps(about), encoding="utf-8")
    (directory / "config.toml").write_text('name = "small"\nseed = 3\n', encoding="utf-8")
    rows = [{"system": "colocated", **result.summary(), "note": "S = 0"}]
    (directory / "baselines.json").write_text(json.dumps(rows), encoding="utf-8")
    return result


class Outline(HTMLParser):
    """Checks that every element is closed in order; collects references, ids and visible text."""

    VOID = frozenset({"meta", "img", "source", "input", "br", "link"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.refs: list[str] = []
        self.ids: list[str] = []
        self.tags: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.refs += [
            value or "" for name, value in attrs if name in ("src", "href", "srcset", "action", "data")
        ]
        self.ids += [value or "" for name, value in attrs if name == "id"]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag, f"</{tag}> closes something else at {self.getpos()}"

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("script", "style"):
            self.text += data


def copy_of(run_dir: Path, to: Path, without: tuple[str, ...] = ()) -> Path:
    """A copy of a run directory that lacks some files."""
    shutil.copytree(run_dir, to, ignore=shutil.ignore_patterns("figures", "report.html", *without))
    return to


def embedded(page: str, name: str) -> dict[str, Any]:
    """Data that a page holds."""
    found = re.search(rf'id="{name}">([A-Za-z0-9+/=]*)</script>', page)
    assert found is not None
    return unpack(found.group(1))
