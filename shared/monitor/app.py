"""The page: what is where, and the one handler that refreshes it from a snapshot.

Knows Gradio. A visitor chooses what to look at and can change nothing; `mount` lets through only what the page needs.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import gradio as gr
from fastapi import FastAPI

from shared import page
from shared.login import Login
from shared.monitor import games, metrics
from shared.monitor.games import Choice
from shared.monitor.metrics import Plot
from shared.monitor.poller import PERIOD_S
from shared.monitor.shelf import Piece, Shelf
from shared.monitor.snapshot import Snapshot

PATH = "/monitor"
SESSIONS = 200
"""That are remembered; a visitor of an older one is sent the whole page once more."""
HERE = Path(__file__).parent
NEWEST_RUN = "the newest"
SECTIONS = ("weights", "learning", "syncs", "bucket", "games")
NAVIGATION = f"<nav>{' '.join(f'<a href=#{name}>{name.title()}</a>' for name in SECTIONS)}</nav>"
HIDE = """
const hide = () => {
  const drawing = element.closest(".plot")?.querySelector(".drawing");
  drawing ? drawing.setAttribute("aria-hidden", "true") : requestAnimationFrame(hide);
};
hide();
"""
"""A plot's marks have no names, and its newest values are said over it. It is there a moment later than those."""
KEEP_OPEN = """
const opened = new Set();
element.addEventListener("toggle", ({target}) => {
  target.open ? opened.add(target.dataset.game) : opened.delete(target.dataset.game);
}, true);
watch("value", () => {
  for (const details of element.querySelectorAll("details")) details.open = opened.has(details.dataset.game);
});
"""
"""A game that someone reads stays open when others come."""

Look = Callable[[str, int | None], Snapshot]
"""The snapshot of a run (of the followed one for an empty name), of which someone may want a version's rollouts."""


def build(look: Look) -> gr.Blocks:
    """The page over `look`, which must answer at once. Mount it with `mount`."""
    shelf = Shelf()
    with gr.Blocks(title="Monitor", analytics_enabled=False) as demo:
        demo.state_session_capacity = SESSIONS
        seen: gr.State = gr.State([])  # the marks of what a visitor has
        verdict = _html("verdict-view")
        _html("navigation", NAVIGATION)
        run = _run_picker()
        of_now = [verdict, _html("tiles-view")]
        _heading("weights", "Weights: are they right?")
        of_now.append(_html("replicas-view"))
        _heading("learning", "Learning: does it get better?")
        plots, heads = _plots(metrics.LEARNING)
        _heading("syncs", "Syncs: what did they cost?")
        of_bucket = [_html("timeline-view")]
        more_plots, more_heads = _plots(metrics.SYNCS)
        _heading("bucket", "Bucket: what is in it?")
        of_bucket.append(_html("chain-view"))
        _heading("games", "Games: what does it play?", games.CAPTION)
        choices = _choices()
        played = _html("games-view", script=KEEP_OPEN)
        outputs = [*of_now, run, *heads, *more_heads, *plots, *more_plots, *of_bucket, played]

        def refreshed(seen: list[int], name: str | None, *chosen: object) -> list[Any]:
            choice = Choice.of(*chosen)
            snapshot = look(name if name and name != NEWEST_RUN else "", choice.version)
            pieces = shelf.pieces(snapshot, choice, datetime.now(UTC))
            known = seen if len(seen) == len(pieces) else [0] * len(pieces)
            new = [
                gr.skip() if piece.mark == mark else _update(piece) for piece, mark in zip(pieces, known, strict=True)
            ]
            return [[piece.mark for piece in pieces], *new]

        page.refresh(demo, PERIOD_S, refreshed, [seen, run, *choices], [seen, *outputs], [run, *choices])
    return demo


def mount(app: FastAPI, demo: gr.Blocks, login: Login | None = None) -> None:
    """Serve the page under /monitor/, with Gradio's own routes reduced to what it needs."""
    page.mount(app, demo, PATH, [HERE / "page.css"], login)


def _update(piece: Piece) -> Any:
    """What Gradio is given for a piece: a list is the runs, of which one can be picked where there are several."""
    if not isinstance(piece.content, list):
        return piece.content
    return gr.update(choices=[NEWEST_RUN, *piece.content], visible=len(piece.content) > 1)


def _html(place: str, html: str = "", script: str | None = None) -> gr.HTML:
    """Takes HTML as it is: whatever goes in has been escaped."""
    return gr.HTML(html, js_on_load=script, apply_default_css=False, elem_id=place)


def _heading(place: str, text: str, caption: str = "") -> None:
    """Of a section; both texts are this project's own."""
    _html(place, f"<h2>{text}</h2>" + (f'<p class="caption">{caption}</p>' if caption else ""))


def _plots(plots: Sequence[Plot]) -> tuple[list[Any], list[gr.HTML]]:
    """The plots, and what stands over them: the newest values, in words."""
    with gr.Row(elem_classes="plots"):
        made = [_plot(plot) for plot in plots]
    return [drawn for drawn, _ in made], [head for _, head in made]


def _plot(plot: Plot) -> tuple[Any, gr.HTML]:
    with gr.Column(min_width=250, elem_classes="plot", elem_id=f"plot-{plot.name}"):
        head = _html(f"head-{plot.name}", script=HIDE)
        drawn = (gr.ScatterPlot if plot.dots else gr.LinePlot)(
            x="version",
            y="value",
            color="line",
            color_map=plot.colours,
            x_title="policy version",
            y_title=" ",
            x_axis_format="d",
            y_axis_format=plot.form,
            height=170,
            elem_classes="drawing",
        )
    return drawn, head


def _run_picker() -> gr.Dropdown:
    """Seen once there are several. A run that has been deleted is still a value, and leads to the one followed."""
    return gr.Dropdown(
        [NEWEST_RUN], value=NEWEST_RUN, label="Run", visible=False, allow_custom_value=True, elem_id="run"
    )


def _choices() -> list[Any]:
    with gr.Row(elem_classes="choices"):
        version = gr.Textbox(label="Version", placeholder="the newest", max_lines=1, elem_id="version")
        solved = gr.Radio(["all", "solved", "not solved"], value="all", label="Solved", elem_id="solved")
        least = gr.Textbox(label="Reward at least", placeholder="any", max_lines=1, elem_id="least")
    return [version, solved, least]
