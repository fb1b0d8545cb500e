"""Which modules of one package another one needs, and the data beside them, read from the sources.

A module is needed when it is imported anywhere, inside a function too, or named in full in a string.
"""

import ast
from collections.abc import Iterator
from pathlib import Path


def needed(package: str, by: str, checkout: Path) -> set[Path]:
    """Files of `package`: modules that those of `by` need, what these need of it, and their packages' data."""
    found: set[Path] = set()
    waiting = list((checkout / by).rglob("*.py"))
    while waiting:
        for name in _named(waiting.pop()):
            if name.split(".")[0] == package:
                new = set(_files(name, checkout)) - found
                found |= new
                waiting += [path for path in new if path.suffix == ".py"]
    return found


def _named(module: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(source), names=names, level=0):
                yield source
                yield from (f"{source}.{alias.name}" for alias in names)
            case ast.Constant(value=str(text)):
                yield text


def _files(name: str, checkout: Path) -> Iterator[Path]:
    """The module's file, and what its packages have beside modules; none where the name is no module's."""
    place = checkout.joinpath(*name.split("."))
    module = place.with_suffix(".py")
    if module.is_file():
        yield module
        place = place.parent
    elif not (place / "__init__.py").is_file():
        return
    while place != checkout:
        yield from (path for path in place.iterdir() if path.is_file() and path.suffix != ".py")
        yield from (path for path in [place / "__init__.py"] if path.is_file())
        place = place.parent
