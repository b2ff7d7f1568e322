"""One system for all tests on real nodes; each leaves its nodes ready. What users saw of its jobs is recorded."""

import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import orjson
import pytest

from tests.nodes.seen import PROPERTY, jobs_seen, system_of
from tests.nodes.system import NodeSystem, open_system


@pytest.fixture(autouse=True)
def recorded(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> Iterator[None]:
    since = datetime.now(UTC)
    yield
    system = system_of(request.node.funcargs)
    for seen in () if system is None else jobs_seen(system, since):
        record_property(PROPERTY, orjson.dumps(seen).decode())


@pytest.fixture(scope="package")
def opened_system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeSystem]:
    with open_system(tmp_path_factory.mktemp("nodes"), Path(os.environ["KUBE_BIN"])) as system:
        yield system


@pytest.fixture
def system(opened_system: NodeSystem) -> NodeSystem:
    opened_system.until_ready()
    return opened_system
