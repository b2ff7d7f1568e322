"""The simulated cluster, moment by moment."""

from math import inf
from typing import Any

import pytest

from tests.unit.simulation_building import cluster, ended_at, group, order, role, state, stop
from trainmaster.fake_cluster.cluster import FakeCluster
from trainmaster.protocol.agent import StartRun
from trainmaster.protocol.states import FailureCategory, RunState, StopCause

LONG = {"run-time": "1h"}


def free_cpu(at: FakeCluster) -> int:
    return sum(one.count * one.free["cpu"] for one in at.report().groups)


# Run times and ends


def test_a_job_without_labels_runs_for_the_default_time() -> None:
    sim = cluster(defaults={"runTime": "7s"})
    sim.start(order(), 100.0)
    assert (state(sim), sim.next_event_at()) == (RunState.RUNNING, 107.0)
    sim.advance(107.0)
    assert state(sim) is RunState.SUCCEEDED


def test_speed_shortens_times() -> None:
    sim = cluster(speed=10)
    sim.start(order(labels={"run-time": "20s", "start-time": "10s"}), 0.0)
    assert state(sim) is RunState.PENDING
    sim.advance(1.0)
    assert state(sim) is RunState.RUNNING
    assert ended_at(sim) == 3.0


def test_a_range_gives_each_run_its_own_time_within_it() -> None:
    sim = cluster(group(cpu=100))
    for number in range(50):
        sim.start(order(f"r{number}", labels={"run-time": "1s-5s"}), 0.0)
    ends = {ended_at(sim, f"r{number}") for number in range(50)}
    assert len(ends) > 1
    while sim.next_event_at() < inf:
        sim.advance(sim.next_event_at())
    lengths = {run.ended_at for run in sim.runs.values()}
    assert len(lengths) == 50
    assert all(1.0 <= length <= 5.0 for length in lengths)


def test_failures_come_about_as_often_as_their_chance_says() -> None:
    sim = cluster(group(cpu=1000))
    for number in range(1000):
        sim.start(order(f"r{number}", labels={"run-time": "1s", "fail": "0.1", "exit-code": "3"}), 0.0)
    sim.advance(1.0)
    failed = [run for run in sim.runs.values() if run.state is RunState.FAILED]
    assert 70 <= len(failed) <= 130
    assert {(run.verdict.exit_code, run.verdict.category) for run in failed if run.verdict} == {
        (3, FailureCategory.EXIT)
    }


@pytest.mark.parametrize(
    ("labels", "attempt", "ends"),
    [
        ({"fail-runs": "2"}, 1, RunState.FAILED),
        ({"fail-runs": "2"}, 2, RunState.FAILED),
        ({"fail-runs": "2"}, 3, RunState.SUCCEEDED),
        ({"exit-code": "4"}, 9, RunState.FAILED),
        ({"fail": "0", "exit-code": "4"}, 1, RunState.SUCCEEDED),
    ],
    ids=["first of two", "second of two", "third", "how without how often is always", "never"],
)
def test_which_attempts_fail(labels: dict[str, str], attempt: int, ends: RunState) -> None:
    sim = cluster()
    sim.start(order(labels={"run-time": "1s", **labels}, attempt=attempt), 0.0)
    sim.advance(1.0)
    assert state(sim) is ends


@pytest.mark.parametrize(
    ("labels", "category", "exit_code", "signal"),
    [
        ({"exit-code": "7"}, FailureCategory.EXIT, 7, None),
        ({"signal": "9"}, FailureCategory.SIGNAL, None, 9),
        ({"category": "oom", "exit-code": "137"}, FailureCategory.OOM, 137, None),
    ],
    ids=["exit", "signal", "oom"],
)
def test_how_a_run_fails(
    labels: dict[str, str], category: FailureCategory, exit_code: int | None, signal: int | None
) -> None:
    sim = cluster()
    sim.start(order(labels={"run-time": "1s", **labels}), 0.0)
    ended_at(sim)
    verdict = sim.runs["a"].verdict
    assert verdict is not None
    assert (verdict.category, verdict.exit_code, verdict.signal) == (category, exit_code, signal)


@pytest.mark.parametrize("bad", [{"run-time": "soon"}, {"fail": "2"}, {"no-such": "x"}, {"category": "bad-luck"}])
def test_a_label_that_means_nothing_fails_the_run_and_is_named(bad: dict[str, str]) -> None:
    sim = cluster()
    sim.start(order(labels=bad), 0.0)
    run = sim.runs["a"]
    assert run.verdict is not None
    assert (run.state, run.verdict.category) == (RunState.FAILED, FailureCategory.CONFIG)
    assert next(iter(bad)) in run.message


