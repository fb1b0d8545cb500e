"""A Gradio page under a path of an app, its routes reduced to what looking at it needs. Knows how Gradio
mounts and refreshes.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gradio as gr
from fastapi import FastAPI
from starlette.routing import Mount

from shared.page_guard import ReadOnly


def refresh(demo: gr.Blocks, period_s: float, function: Callable[..., Any], inputs: Any, outputs: Any) -> None:
    """Call `function`, which must answer at once, when the page is loaded and in each period. To be used in `demo`."""
    gr.on(
        [demo.load, gr.Timer(period_s).tick],
        function,
        inputs,
        outputs,
        show_progress="hidden",
        queue=False,
        concurrency_limit=None,
        api_visibility="private",
    )


def mount(app: FastAPI, demo: gr.Blocks, path: str, css_paths: Sequence[Path]) -> None:
    """Serve the page at `path` and a slash. It asks nothing of other machines: fonts are the visitor's own."""
    gr.mount_gradio_app(
        app,
        demo,
        path=path,
        ssr_mode=False,
        theme=gr.themes.Base(font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"]),
        css_paths=list(css_paths),
        footer_links=[],
        run_history=False,
        show_error=False,
    )
    mounted = app.router.routes.pop()
    if not isinstance(mounted, Mount):
        raise TypeError(f"Gradio mounted a {type(mounted).__name__}, expected a Mount; use the pinned release")
    refreshes = {number: len(function.inputs) for number, function in demo.fns.items()}
    app.mount(path, ReadOnly(mounted.app, refreshes))
