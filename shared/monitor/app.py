"""The page: what is where, and the one handler that refreshes it from a snapshot.

Knows Gradio. A visitor chooses what to look at and can change nothing; `mount` lets through only what the page needs.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import gradio as gr
from fastapi import FastAPI

from shared import page
from shared.login import Login
from shared.monitor import chain, games, metrics, replicas, tiles, timeline
from shared.monitor.games import Choice
from shared.monitor.metrics import Plot
from shared.monitor.poller import PERIOD_S
from shared.monitor.snapshot import Snapshot
from shared.monitor.verdict import verdict
from shared.types import Json

PATH = "/monitor"
HERE = Path(__file__).parent
NEWEST_RUN = "the newest"
HIDE = 'element.closest(".plot").querySelector(".drawing").setAttribute("aria-hidden", "true")'
"""A plot's marks have no names; its newest values are said beside it."""
SECTIONS = ("weights", "learning", "syncs", "bucket", "games")
NAVIGATION = f"<nav>{' '.join(f'<a href=#{name}>{name.title()}</a>' for name in SECTIONS)}</nav>"

Look = Callable[[str, int | None], Snapshot]
"""The snapshot of a run (of the followed one for an empty name), of which someone may want a version's rollouts."""


def build(look: Look) -> gr.Blocks:
    """The page over `look`, which must answer at once. Mount it with `mount`."""
    with gr.Blocks(title="Monitor", analytics_enabled=False) as demo:
        seen = gr.State("")
        verdict_view = _html("verdict")
        gr.HTML(NAVIGATION, js_on_load=None, apply_default_css=False)
        run = _run_picker()
        always = [verdict_view, _html("tiles"), _html("replicas", "Weights: are they right?", "weights")]
        _heading("Learning: does it get better?", "learning")
        plots, heads = _plots(metrics.LEARNING)
        changing = [_html("timeline", "Syncs: what did they cost?", "syncs")]
        more_plots, more_heads = _plots(metrics.SYNCS)
        changing += [_html("chain", "Bucket: what is in it?", "bucket")]
        _heading("Games: what does it play?", "games", games.CAPTION)
        choices = _choices()
        played = _html("games")
        drawn = [*heads, *more_heads, *plots, *more_plots]
        outputs = [seen, *always, run, *drawn, *changing, played]

        def refreshed(before: str, name: str, version: str, solved: str, least: str) -> list[Any]:
            choice = Choice.of(version, solved, least)
            snapshot, now = look(_run_id(name), choice.version), datetime.now(UTC)
            told = [asdict(verdict(snapshot, now)), tiles.tiles(snapshot, now), _weights(snapshot, now)]
            mark, of_games = str(snapshot.number), f"{snapshot.number} {choice}"
            data = (
                [gr.skip()] * (1 + len(drawn) + len(changing)) if before.split(" ")[0] == mark else _changed(snapshot)
            )
            return [of_games, *told, *data, gr.skip() if before == of_games else _games(snapshot, choice)]

        page.refresh(demo, PERIOD_S, refreshed, [seen, run, *choices], outputs, [run, *choices])
    return demo


def mount(app: FastAPI, demo: gr.Blocks, login: Login | None = None) -> None:
    """Serve the page under /monitor/, with Gradio's own routes reduced to what it needs."""
    page.mount(app, demo, PATH, [HERE / "page.css"], login)


def _run_id(name: object) -> str:
    return name if isinstance(name, str) and name != NEWEST_RUN else ""


def _changed(snapshot: Snapshot) -> list[Any]:
    runs = [NEWEST_RUN, *(run.run_id for run in snapshot.runs)]
    plots = (*metrics.LEARNING, *metrics.SYNCS)
    drawn = [*([plot.newest(snapshot) for plot in plots]), *[plot.frame(snapshot) for plot in plots]]
    return [gr.update(choices=runs, visible=len(runs) > 2), *drawn, _timeline(snapshot), _chain(snapshot)]


def _weights(snapshot: Snapshot, now: datetime) -> Json:
    environment = replicas.environment_line(snapshot.environment)
    return {"columns": replicas.COLUMNS, "rows": replicas.rows(snapshot, now), "environment": environment}


def _timeline(snapshot: Snapshot) -> Json:
    return {"caption": timeline.CAPTION, "phases": timeline.PHASES, "rows": timeline.rows(snapshot)}


def _chain(snapshot: Snapshot) -> Json:
    shown = {"bars": chain.bars(snapshot), "rows": chain.rows(snapshot)}
    return {"summary": chain.summary(snapshot), "caption": chain.CAPTION, "columns": chain.COLUMNS, **shown}


def _games(snapshot: Snapshot, choice: Choice) -> Json:
    found = games.games(snapshot, choice)
    return {"line": games.line(snapshot, choice, len(found)), "games": found}


def _html(name: str, heading: str = "", anchor: str = "") -> gr.HTML:
    """A template whose values are escaped: they may quote what others wrote."""
    if heading:
        _heading(heading, anchor)
    return _template(name, f"{name}-view")


def _template(name: str, place: str, script: str | None = None, **props: Any) -> gr.HTML:
    template = (HERE / f"{name}.html").read_text(encoding="utf-8")
    return gr.HTML({}, html_template=template, js_on_load=script, apply_default_css=False, elem_id=place, **props)


def _heading(text: str, anchor: str, caption: str = "") -> None:
    """Of a section; both texts are this project's own."""
    told = f'<p class="caption">{caption}</p>' if caption else ""
    gr.HTML(f"<h2>{text}</h2>{told}", js_on_load=None, apply_default_css=False, elem_id=anchor)


def _plots(plots: Sequence[Plot]) -> tuple[list[gr.LinePlot], list[gr.HTML]]:
    """The plots, and what stands over them: the newest values, in words."""
    with gr.Row(elem_classes="plots"):
        made = [_plot(plot) for plot in plots]
    return [drawn for drawn, _ in made], [head for _, head in made]


def _plot(plot: Plot) -> tuple[gr.LinePlot, gr.HTML]:
    with gr.Column(min_width=250, elem_classes="plot", elem_id=f"plot-{plot.name}"):
        head = _template("head", f"head-{plot.name}", HIDE, title=plot.title, unit=plot.unit, caption=plot.caption)
        drawn = gr.LinePlot(
            x="version",
            y="value",
            color="line",
            color_map=plot.colours,
            x_title="policy version",
            y_title=" ",
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