def test_a_role_may_behave_otherwise_than_its_job() -> None:
    sim = cluster()
    roles = (role("ps", env={"SIM_RUN_TIME": "9s"}), role("worker", 2))
    sim.start(order("a", *roles, labels={"run-time": "2s"}), 0.0)
    assert ended_at(sim) == 9.0


def test_a_member_fails_and_starts_again_alone_as_often_as_it_may() -> None:
    labels = {"run-time": "9s", "member-failures": "2"}
    sim = cluster()
    sim.start(order("may", labels=labels, memberFailure={"action": "restartMember", "limit": 2}), 0.0)
    sim.start(order("may-not", labels=labels, memberFailure={"action": "restartMember", "limit": 1}), 0.0)
    sim.start(order("never", labels=labels), 0.0)
    assert ended_at(sim, "may") == 9.0
    assert [one.restarts for one in sim.runs["may"].members()] == [2]
    assert {run: (state(sim, run), sim.runs[run].ended_at) for run in ("may-not", "never")} == {
        "may-not": (RunState.FAILED, 6.0),
        "never": (RunState.FAILED, 3.0),
    }


def test_a_member_waits_before_it_starts_again_and_does_not_live_meanwhile() -> None:
    sim = cluster()
    again = {"action": "restartMember", "limit": 2, "backOff": "10s"}
    sim.start(order(labels={"run-time": "9s", "member-failures": "2"}, memberFailure=again), 0.0)
    run = sim.runs["a"]
    seen = []
    for at in (2.9, 3.0, 12.9, 13.0, 16.0, 26.0):
        sim.advance(at)
        (member,) = run.members()
        seen.append((run.living(at), member.state, member.restarts))
    assert seen == [
        (1, "running", 0),
        (0, "pending", 0),
        (0, "pending", 0),
        (1, "running", 1),
        (0, "pending", 1),
        (1, "running", 2),
    ]
    assert ended_at(sim) == 29.0
    assert state(sim) is RunState.SUCCEEDED


def test_a_gang_ends_waits_and_starts_again_as_often_as_it_may() -> None:
    roles = (role("bad", env={"SIM_MEMBER_FAILURES": "2"}), role("worker", 2, env={"SIM_STOP_TIME": "1s"}))
    again = {"action": "restartGang", "limit": 2, "backOff": "5s"}
    sim = cluster()
    sim.start(order("may", *roles, labels={"run-time": "9s"}, memberFailure=again), 0.0)
    sim.start(order("may-not", *roles, labels={"run-time": "9s"}, memberFailure=again | {"limit": 1}), 0.0)
    run = sim.runs["may"]
    for at, living in ((2.9, 3), (3.0, 2), (4.0, 0), (8.9, 0), (9.0, 3)):
        sim.advance(at)
        assert run.living(at) == living
    # Three seconds until the first failure, one until all have ended, five of back-off; then 4.5, 1 and 5; then 9.
    assert ended_at(sim, "may") == 28.5
    assert state(sim, "may") is RunState.SUCCEEDED
    assert [one.restarts for one in run.members()] == [2, 2, 2]
    assert (state(sim, "may-not"), sim.runs["may-not"].ended_at) == (RunState.FAILED, 14.5)


def test_a_time_limit_ends_a_run_that_waits_to_start_again() -> None:
    sim = cluster()
    again = {"action": "restartGang", "backOff": "1h"}
    sim.start(order(labels={"run-time": "9s", "member-failures": "1"}, memberFailure=again, timeLimit="20s"), 0.0)
    assert ended_at(sim) == 20.0
    assert sim.runs["a"].verdict is not None
    assert sim.runs["a"].verdict.category is FailureCategory.DEADLINE


def test_the_role_that_decides_ends_the_others() -> None:
    roles = (role("launcher", env={"SIM_RUN_TIME": "4s"}), role("worker", 2, env={"SIM_STOP_TIME": "3s"}))
    sim = cluster()
    sim.start(order("a", *roles, labels=LONG, success={"role": "launcher"}), 0.0)
    sim.advance(4.0)
    assert (state(sim), sim.runs["a"].living(4.0)) == (RunState.STOPPING, 2)
    assert ended_at(sim) == 7.0
    assert state(sim) is RunState.SUCCEEDED
    assert [one.state for one in sim.runs["a"].members()] == ["succeeded", "stopped", "stopped"]


