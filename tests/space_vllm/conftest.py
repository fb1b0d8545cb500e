"""The real vLLM servers that this package's tests share: one per dtype, of a tiny model of random weights."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.space_vllm import faults, route_list
from tests.space_vllm.live_server import Server, serving
from tests.space_vllm.tiny import make_model, save

TIED = {"float32": True, "bfloat16": False}


@pytest.fixture(scope="package")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    save(make_model(), folder)
    return folder


@pytest.fixture(scope="package")
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """`request.param` is the dtype that vLLM serves in. In float32 faults can be planted, by a plan in its folder, and
    its routes are listed there.
    """
    dtype, tied = request.param, TIED[request.param]
    folder, model = tmp_path_factory.mktemp(f"server-{dtype}"), tmp_path_factory.mktemp(f"model-{dtype}")
    save(make_model(tied), model)
    plan = faults.Plan(folder)
    arguments = (*faults.ARGUMENTS, *route_list.ARGUMENTS) if dtype == "float32" else ()
    environment = {**plan.environment, **route_list.environment(folder)}
    with serving(folder, model, dtype, tied, arguments, environment) as running:
        yield running
