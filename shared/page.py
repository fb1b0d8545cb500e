"""A Gradio page under a path of an app, its routes reduced to what looking at it needs. Knows how Gradio
mounts and refreshes.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gradio as gr
from fastapi import FastAPI
from starlette.routing import Mount

from shared.login import Login
from shared.page_guard import ReadOnly, Takes, is_plain


def refresh(
    demo: gr.Blocks,
    period_s: float,
    function: Callable[..., Any],
    inputs: Any,
    outputs: Any,
    choices: Sequence[Any] = (),
) -> None:
    """Call `function`, which must answer at once, when the page is loaded, in each period, and when a visitor makes
    one of the `choices`. To be used in `demo`."""
    gr.on(
        [demo.load, gr.Timer(period_s).tick, *(choice.input for choice in choices)],
        function,
        inputs,
        outputs,
        show_progress="hidden",
        queue=False,
        concurrency_limit=None,
        api_visibility="private",
    )


def mount(app: FastAPI, demo: gr.Blocks, path: str, css_paths: Sequence[Path], login: Login | None = None) -> None:
    """Serve the page at `path` and a slash. It asks nothing of other machines: fonts are the visitor's own."""
    gr.mount_gradio_app(
        app,
        demo,
        path=path,
        ssr_mode=False,
        theme=_theme(),
        auth=(login.user, login.password) if login else None,
        css_paths=list(css_paths),
        footer_links=[],
        run_history=False,
        show_error=False,
    )
    mounted = app.router.routes.pop()
    if not isinstance(mounted, Mount):
        raise TypeError(f"Gradio mounted a {type(mounted).__name__}, expected a Mount; use the pinned release")
    refreshes = {number: [_takes(given) for given in function.inputs] for number, function in demo.fns.items()}
    app.mount(path, ReadOnly(mounted.app, refreshes, has_login=login is not None))


def _takes(given: Any) -> Takes:
    """What a visitor may give this input as a value; what a page remembers of a visitor is its own."""
    if isinstance(given, gr.State):
        return lambda value: False
    if isinstance(given, gr.Radio):
        choices = {value for _, value in given.choices}
        return lambda value: isinstance(value, str) and value in choices
    return is_plain


def _theme() -> gr.themes.Base:
    return gr.themes.Base(
        primary_hue="blue",
        neutral_hue="zinc",
        radius_size="sm",
        font=["system-ui", "sans-serif"],
        font_mono=["ui-monospace", "monospace"],
    )
