"""The stage of tests that have one of their own."""

from collections.abc import Iterator

import pytest

from tests.faults.stage import Stage, started


@pytest.fixture
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with started(tmp_path_factory.mktemp("stage") / "stage") as built:
        yield built
