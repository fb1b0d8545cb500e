"""The page: what is where, and the one handler that refreshes it from the latest snapshot.

Knows Gradio. A visitor can change nothing: there is no input, and `mount` lets through only what the page needs.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import gradio as gr
from fastapi import FastAPI

from shared import page
from shared.monitor import view
from shared.monitor.poller import PERIOD_S, Snapshot

PATH = "/monitor"

SnapshotSource = Callable[[], Snapshot]


def build(source: SnapshotSource) -> gr.Blocks:
    """The page over `source`, which must answer at once. Mount it with `mount`."""
    with gr.Blocks(title="Monitor", analytics_enabled=False) as demo:
        seen = gr.State(-1)
        verdict = _text("verdict", "h1")
        units = _text("units", "p")
        with gr.Row():
            reward = _plot("reward", "Reward", "+.2f")
            sparsity = _plot("sparsity", "Sparsity of deltas", "")
            payload = _plot("bytes", "Payload of deltas", "~s")
        payload_line = _text("payload", "p")
        table = gr.Dataframe(
            headers=list(view.COLUMNS), label="Newest versions", interactive=False, elem_id="versions"
        )
        outputs = [seen, verdict, units, reward, sparsity, payload, payload_line, table]

        def changed_since(number: int) -> list[Any]:
            snapshot = source()
            return [snapshot.number, view.verdict(snapshot, datetime.now(UTC)), *_changed(snapshot, number)]

        page.refresh(demo, PERIOD_S, changed_since, seen, outputs)
    return demo


def mount(app: FastAPI, demo: gr.Blocks) -> None:
    """Serve the page under /monitor/, with Gradio's own routes reduced to what it needs."""
    page.mount(app, demo, PATH, [Path(__file__).with_name("page.css")])


def _changed(snapshot: Snapshot, number: int) -> list[Any]:
    if snapshot.number == number:
        return [gr.skip()] * 6
    manifests = snapshot.manifests
    return [
        view.unit_lines(snapshot),
        view.rewards(manifests),
        view.sparsities(manifests),
        view.payloads(manifests),
        view.payload_line(manifests),
        view.table(manifests),
    ]


def _text(name: str, tag: str) -> gr.HTML:
    """A line whose value is escaped: it may quote what others wrote."""
    return gr.HTML("", html_template=f"<{tag}>{{{{value}}}}</{tag}>", js_on_load=None, elem_id=name)


def _plot(column: str, title: str, axis_format: str) -> gr.LinePlot:
    return gr.LinePlot(
        x="version",
        y=column,
        title=title,
        x_title="policy version",
        y_title=column,
        y_axis_format=axis_format or None,
        height=240,
        min_width=280,
    )