def test_a_failure_ends_the_other_members_within_the_grace() -> None:
    sim = cluster()
    bad = role("bad", env={"SIM_RUN_TIME": "1s", "SIM_EXIT_CODE": "1"})
    slow = role("slow", 2, env={"SIM_RUN_TIME": "1h", "SIM_STOP_TIME": "30s"})
    sim.start(order("a", bad, slow, stopGrace="5s"), 0.0)
    sim.advance(1.0)
    assert (state(sim), sim.runs["a"].living(1.0)) == (RunState.STOPPING, 2)
    assert ended_at(sim) == 6.0
    assert [(one.role, one.state) for one in sim.runs["a"].members()] == [
        ("bad", "failed"),
        ("slow", "stopped"),
        ("slow", "stopped"),
    ]


def test_finish_ends_a_run_at_the_word_of_its_driver_even_before_it_runs() -> None:
    sim = cluster(group(count=1, cpu=1))
    sim.start(order("a", labels={"run-time": "forever"}), 0.0)
    sim.start(order("b", labels={"run-time": "forever"}), 0.0)
    sim.finish("b", 1.0)
    sim.finish("a", 2.0)
    assert {run: state(sim, run) for run in "ab"} == dict.fromkeys("ab", RunState.SUCCEEDED)
    assert sim.runs["b"].ended_at == 2.0


# Gangs and places


def test_a_gang_has_all_its_places_or_none() -> None:
    sim = cluster()
    sim.start(order("a", role(replicas=5), labels=LONG), 0.0)
    sim.start(order("b", role(replicas=4), labels=LONG), 0.0)
    assert (state(sim, "a"), state(sim, "b")) == (RunState.RUNNING, RunState.PENDING)
    assert sim.runs["b"].placement is None
    assert "there is room for 3" in sim.runs["b"].message
    sim.stop(stop("a", grace=0), 1.0)
    assert sim.runs["b"].placement == {"cpu": {"worker": 4}}


def test_a_gang_that_waits_too_long_is_returned_and_frees_nothing_of_others() -> None:
    sim = cluster()
    sim.start(order("a", role(replicas=8), labels=LONG), 0.0)
    sim.start(order("b", timeout=5.0), 0.0)
    sim.advance(4.9)
    assert state(sim, "b") is RunState.PENDING
    sim.advance(5.0)
    assert state(sim, "b") is RunState.RETURNED
    assert "needs 1 CPU on one node, the freest node has 0" in sim.runs["b"].message


def test_one_that_does_not_fit_lets_others_pass() -> None:
    sim = cluster()
    sim.start(order("a", role(replicas=6), labels=LONG), 0.0)
    sim.start(order("large", role(cpu=4), labels=LONG), 0.0)
    sim.start(order("small", role(cpu=1), labels=LONG), 0.0)
    assert {run: state(sim, run) for run in ("large", "small")} == {
        "large": RunState.PENDING,
        "small": RunState.RUNNING,
    }


def test_pins_say_which_node_group_is_meant() -> None:
    sim = cluster(group("left"), group("right"))
    sim.start(order("a", pins={"right": {"worker": 1}}), 0.0)
    assert sim.runs["a"].placement == {"right": {"worker": 1}}


@pytest.mark.parametrize(
    "pins", [{"gone": {"worker": 1}}, {"left": {"worker": 7}}, {"left": {"boss": 1}}, {"left": {}}]
)
def test_pins_that_do_not_hold_any_more_are_only_a_hint(pins: dict[str, dict[str, int]]) -> None:
    sim = cluster(group("left"), group("right"))
    sim.start(order("a", pins=pins), 0.0)
    assert state(sim) is RunState.RUNNING
    assert sum(sum(roles.values()) for roles in (sim.runs["a"].placement or {}).values()) == 1


def test_jobs_without_devices_leave_devices_to_others() -> None:
    sim = cluster(group("gpu", gpus=8), group("cpu"))
    sim.start(order("a", role(replicas=8)), 0.0)
    sim.start(order("b", role(gpus=8)), 0.0)
    assert sim.runs["a"].placement == {"cpu": {"worker": 8}}
    assert sim.runs["b"].placement == {"gpu": {"worker": 1}}


