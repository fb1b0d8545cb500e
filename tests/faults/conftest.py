"""The live Spaces that rows are played on: one per kind of bucket, gone when this package's tests are over."""

from collections.abc import Iterator

import pytest

from tests.faults.stage import Stage, stage


@pytest.fixture(scope="package")
def live_stage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """`request.param` is the kind of bucket."""
    with stage(request.param, tmp_path_factory.mktemp("stage")) as found:
        yield found
