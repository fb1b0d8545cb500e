"""What is trained on: environment, reward and data, named as `package.module:attribute` from any importable code."""

import functools
import importlib
import inspect
import os
import sys
from collections.abc import Callable
from typing import Any

from datasets import Dataset, load_dataset

from shared.errors import SyncError

EnvironmentFactory = Callable[[], Any]
RewardFunction = Callable[..., Any]


def load_attribute(spec: str, option: str) -> Any:
    """The object that `pkg.module:name` names; the current folder is importable. Raises SyncError with the reason."""
    module_name, _, name = spec.partition(":")
    if not name or not module_name or module_name.startswith("."):
        raise SyncError(f"{option} {spec!r} should look like package.module:name")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = vars(importlib.import_module(module_name))
    except ImportError as error:
        raise SyncError(f"{option} {spec!r}: module {module_name!r} cannot be imported: {error}") from error
    if name not in found:
        raise SyncError(f"{option} {spec!r}: module {module_name!r} has no {name!r}")
    return found[name]


def environment_factory(spec: str, url: str) -> EnvironmentFactory:
    """Makes an environment: the class is called with the environment's URL when there is one, else with nothing."""
    environment = _load_callable(spec, "--environment")
    arguments = (url,) if url else ()
    try:
        inspect.signature(environment).bind(*arguments)
    except TypeError as error:
        given = f"with --env-url {url}" if url else "without --env-url"
        raise SyncError(f"--environment {spec!r} cannot be made {given}: {error}") from error
    return functools.partial(environment, *arguments)


def reward_function(spec: str) -> RewardFunction:
    return _load_callable(spec, "--reward")


def dataset(spec: str) -> Dataset:
    """`package.module:function` is called; all else is a dataset's id or folder, of which split `train` is used."""
    if ":" in spec:
        made = _load_callable(spec, "--dataset")()
        if not isinstance(made, Dataset):
            raise SyncError(f"--dataset {spec!r} made a {type(made).__name__}, not a datasets.Dataset")
        return made
    try:
        return load_dataset(spec, split="train")
    except (OSError, ValueError) as error:
        raise SyncError(f"--dataset {spec!r} cannot be loaded: {error}") from error


def _load_callable(spec: str, option: str) -> Callable[..., Any]:
    found: Callable[..., Any] = load_attribute(spec, option)
    if not callable(found):
        raise SyncError(f"{option} {spec!r} is a {type(found).__name__}, not a class or function")
    return found