def test_a_required_level_keeps_a_gang_within_one_domain() -> None:
    racks = group(count=4, topology={"zone": 2, "rack": 2})
    sim = cluster(racks)
    sim.start(order("a", role(cpu=3), labels=LONG), 0.0)
    sim.start(order("b", role(replicas=2, cpu=3), labels=LONG, topology={"required": "zone"}), 0.0)
    assert set(sim.runs["b"].placement or ()) <= {"cpu-2-1", "cpu-2-2"}
    sim.start(order("c", role(replicas=2, cpu=3), labels=LONG, topology={"required": "rack"}), 0.0)
    assert state(sim, "c") is RunState.RETURNED
    assert "rack" in sim.runs["c"].message


def test_nodes_are_spread_over_the_narrowest_domains() -> None:
    sim = cluster(group(count=10, topology={"zone": 2, "rack": 2}))
    assert [(one.name, one.count, one.topology) for one in sim.report().groups] == [
        ("cpu-1-1", 3, (("zone", "zone-1"), ("rack", "rack-1"))),
        ("cpu-1-2", 3, (("zone", "zone-1"), ("rack", "rack-2"))),
        ("cpu-2-1", 2, (("zone", "zone-2"), ("rack", "rack-1"))),
        ("cpu-2-2", 2, (("zone", "zone-2"), ("rack", "rack-2"))),
    ]


def test_free_amounts_are_reported_rounded_down_to_the_grid() -> None:
    odd = {"name": "odd", "count": 1, "resources": {"cpu": "3900m", "memory": "7900Mi", "nvidia.com/gpu": "3"}}
    sim = cluster(odd)
    assert sim.report().groups[0].free == {"cpu": 3500, "memory": 7 * 2**30, "nvidia.com/gpu": 3}
    sim.start(order("a", role(cpu=3), role("rest", cpu=0)), 0.0)
    assert state(sim) is RunState.RUNNING


# Stops and silence


@pytest.mark.parametrize(
    ("dies_after", "grace", "gone"), [("0s", 10.0, 1.0), ("3s", 10.0, 4.0), ("forever", 10.0, 11.0)]
)
def test_members_die_in_their_own_time_and_at_the_end_of_the_grace(dies_after: str, grace: float, gone: float) -> None:
    sim = cluster()
    sim.start(order(labels={**LONG, "stop-time": dies_after}), 0.0)
    sim.stop(stop(grace=grace, cause=StopCause.PREEMPT), 1.0)
    assert ended_at(sim) == gone
    assert state(sim) is RunState.PREEMPTED


def silent(disconnect: float, **fields: Any) -> FakeCluster:
    sim = cluster()
    sim.renew(0.0, 0.0)
    sim.start(order(labels={**LONG, "stop-time": "forever"}, disconnect=disconnect, **fields), 0.0)
    return sim


def test_without_news_all_members_are_gone_before_the_limit_grace_included() -> None:
    sim = silent(20.0, stopGrace="4s")
    sim.advance(14.9)
    assert state(sim) is RunState.RUNNING
    sim.advance(15.0)
    assert state(sim) is RunState.STOPPING
    assert ended_at(sim) == 19.0
    assert state(sim) is RunState.LOST


def test_news_put_the_limit_off() -> None:
    sim = silent(20.0, stopGrace="4s")
    for now in range(10, 100, 10):
        sim.renew(now - 1.0, now)
    assert state(sim) is RunState.RUNNING
    assert ended_at(sim) == 89.0 + 19.0


def test_a_stop_with_a_long_grace_does_not_outlive_the_limit() -> None:
    sim = silent(20.0, stopGrace="4s")
    sim.stop(stop(grace=3600.0), 1.0)
    assert ended_at(sim) == 19.0
    assert state(sim) is RunState.CANCELLED


# Nodes that come and go


def test_foreign_pods_are_subtracted_while_they_are_there() -> None:
    foreign = {"resources": {"cpu": "1"}, "every": "100s", "lasts": "40s"}
    sim = cluster(group(count=1, foreign=[foreign]))
    seen = {}
    for _ in range(20):
        seen[free_cpu(sim)] = [one.name for one in sim.report().groups]
        sim.advance(sim.next_event_at())
    assert set(seen) == {4000, 3000}
    assert seen[4000] == ["cpu"]
    assert seen[3000] != ["cpu"]


def test_foreign_pods_never_take_what_our_members_have() -> None:
    foreign = {"resources": {"cpu": "3"}, "every": "10s", "lasts": "9s"}
    sim = cluster(group(count=1, foreign=[foreign]))
    while free_cpu(sim) < 4000:
        sim.advance(sim.next_event_at())
    sim.start(order("a", role(cpu=2), labels=LONG), sim.now)
    sim.advance(sim.now + 100)
    assert (state(sim), free_cpu(sim)) == (RunState.RUNNING, 4000)


