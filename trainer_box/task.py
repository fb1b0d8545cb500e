"""What is trained on: environment, reward and data, named as `package.module:attribute` from any importable code."""

import functools
import importlib
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
    if not name:
        raise SyncError(f"{option} {spec!r} should look like package.module:name")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return vars(importlib.import_module(module_name))[name]
    except ImportError as error:
        raise SyncError(f"{option} {spec!r}: module {module_name!r} cannot be imported: {error}") from error
    except KeyError as error:
        raise SyncError(f"{option} {spec!r}: module {module_name!r} has no {name!r}") from error


def environment_factory(spec: str, url: str) -> EnvironmentFactory:
    """Makes an environment: the class is called with the environment's URL when there is one, else with nothing."""
    environment = load_attribute(spec, "--environment")
    if not callable(environment):
        raise SyncError(f"--environment {spec!r} is a {type(environment).__name__}, not a class or function")
    return functools.partial(environment, url) if url else environment


def reward_function(spec: str) -> RewardFunction:
    reward: RewardFunction = load_attribute(spec, "--reward")
    if not callable(reward):
        raise SyncError(f"--reward {spec!r} is a {type(reward).__name__}, not a function")
    return reward


def dataset(spec: str) -> Dataset:
    """`package.module:function` is called; all else is a dataset's id or folder, of which split `train` is used."""
    if ":" in spec:
        made = load_attribute(spec, "--dataset")()
        if not isinstance(made, Dataset):
            raise SyncError(f"--dataset {spec!r} made a {type(made).__name__}, not a datasets.Dataset")
        return made
    try:
        return load_dataset(spec, split="train")
    except (OSError, ValueError) as error:
        raise SyncError(f"--dataset {spec!r} cannot be loaded: {error}") from error
