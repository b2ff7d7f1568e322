"""Samples of use: their sums over time, their way into reports, and the texts that they are read from."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.protocol.errors import Code, ProblemError, UnreachableError
from trainmaster.protocol.member_use import MOST_USE_MEMBERS, RoleUse, UsePush
from trainmaster.protocol.states import RunState
from trainmaster_agent.runtime.kubernetes.gpu_metrics import gpus_in
from trainmaster_agent.runtime.kubernetes.member_use import PodAmounts, amounts_of_metrics
from trainmaster_agent.runtime.local.member_use import CpuReading, ticks_between
from trainmaster_agent.runtime.port import MemberUse, RunStatus, UseReading
from trainmaster_agent.use_reports import UseReports, parts_of, runs_of
from trainmaster_dispatcher.domain.member_use import (
    MemberValues,
    RequestedAmounts,
    RunSums,
    measured_seconds,
    requested_by_role,
    requested_of,
    sample,
)

EACH = {"main": RequestedAmounts(2000, 2**32, 4), "side": RequestedAmounts(500, 0, 0)}
_VALUE = st.none() | st.integers(0, 10**6)


@st.composite
def roles_in_use(draw: st.DrawFn) -> list[RoleUse]:
    """Draw the use of members of two roles; any value may be unknown, and any list left out."""
    found = []
    for role in draw(st.sets(st.sampled_from(("main", "side")))):
        indexes = sorted(draw(st.sets(st.integers(0, 50), min_size=1, max_size=12)))

        def column(most: int, many: int = len(indexes)) -> tuple[int | None, ...]:
            return tuple(draw(st.just([]) | st.lists(st.none() | st.integers(0, most), min_size=many, max_size=many)))

        found.append(
            RoleUse(
                role=role,
                indexes=tuple(indexes),
                cpu=column(10**6),
                memory=column(2**40),
                gpu=column(100),
                gpu_memory=column(2**40),
            )
        )
    return found


@given(st.lists(st.tuples(roles_in_use(), st.floats(0, 1000)), min_size=1, max_size=5))
def test_sums_and_peaks_are_those_of_all_samples(samples: list[tuple[list[RoleUse], float]]) -> None:
    sums, values = RunSums(), MemberValues((), (), (), (), (), ())
    memory: list[int] = []
    used = 0.0
    for roles, seconds in samples:
        sums, values = sample(roles, EACH, sums, values, seconds)
        memory += [one for role in roles for one in role.memory if one is not None]
        used += seconds * sum(one for role in roles for one in role.cpu if one is not None) / 1000
    assert sums.cpu_seconds == pytest.approx(used)
    assert sums.peak_memory == (max(memory) or None if memory else None)
    last = samples[-1][0]
    members = [(role.role, index) for role in last for index in role.indexes]
    assert values.members() == members
    for column in (values.cpu, values.memory, values.peak_memory, values.gpu, values.gpu_memory):
        assert len(column) in (0, len(members))
    assert (sums.cpu is None) == all(one is None for role in last for one in role.cpu)
    assert (sums.cpu is None) == (sums.requested_cpu is None)


def test_a_role_that_the_job_does_not_have_is_left_out() -> None:
    sums, values = sample([RoleUse(role="other", indexes=(0,), cpu=(5,))], EACH, RunSums(), None, 1.0)
    assert (sums.members, sums.cpu, values.places) == (0, None, [])


def test_a_member_that_comes_back_has_its_peak_and_a_new_one_has_none() -> None:
    first = sample([RoleUse(role="main", indexes=(0, 1), memory=(100, 900))], EACH, RunSums(), None, 0)
    _, values = sample([RoleUse(role="main", indexes=(1, 2), memory=(50, 70))], EACH, first[0], first[1], 0)
    assert (values.members(), values.peak_memory) == ([("main", 1), ("main", 2)], [900, 70])


@pytest.mark.parametrize(
    ("since_last", "since_start", "expected"),
    [(None, None, 0), (None, 10, 10), (None, 500, 30), (31, 500, 31), (90, 500, 90), (4000, 5000, 90), (-5, 100, 0)],
)
def test_a_sample_stands_for_a_few_intervals_at_most(
    since_last: float | None, since_start: float | None, expected: float
) -> None:
    assert measured_seconds(since_last, since_start, 30) == expected


def test_requests_are_read_of_the_shape() -> None:
    shape = {
        "roles": [{"name": "main", "needs": {"cpu": 2000, "memory": 8, "nvidia.com/gpu": 2, "vendor.com/fpga": 1}}]
    }
    each = requested_by_role(shape)
    assert each == {"main": RequestedAmounts(2000, 8, 2)}
    assert requested_of(each, {"main": 3, "gone": 1}) == RequestedAmounts(6000, 24, 6)


_TICKS = st.integers(0, 10**6)


@given(st.dictionaries(st.integers(2, 9), _TICKS), st.dictionaries(st.integers(2, 9), _TICKS), _TICKS, _TICKS)
def test_used_time_is_never_negative(
    before: dict[int, int], after: dict[int, int], ended_before: int, ended_after: int
) -> None:
    one = CpuReading(0, (1, 1), sum(before.values()) + ended_before, {(pid, 0): ticks for pid, ticks in before.items()})
    other = CpuReading(1, (1, 1), sum(after.values()) + ended_after, {(pid, 0): ticks for pid, ticks in after.items()})
    assert ticks_between(one, other) >= 0


def test_time_of_a_child_that_nobody_waited_for_hides_nothing() -> None:
    before = CpuReading(0, (1, 1), 1000, {(1, 1): 10, (2, 5): 990})
    after = CpuReading(1, (1, 1), 60, {(1, 1): 60})
    assert ticks_between(before, after) == 50
    waited_for = CpuReading(1, (1, 1), 1070, {(1, 1): 60})
    assert ticks_between(before, waited_for) == 70


@given(
    st.lists(
        st.tuples(
            st.sampled_from(("a", "b")),
            st.integers(0, 3000),
            st.none() | st.floats(0, 1e7),
            st.none() | st.integers(0, 2**60),
        ),
        max_size=50,
    )
)
def test_reports_have_each_member_once_and_fit_the_protocol(found: list[tuple[str, int, Any, Any]]) -> None:
    members = [MemberUse("run", role, index, cpu=cpu, memory=memory) for role, index, cpu, memory in found]
    runs = list(runs_of(members))
    places = [(role.role, index) for run in runs for role in run.roles for index in role.indexes]
    assert sorted(places) == sorted({(role, index) for role, index, _, _ in found})
    body = UsePush(session="s", seconds=30, runs=tuple(runs)).model_dump_json(by_alias=True)
    assert UsePush.model_validate_json(body).runs == tuple(runs)


def test_many_members_are_sent_in_several_reports() -> None:
    members = [MemberUse(f"run-{number % 7}", "main", number // 7, cpu=1.0) for number in range(7 * 4000)]
    parts = list(parts_of(runs_of(members)))
    assert [sum(run.members for run in part) for part in parts] == [8000, 8000, 8000, 4000]
    small = runs_of(MemberUse(f"run-{number}", "main", 0, cpu=1.0) for number in range(2500))
    assert [len(part) for part in parts_of(small)] == [1000, 1000, 500]
    (large,) = runs_of(MemberUse("r", "m", index, cpu=1.0) for index in range(20_000))
    assert large.members == MOST_USE_MEMBERS


class Sender:
    """Takes reports; ``refusals`` are raised first."""

    def __init__(self, *refusals: Exception) -> None:
        self.taken: asyncio.Queue[UsePush] = asyncio.Queue()
        self.refusals = list(refusals)

    async def report_use(self, body: UsePush) -> None:
        if self.refusals:
            raise self.refusals.pop(0)
        self.taken.put_nowait(body)


class Running:
    """The part of a runtime that reports need, with one running run and one that has ended."""

    def held(self) -> dict[str, RunStatus]:
        return {
            "a-r1": RunStatus("a-r1", 1, 1, RunState.RUNNING),
            "b-r1": RunStatus("b-r1", 1, 1, RunState.SUCCEEDED),
        }

    async def member_use(self) -> UseReading:
        return UseReading(
            (MemberUse("a-r1", "main", 0, cpu=0.5), MemberUse("b-r1", "main", 0, cpu=9.0)), "no GPUs are known"
        )


async def test_reports_go_on_after_errors_and_name_running_runs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainmaster_agent.use_reports.random.uniform", lambda *_: 0.0)
    sender = Sender(UnreachableError("away"), ProblemError(Code.SESSION_SUPERSEDED, "new"), RuntimeError("unexpected"))
    reports = UseReports(sender, Running(), "session", 1)  # type: ignore[arg-type]
    reports.set_taken(False)
    reports._seconds = 0.01  # type: ignore[assignment]
    monkeypatch.setattr("trainmaster_agent.use_reports.UsePush", lambda **fields: UsePush(**{**fields, "seconds": 1}))
    reports.set_taken(True)
    async with asyncio.timeout(30):
        body = await sender.taken.get()
    await reports.close()
    assert [run.run for run in body.runs] == ["a-r1"]
    assert body.missing == "no GPUs are known"


async def test_nothing_is_sent_where_it_is_switched_off_or_not_taken() -> None:
    for seconds, is_taken in ((0, True), (30, False)):
        reports = UseReports(Sender(), Running(), "session", seconds)  # type: ignore[arg-type]
        reports.set_taken(is_taken)
        assert reports._task is None


def test_pod_metrics_are_added_up() -> None:
    def item(*usages: dict[str, str]) -> dict[str, Any]:
        return {"containers": [{"name": str(number), "usage": usage} for number, usage in enumerate(usages)]}

    assert amounts_of_metrics(
        item({"cpu": "1500m", "memory": "1Gi"}, {"cpu": "250000000n", "memory": "512Mi"})
    ) == PodAmounts(1.75, 3 * 2**29)
    assert amounts_of_metrics(item({"cpu": "odd", "memory": "1Ki"}, {"cpu": "1"})) == PodAmounts(None, 1024)
    assert amounts_of_metrics({}) == PodAmounts(None, None)


DCGM = """\
# HELP DCGM_FI_DEV_GPU_UTIL GPU utilization (in %).
# TYPE DCGM_FI_DEV_GPU_UTIL gauge
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-1",container="main",namespace="jobs",pod="a"} 90
DCGM_FI_DEV_GPU_UTIL{gpu="1",UUID="GPU-2",container="main",namespace="jobs",pod="a"} 10
DCGM_FI_DEV_GPU_UTIL{gpu="2",UUID="GPU-3",container="",namespace="",pod=""} 0
DCGM_FI_DEV_GPU_UTIL{gpu="3",UUID="GPU-4",container="main",namespace="jobs",pod="b"} NaN
# TYPE DCGM_FI_DEV_FB_USED gauge
DCGM_FI_DEV_FB_USED{gpu="0",container="main",namespace="jobs",pod="a"} 1000
DCGM_FI_DEV_FB_USED{gpu="1",container="main",namespace="jobs",pod="a"} 24
DCGM_FI_DEV_SM_CLOCK{gpu="0",container="main",namespace="jobs",pod="a"} 1410
"""


def test_gpus_of_a_pod_are_averaged_and_their_memory_is_added() -> None:
    found = gpus_in(DCGM)
    assert (found["jobs", "a"].percent, found["jobs", "a"].memory) == (50.0, 2**30)
    assert list(found) == [("jobs", "a")]


@given(st.text(max_size=400) | st.lists(st.sampled_from(DCGM.splitlines()), max_size=12).map("\n".join))
def test_whatever_an_exporter_says_is_read_or_refused(text: str) -> None:
    try:
        found = gpus_in(text)
    except ValueError:
        return
    assert all(one.percent is None or 0 <= one.percent <= 100 for one in found.values())
    assert all(one.memory is None or one.memory >= 0 for one in found.values())


@pytest.mark.parametrize(
    ("memory", "limit", "near"), [(95, 100, False), (96, 100, True), (100, None, None), (None, 100, None), (5, 0, None)]
)
def test_a_member_is_near_its_limit_above_95_percent_of_it(
    memory: int | None, limit: int | None, near: bool | None
) -> None:
    assert MemberUse("a-1234567-r1", "main", 0, memory=memory, memory_limit=limit).near_limit is near


def test_near_misses_add_up_by_member_and_stay_where_a_sample_does_not_know() -> None:
    sums, values = RunSums(), None
    for near in ((1, 0), (1, None), (0, 0)):
        sums, values = sample(
            [RoleUse(role="main", indexes=(0, 1), near_limit=near, restarts=(0, 3))], EACH, sums, values, 1
        )
    assert values is not None
    assert (list(values.near_misses), sums.near_misses, sums.restarts) == ([2, 0], 2, 3)