def test_a_run_says_so_when_its_node_is_reported_in_another_group() -> None:
    foreign = {"resources": {"cpu": "1"}, "every": "100s", "lasts": "40s"}
    sim = cluster(group(count=1, foreign=[foreign]))
    sim.start(order(labels=LONG), 0.0)
    before = sim.runs["a"].seq, set(sim.runs["a"].placement or ())
    while set(sim.runs["a"].placement or ()) == before[1]:
        sim.advance(sim.next_event_at())
    assert sim.runs["a"].seq > before[0]
    assert set(sim.runs["a"].placement or ()) == {one.name for one in sim.report().groups}


def test_a_failed_node_fails_its_runs_and_is_gone_until_it_recovers() -> None:
    sim = cluster()
    sim.start(order("both", role(replicas=5), labels=LONG), 0.0)
    sim.start(order("here", role(cpu=3), labels=LONG), 0.0)
    node = next(one.node for one in sim.runs["here"].members())
    other = next(name for name in ("cpu-0", "cpu-1") if name != node)
    sim.fail_node(other, 1.0)
    verdict = sim.runs["both"].verdict
    assert verdict is not None
    assert verdict.category is FailureCategory.NODE_LOST
    assert (state(sim, "here"), free_cpu(sim)) == (RunState.RUNNING, 4000)
    sim.recover_node(other, 2.0)
    assert free_cpu(sim) == 8000


def test_nodes_fail_by_themselves_and_come_back() -> None:
    sim = cluster(group(count=4, failures={"every": "1000s", "lasts": "100s"}))
    counts = set()
    for _ in range(100):
        sim.advance(sim.next_event_at())
        counts.add(sum(one.count for one in sim.report().groups))
    assert 3 in counts
    assert 4 in counts


def elastic(count: int = 1, most: int = 3) -> FakeCluster:
    return cluster(group(count=count, provisioning={"most": most, "delay": "60s", "idle": "300s"}))


def test_nodes_are_provisioned_for_a_gang_that_waits_and_go_when_idle() -> None:
    sim = elastic()
    sim.start(order("a", role(replicas=3, cpu=4), labels={"run-time": "100s"}, timeout=600.0), 0.0)
    assert state(sim) is RunState.PENDING
    sim.advance(60.0)
    assert (state(sim), free_cpu(sim)) == (RunState.RUNNING, 12000)
    assert ended_at(sim) == 160.0
    sim.advance(459.0)
    assert free_cpu(sim) == 12000
    sim.advance(460.0)
    assert free_cpu(sim) == 4000


def test_a_node_that_is_used_again_does_not_go() -> None:
    sim = elastic(count=0, most=1)
    sim.start(order("a", labels={"run-time": "100s"}, timeout=600.0), 0.0)
    sim.advance(160.0)
    sim.start(order("b", labels={"run-time": "400s"}), 400.0)
    sim.advance(800.0)
    assert (state(sim, "b"), free_cpu(sim)) == (RunState.SUCCEEDED, 4000)
    sim.advance(1100.0)
    assert free_cpu(sim) == 0


def test_what_even_all_provisioned_nodes_cannot_hold_is_returned_at_once() -> None:
    sim = elastic()
    sim.start(order("a", role(replicas=4, cpu=4)), 0.0)
    assert state(sim) is RunState.RETURNED
    assert "can never fit" in sim.runs["a"].message


# Small things


def test_what_is_over_is_not_kept_by_its_timers() -> None:
    sim = cluster(group(cpu=1000))
    for number in range(20_000):
        sim.start(order(f"r{number}", labels=LONG), 0.0)
        sim.stop(stop(f"r{number}", grace=0), 0.0)
        sim.forget(f"r{number}", 0.0)
    assert len(sim._timers) < 10_000


def test_changed_runs_are_told_once() -> None:
    sim = cluster()
    sim.start(order(), 0.0)
    assert set(sim.take_changed()) == {"a"}
    assert sim.take_changed() == {}
    sim.advance(3600.0)
    assert set(sim.take_changed()) == {"a"}


def test_a_spec_that_this_version_does_not_know_is_returned() -> None:
    sim = cluster()
    unknown: StartRun = order("a", fromTheFuture=True)
    sim.start(unknown, 0.0)
    assert state(sim) is RunState.RETURNED
    assert "fromTheFuture" in sim.runs["a"].message
