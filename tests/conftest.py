"""Fixtures for all tests: a real Postgres, a Redis that speaks the protocol, and a whole dispatcher in this process."""

import asyncio
import contextlib
import gc
import importlib
import itertools
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from functools import reduce
from operator import xor
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from hypothesis import HealthCheck, settings
from sqlalchemy import create_engine, text
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from tests import preloaded
from tests.openapi_check import CHECKED
from tests.programs import programs_met
from tests.waiting import eventually
from trainmaster.protocol.agent import CapacityReport, NodeGroup, RunReport, SyncRequest, run_digest
from trainmaster.protocol.ids import parse_run_id
from trainmaster.protocol.states import ClusterKind, RunState
from trainmaster.protocol.tenants import ClusterSpec, QueueSpec
from trainmaster_dispatcher.api.app import make_app
from trainmaster_dispatcher.cli.embedded import EmbeddedPostgres, free_port, redis_command, wait_for_port
from trainmaster_dispatcher.http_connections import server_config
from trainmaster_dispatcher.scheduler.loop import Scheduler
from trainmaster_dispatcher.services.bootstrap import make_local_installation
from trainmaster_dispatcher.services.context import Stores
from trainmaster_dispatcher.services.settings import Settings
from trainmaster_dispatcher.store.database import driver_url
from trainmaster_dispatcher.store.migrate import migrate

