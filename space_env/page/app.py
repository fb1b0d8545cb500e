"""The page: a board and a keyboard in the browser, which play over a WebSocket as any client does, and how busy it is.

Knows Gradio. The game is in `board.html` and `board.js`, and none of it is here: a secret never gets to the page
before the server says that the game is over.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gradio as gr
from fastapi import FastAPI, Request
from fastapi.responses import RedirectResponse

from shared import page

PATH = "/play"
PERIOD_S = 3.0
HERE = Path(__file__).parent

Status = Callable[[], dict[str, Any]]


def build(status: Status) -> gr.Blocks:
    """The page over `status`, which must answer at once. Mount it with `mount`."""
    with gr.Blocks(title="Wordle", analytics_enabled=False) as demo:
        gr.HTML(
            html_template=(HERE / "board.html").read_text(encoding="utf-8"),
            js_on_load=(HERE / "board.js").read_text(encoding="utf-8"),
            elem_id="game",
        )
        busy = gr.HTML("", html_template="<p>{{value}}</p>", js_on_load=None, elem_id="busy")
        page.refresh(demo, PERIOD_S, lambda: sentence(status()), None, busy)
    return demo


def mount(app: FastAPI, demo: gr.Blocks) -> None:
    """Serve the page under /play/; `/` leads there."""

    @app.get("/", include_in_schema=False)
    async def root(request: Request) -> RedirectResponse:
        return RedirectResponse(f"{PATH}/?{request.url.query}".rstrip("?"))

    @app.get("/favicon.ico", include_in_schema=False)
    async def icon() -> RedirectResponse:
        return RedirectResponse(f"{PATH}/favicon.ico")

    page.mount(app, demo, PATH, [HERE / "page.css"])


def sentence(status: dict[str, Any]) -> str:
    open_now = f"{status['sessions']} of {status['capacity']} sessions are open, {status['playing']} at play."
    if not status["episodes"]:
        return open_now
    return f"{open_now} Games played: {status['episodes']}, solved: {status['solve_rate']:.0%}."
