"""One system for all tests on real nodes; each leaves its nodes ready."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.nodes.system import NodeSystem, open_system


@pytest.fixture(scope="package")
def opened_system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeSystem]:
    with open_system(tmp_path_factory.mktemp("nodes"), Path(os.environ["KUBE_BIN"])) as system:
        yield system


@pytest.fixture
def system(opened_system: NodeSystem) -> NodeSystem:
    opened_system.until_ready()
    return opened_system