ADMIN_KEY = "tmk_admin"
LEASE_SECONDS = 6.0
"""Long enough for a test whose agent speaks once, even while the machine is busy with other tests."""
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Trusts nobody. Clients of plain HTTP are made with it, as loading the certificates that a client trusts takes 40 ms."""
_names = itertools.count()
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # else processes that tests start would ignore Ctrl-C, too
if not os.environ.get("TRAINMASTER_DEEP"):
    preloaded.install()

_SLOW = (HealthCheck.too_slow, HealthCheck.data_too_large)
# Before any test file is imported: what a test sets by itself is added to the profile that is loaded then.
settings.register_profile("short", max_examples=40, deadline=None, suppress_health_check=_SLOW, stateful_step_count=40)
settings.register_profile("deep", max_examples=3000, deadline=None, suppress_health_check=_SLOW, stateful_step_count=80)
settings.load_profile("deep" if os.environ.get("TRAINMASTER_DEEP") == "1" else "short")
gc.set_threshold(50_000, 20, 50)  # thousands of collected tests are no garbage, and would be visited again and again


_SYSTEMS = ("tests/e2e/", "tests/faults/", "tests/nodes/")
_BESIDE_SYSTEMS = (
    "tests/e2e/test_wheel",
    "tests/e2e/test_image",
    "tests/e2e/test_generated_clients",
    "tests/e2e/test_pages",
    "tests/e2e/test_demo",
    "tests/e2e/test_dist",
    "tests/e2e/test_example_stories",
    "tests/e2e/test_users_programs",
)
"""Tests that start a system as well, and are patient enough to run beside one of the others, which take longest together."""
_LOCAL = ("tests/integration/test_local_", "tests/integration/test_members_as")
_LONG = ("tests/unit/test_scheduling_",)


class _ByFile(LoadScopeScheduling):  # type: ignore[misc]
    """Tests of a file run in one process, one after the other. So do all that start a whole system, and all of the local runtime.

    The local runtime kills what belongs to a run by the run's id, and its tests use the same few ids. Long files of pure tests are
    dealt out test by test.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        if file.startswith(_BESIDE_SYSTEMS):
            return "beside systems"
        if file.startswith(_SYSTEMS):
            return "systems"
        if file.startswith(_LOCAL):
            return "local runtime"
        return nodeid if file.startswith(_LONG) else file


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Import each process's own share of the test files first, in a run of all tests.

    All processes import all of them, in the same order, and each would compile nearly every one itself while there is no bytecode.
    So each finds most of them compiled by another.
    """
    worker: dict[str, Any] | None = getattr(session.config, "workerinput", None)
    if worker is None or list(session.config.args) != session.config.getini("testpaths"):
        return
    files = sorted(Path(__file__).parent.rglob("test_*.py"))
    for file in files[int(worker["workerid"].removeprefix("gw")) :: worker["workercount"]]:
        # What is wrong with a file is reported when it is collected.
        with contextlib.suppress(Exception, pytest.skip.Exception):
            importlib.import_module(".".join(file.relative_to(session.config.rootpath).with_suffix("").parts))


def pytest_collection_finish() -> None:
    """Keep the collector from what has been collected: thousands of tests and modules, a second for each time that it looks at all."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which programs of users were there for the tests that run them, where ``scripts/test`` has fetched them."""
    if os.environ.get("TRAINMASTER_TELLS_PROGRAMS"):
        terminalreporter.write_line(f"Programs of users that tests could run: {programs_met()}")


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Return how tests are distributed to the processes of ``-n``."""
    return _ByFile(config, log)


@pytest.fixture(scope="session")
def postgres_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real Postgres with a migrated database that others are copied from.

    It does not wait for its disk: nothing here outlives a crash of the machine. Tests that kill Postgres have one of their own.
    """
    server = EmbeddedPostgres(tmp_path_factory.mktemp("pg") / "data")
    url = server.start()
    engine = create_engine(driver_url(url), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        for setting in ("fsync", "full_page_writes", "synchronous_commit"):
            connection.execute(text(f"ALTER SYSTEM SET {setting} = off"))
        connection.execute(text("SELECT pg_reload_conf()"))
        connection.execute(text("CREATE DATABASE pattern"))
    engine.dispose()
    migrate(on_database(url, "pattern"))
    yield url
    server.stop("immediate")


def on_database(url: str, name: str) -> str:
    """Return the URL of another database of the same server."""
    head, _, options = url.partition("?")
    return f"{head.rsplit('/', 1)[0]}/{name}?{options}"


@pytest.fixture
def database_url(postgres_url: str) -> Iterator[str]:
    """A fresh, migrated database."""
    name = f"test_{os.getpid()}_{next(_names)}"
    engine = create_engine(driver_url(postgres_url), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name} TEMPLATE pattern STRATEGY FILE_COPY"))
    yield on_database(postgres_url, name)
    with engine.connect() as connection:
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
    engine.dispose()


@pytest.fixture
def empty_database_url(postgres_url: str) -> Iterator[str]:
    """A fresh database without a schema."""
    name = f"empty_{os.getpid()}_{next(_names)}"
    engine = create_engine(driver_url(postgres_url), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    yield on_database(postgres_url, name)
    with engine.connect() as connection:
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
    engine.dispose()


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """A Redis: ``redis-server`` where there is one, else the stand-in that ``trainmaster up`` uses too."""
    port = free_port()
    process = subprocess.Popen(redis_command(port), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for_port(port, process, 60, "Redis")
    yield f"redis://127.0.0.1:{port}/0"
    process.kill()
    process.wait()


@dataclass
class FakeAgent:
    """An agent that a test controls: it reports what the test says, over real HTTP."""

    http: httpx.AsyncClient
    key: str
    session: str = "session-1"
    holder: str = "holder-1"
    number: int = 0
    version: int = 0
    place: str = "test"
    held: set[str] = field(default_factory=set)
    starts: list[dict[str, Any]] = field(default_factory=list)
    """Runs that were to be started and that no test has taken yet."""

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"}

    async def sync(
        self, *runs: RunReport, capacity: CapacityReport | None = None, full: bool = False, **fields: Any
    ) -> httpx.Response:
        """Send one sync; the set of held runs follows what is reported."""
        self.number += 1
        for run in runs:
            (self.held.discard if run.state.is_terminal else self.held.add)(run.run)
        request = SyncRequest(
            session=self.session,
            holder=self.holder,
            number=self.number,
            runs=runs,
            full=full,
            place=self.place,
            held_count=len(self.held),
            held_digest=reduce(xor, (run_digest(parse_run_id(run)) for run in self.held), 0),
            capacity=capacity,
            **fields,
        )
        return await self.http.post(
            "/agent/v1/sync", headers=self._headers(), content=request.model_dump_json(by_alias=True)
        )

    async def connect(
        self, cpu: int = 4, nodes: int = 1, capabilities: tuple[str, ...] = ("gang",), **fields: Any
    ) -> None:
        """Report a capacity of ``nodes`` nodes with ``cpu`` CPUs and as many GiB each."""
        group = NodeGroup(name="node", count=nodes, free={"cpu": cpu * 1000, "memory": cpu * 2**30})
        report = CapacityReport(
            groups=(group,),
            runtime="test",
            scheduler="test",
            capabilities=capabilities,
            dies_without_agent=True,
            **fields,
        )
        answer = await self.sync(capacity=report)
        assert answer.status_code == 200, answer.text
        if answer.json()["sendFull"]:
            await self.sync(full=True)

    async def desired(self, wait: float = 0.0) -> dict[str, Any]:
        """Return what the dispatcher has wanted of the agent since the last call."""
        answer = await self.http.get(
            "/agent/v1/desired",
            params={"session": self.session, "after": self.version, "wait": wait},
            headers=self._headers(),
        )
        assert answer.status_code == 200, answer.text
        value: dict[str, Any] = answer.json()
        self.version = value["version"]
        return value

    async def next_start(self) -> dict[str, Any]:
        """Wait for the next run to start and return it. Stays in contact while that takes long, as agents do."""
        last_contact = time.monotonic()

        async def look() -> bool:
            nonlocal last_contact
            if not self.starts:
                self.starts.extend((await self.desired(0.5))["start"])
            if not self.starts and time.monotonic() - last_contact > LEASE_SECONDS / 3:
                await self.sync()
                last_contact = time.monotonic()
            return bool(self.starts)

        await eventually(look)
        return self.starts.pop(0)

    async def report(self, run: str, state: RunState, seq: int, generation: int = 1, **fields: Any) -> httpx.Response:
        return await self.sync(RunReport(run=run, generation=generation, seq=seq, state=state, **fields))


@dataclass
class Service:
    """A dispatcher in this process: api over real HTTP, and a scheduler where ``schedule`` was asked for."""

    url: str
    settings: Settings
    stores: Stores
    http: httpx.AsyncClient
    """With the admin's key."""

    def agent(self, cluster: str = "private", **fields: Any) -> FakeAgent:
        return FakeAgent(
            httpx.AsyncClient(base_url=self.url, timeout=60, event_hooks=CHECKED, verify=NO_TLS),
            f"tmk_{cluster}",
            **fields,
        )

    def as_key(self, key: str) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            base_url=self.url,
            headers={"Authorization": f"Bearer {key}"},
            timeout=60,
            event_hooks=CHECKED,
            verify=NO_TLS,
        )

    async def submit(self, name: str = "job", queue: str = "default", cpu: str = "1", **fields: Any) -> str:
        answer = await self.http.post("/v1/jobs", json=job(name, queue, cpu, **fields))
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    async def job(self, job_id: str) -> dict[str, Any]:
        answer = await self.http.get(f"/v1/jobs/{job_id}")
        assert answer.status_code == 200, answer.text
        value: dict[str, Any] = answer.json()
        return value

    async def until(self, job_id: str, *states: str, seconds: float = 10) -> dict[str, Any]:
        """Return the job once it is in one of these states."""

        async def look() -> bool:
            return (await self.job(job_id))["shownState"] in states

        await eventually(look, seconds)
        return await self.job(job_id)


def job(name: str = "job", queue: str = "default", cpu: str = "1", replicas: int = 1, **fields: Any) -> dict[str, Any]:
    """Return a job specification with one role."""
    template = {"command": ["true"], "resources": {"cpu": cpu}}
    return {
        "kind": "Job",
        "name": name,
        "queue": queue,
        "roles": [{"name": "main", "replicas": replicas, "template": template}],
        **fields,
    }


class _Server(uvicorn.Server):
    def install_signal_handlers(self) -> None:
        """Install no handlers: pytest handles signals."""


@pytest.fixture
def default_requests() -> str:
    """The default requests of members: none here, so that jobs take what their test says."""
    return ""


@pytest.fixture
def more_settings() -> dict[str, Any]:
    """Settings of the dispatcher beside those that all tests have."""
    return {}


@pytest.fixture
async def service(
    database_url: str, redis_url: str, default_requests: str, more_settings: dict[str, Any]
) -> AsyncIterator[Service]:
    """A dispatcher with clusters private, public and edge, queue ``default``, and a running scheduler."""
    settings = Settings.model_validate(
        {
            "database_url": database_url,
            "redis_url": redis_url,
            "lease_seconds": LEASE_SECONDS,
            "lost_margin_seconds": 0.2,
            "default_requests": default_requests,
            "wrong_keys_per_second": 0,  # many tests show keys that are wrong
            "keyless_calls_per_second": 0,  # or none, to each route
            **more_settings,
        }
    )
    await make_local_installation(
        settings,
        [ClusterSpec(name=kind.value, cluster_kind=kind) for kind in ClusterKind],
        {"admin": ADMIN_KEY} | {kind.value: f"tmk_{kind.value}" for kind in ClusterKind},
        [QueueSpec(path="default", allowed_kinds=tuple(ClusterKind))],
    )
    # The protocol is named so that asyncio knows it for TCP and sends small answers at once.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(256)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        server = _Server(server_config(make_app(settings), settings.connection_bounds, web_sockets=True, lifespan="on"))
        serving = asyncio.create_task(server.serve([listener]))
        stores = Stores.open(settings)
        stop = asyncio.Event()
        scheduling = asyncio.create_task(Scheduler(stores).run(stop))
        async with httpx.AsyncClient(
            base_url=url,
            headers={"Authorization": f"Bearer {ADMIN_KEY}"},
            timeout=60,
            event_hooks=CHECKED,
            verify=NO_TLS,
        ) as http:
            yield Service(url, settings, stores, http)
        stop.set()
        server.should_exit = True
        await asyncio.gather(scheduling, serving, return_exceptions=True)
        await stores.close()


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real inputs beside the checkout; tests that need it are skipped where it does not exist."""
    folder = Path(__file__).resolve().parents[2] / "shared"
    if not folder.exists():
        pytest.skip("no folder 'shared' beside the checkout")
    return folder


@pytest.fixture(scope="session")
def python() -> str:
    return sys.executable
