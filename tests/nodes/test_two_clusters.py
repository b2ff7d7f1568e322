"""Two clusters with real nodes, one of which loses its connection to the dispatcher, as users see it."""

import os
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.cluster.chart import JOBS
from tests.nodes.fleet import NORTH, SOUTH, Fleet, Witness, open_fleet
from tests.nodes.requirements import need_real_nodes
from tests.nodes.system import NodeSystem
from tests.nodes.ticks import TICKS, assert_whole, containers_of, end, until_ticks
from trainmaster.protocol.states import JobState, RunState

need_real_nodes()

STUBBORN = f"trap 'echo asked to end' TERM; {TICKS}"
"""Does not end by itself when it is asked to: it has to be killed."""


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with open_fleet(tmp_path_factory.mktemp("fleet"), Path(os.environ["KUBE_BIN"])) as fleet:
        yield fleet


@pytest.fixture
def fleet(opened: Fleet) -> Iterator[Fleet]:
    for system in (opened.north, opened.south):
        system.until_ready()
    yield opened
    opened.uplink.mend()
    until_shown(opened, NORTH, "ready")


def until_shown(fleet: Fleet, cluster: str, state: str) -> None:
    """Wait until ``trainmaster clusters`` shows the cluster in this state."""
    shown = partial(fleet.north.trainmaster, "clusters")
    fleet.north.until(lambda: re.search(rf"(?m)^{cluster}\s.*\b{state}\b", shown()) is not None, shown, 90)


def submit_to_north(fleet: Fleet, name: str, script: str, members: int, requeue_after: str | None) -> str:
    """Submit a job that may run anywhere; return its id once it runs, on ``north``, as ``south`` was closed meanwhile."""
    client = fleet.north.client
    client.cordon(SOUTH)
    try:
        options = {"onDisconnect": {"requeueAfter": requeue_after}} if requeue_after else {}
        template = {"command": ["sh", "-c", script]}
        job = fleet.north.submit_template(name, template, replicas=members, stopGrace="3s", **options)
        fleet.north.until_state(job, "running")
        until_ticks(fleet.north, job, 2)
    finally:
        client.cordon(SOUTH, on=False)
    assert clusters_of(fleet, job) == [NORTH]
    return job


def clusters_of(fleet: Fleet, job: str) -> list[str]:
    """Return the clusters of a job's runs, the first one first."""
    return [run.cluster for run in sorted(fleet.north.client.job(job).runs, key=lambda one: one.attempt)]


def test_a_gang_goes_on_where_its_agent_is_cut_off_and_new_jobs_go_elsewhere(fleet: Fleet) -> None:
    north, client = fleet.north, fleet.north.client
    job = submit_to_north(fleet, "brief", TICKS, 2, "10m")
    lives = containers_of(north, job)
    fleet.uplink.cut()

    until_shown(fleet, NORTH, "unreachable")
    until_shown(fleet, SOUTH, "ready")
    assert "The agent of north has been silent since" in north.until_why(job, "silent since")
    assert "its agent was last in contact" in north.trainmaster("job", job)
    code, printed = north.call("exec", f"{job}/main-0", "--", "true")
    assert code != 0
    assert "cluster north is unreachable at the moment; the job goes on there" in printed
    assert "cluster north is unreachable; below is what was kept" in north.output(job)

    other = north.submit("other", "echo here")
    assert north.until_ended(other).state is JobState.SUCCEEDED
    assert clusters_of(fleet, other) == [SOUTH]
    bound = north.submit("bound", "echo there", placement={"clusters": [NORTH]})
    north.until_why(bound, "out of contact")
    until_ticks(north, job, 10)
    assert (client.job(job).state, client.job(bound).runs) == (JobState.RUNNING, [])

    fleet.uplink.mend()
    until_shown(fleet, NORTH, "ready")
    north.until(lambda: "silent" not in north.why(job), lambda: north.why(job), 60)
    assert north.until_ended(bound).state is JobState.SUCCEEDED
    assert clusters_of(fleet, bound) == [NORTH]
    assert containers_of(north, job) == lives
    end(north, job, 2)
    ended = north.until_ended(job)
    assert (ended.state, clusters_of(fleet, job), ended.retries_used) == (JobState.SUCCEEDED, [NORTH], 0)
    assert_whole(north, job, 2)


def test_after_the_disconnect_limit_a_gang_starts_elsewhere_once_no_member_of_it_lives(fleet: Fleet) -> None:
    north, south, client = fleet.north, fleet.south, fleet.north.client
    waits = submit_to_north(fleet, "waits", TICKS, 1, None)
    lives_of_waits = containers_of(north, waits)
    job = submit_to_north(fleet, "long", STUBBORN, 2, "15s")
    with Witness(job) as witness:
        fleet.uplink.cut()
        until_shown(fleet, NORTH, "unreachable")
        assert "The agent of north has been silent since" in north.until_why(job, "silent since")
        north.until(lambda: len(client.job(job).runs) == 2, lambda: north.describe(job), 120)
        until_ticks(south, job, 2)

        first = min(client.job(job).runs, key=lambda run: run.attempt)
        assert (first.state, clusters_of(fleet, job)) == (RunState.LOST, [NORTH, SOUTH])
        assert "no contact with its cluster for longer than onDisconnect allows" in north.trainmaster("job", job)
        assert client.job(job).retries_used == 0
        lives = containers_of(south, job)
        assert (client.job(waits).state, clusters_of(fleet, waits)) == (JobState.RUNNING, [NORTH])
        assert containers_of(north, waits) == lives_of_waits

        fleet.uplink.mend()
        until_shown(fleet, NORTH, "ready")
        north.until(lambda: not pods_of_run(north, first.id), lambda: pods_of_run(north, first.id), 60)
        until_ticks(south, job, 10)
        assert containers_of(south, job) == lives
    print(f"\n{' -> '.join(' and '.join(sorted(look)) or 'none' for look in witness.looks)}")
    assert witness.looks == [{f"{job}-r1"}, frozenset(), {f"{job}-r2"}]

    for one, system, members in ((job, south, 2), (waits, north, 1)):
        end(north, one, members)
        assert north.until_ended(one).state is JobState.SUCCEEDED
        assert_whole(system, one, members)
    assert (clusters_of(fleet, job), clusters_of(fleet, waits)) == ([NORTH, SOUTH], [NORTH])


def pods_of_run(system: NodeSystem, run: str) -> str:
    return system.kubectl("-n", JOBS, "get", "pods", "-l", f"trainmaster.dev/run={run}", "-o", "name")
