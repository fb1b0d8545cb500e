"""What the page is made of, from a snapshot: a piece of HTML or a frame for each place. Pure; knows no Gradio."""

from dataclasses import asdict
from datetime import datetime

import pandas as pd

from shared.monitor import chain, games, metrics, replicas, tiles, timeline
from shared.monitor.games import Choice
from shared.monitor.markup import rendered
from shared.monitor.snapshot import Snapshot
from shared.monitor.verdict import verdict

PLOTS = (*metrics.LEARNING, *metrics.SYNCS)


def of_now(snapshot: Snapshot, now: datetime) -> list[str]:
    """Verdict, tiles and replicas, which change with time alone."""
    environment = replicas.environment_line(snapshot.environment)
    return [
        rendered("verdict", **asdict(verdict(snapshot, now))),
        rendered("tiles", tiles=tiles.tiles(snapshot, now)),
        rendered(
            "replicas",
            columns=replicas.COLUMNS,
            rows=replicas.rows(snapshot, now),
            line=replicas.line(snapshot),
            environment=environment,
        ),
    ]


def of_plots(snapshot: Snapshot) -> list[str]:
    """What stands over each plot."""
    return [
        rendered("head", title=plot.title, unit=plot.unit, caption=plot.caption, newest=plot.newest(snapshot))
        for plot in PLOTS
    ]


def frames(snapshot: Snapshot) -> list[pd.DataFrame]:
    return [plot.frame(snapshot) for plot in PLOTS]


def of_bucket(snapshot: Snapshot) -> list[str]:
    """The timeline of the syncs, and the chain."""
    return [
        rendered("timeline", caption=timeline.CAPTION, phases=timeline.PHASES, rows=timeline.rows(snapshot)),
        rendered(
            "chain",
            summary=chain.summary(snapshot),
            caption=chain.CAPTION,
            bars=chain.bars(snapshot),
            columns=chain.COLUMNS,
            rows=chain.rows(snapshot),
        ),
    ]


def of_games(snapshot: Snapshot, choice: Choice) -> str:
    found = games.games(snapshot, choice)
    return rendered("games", line=games.line(snapshot, choice, len(found)), games=found)
