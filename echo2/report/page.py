"""The page: one HTML document with its style, script, data and pictures inside it.

Text of a run gets into the document through `markup.esc` or as packed data that the script inserts as text;
a content security policy keeps the page from loading anything and from running any script but its own.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from importlib.resources import files

from echo2.report.figures import FIGURES
from echo2.report.markup import Html, esc, join, tag
from echo2.report.payload import decision_data, pack, run_data
from echo2.report.record import RunRecord
from echo2.report.sections import SECTIONS

SCRIPTS = ("data", "scope", "series", "course", "lanes", "versions", "list", "decisions", "tables", "main")
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{}'"
TITLES = {
    "headline": "Headline",
    "answers": "Planner's answers",
    "baselines": "Baselines",
    "timeline": "Timeline",
    "bubble": "Bubble",
    "cost": "Step cost",
    "staleness": "Staleness",
    "dissemination": "Dissemination",
    "workers": "Workers",
    "decisions": "Decisions",
    "provenance": "Provenance",
}


def render(record: RunRecord, pngs: Mapping[str, tuple[bytes, bytes]]) -> str:
    """The whole document. `pngs`: name of a figure to its (light, dark) PNG."""
    captions = {spec.name: spec.caption for spec in FIGURES}
    pictures = {name: picture(*pair, f"{captions[name]} ({record.world})") for name, pair in pngs.items()}
    parts = [make(record, pictures) for make in SECTIONS]
    here = [key for key in TITLES if any(f'<section id="{key}">' in part for part in parts)]
    links = join(Html(f'<a href="#{key}">{esc(TITLES[key])}</a>') for key in here)
    script = _script()
    only = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY.format(only)}">'
        f"<title>{esc(record.name)}: echo2 run report</title><style>{_asset('page.css')}</style></head>"
        f"<body><header><h1>{esc(record.name)} {tag(record.world)}</h1><p>{esc(subtitle(record))}</p>"
        f"<nav>{links}</nav></header><main>{join(parts)}</main>"
        f"{_data(record)}<script>{script}</script></body></html>\n"
    )


def subtitle(record: RunRecord) -> str:
    """What was run, in a line."""
    summary, settings = record.summary, record.log.settings if record.log is not None else {}
    parts = [f"{summary['steps']:,} steps"]
    if settings:
        parts.append(
            f"{settings['rollouts_per_step']:,} rollouts a step in groups of {settings['group_size']}, "
            f"S = {settings['staleness_bound']}, kappa = {settings['publish_period']}, {settings['mode']}"
        )
    parts.append(f"{summary['wall_s'] / 3600:.1f} h, {summary['cost_usd']:,.0f} USD in all")
    return "; ".join(parts)


def picture(light: bytes, dark: bytes, caption: str) -> Html:
    """A figure that follows the reader's colour scheme."""
    return Html(
        f'<figure><div><picture><source media="(prefers-color-scheme: dark)" srcset="{_uri(dark)}">'
        f'<img src="{_uri(light)}" alt="{esc(caption)}"></picture></div>'
        f"<figcaption>{esc(caption)}</figcaption></figure>"
    )


def _data(record: RunRecord) -> Html:
    """The run's course and its decisions, packed; base64 holds no character that means anything in HTML."""
    if record.log is None:
        return Html("")
    blocks = {
        "run-data": run_data(record.world, record.S, record.log),
        "decision-data": decision_data(record.log.decisions),
    }
    return join(
        Html(f'<script type="text/plain" id="{name}">{pack(data)}</script>') for name, data in blocks.items()
    )


def _script() -> str:
    """All scripts as one, in a scope of its own."""
    return '"use strict";\n(function () {\n' + "".join(_asset(f"{name}.js") for name in SCRIPTS) + "})();"


def _uri(png: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")


def _asset(name: str) -> str:
    return files("echo2.report").joinpath("assets", name).read_text(encoding="utf-8")
