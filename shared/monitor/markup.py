"""The page's pieces of HTML from its templates. Knows no Gradio, and not what is shown.

Whatever is put in is escaped: a model, a bucket or another server may have written it. Gradio's own templates would
not do: it evaluates what they give as JavaScript, so that a `${...}` in a value is run.
"""

from pathlib import Path

import jinja2

_TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def rendered(name: str, **values: object) -> str:
    """The template of this name, with all that it takes."""
    return _TEMPLATES.get_template(f"{name}.html").render(values)
