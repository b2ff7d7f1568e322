"""What would have happened: workloads through the real engine on simulated clusters."""

from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.textbook_easy import Job as BookJob
from tests.textbook_easy import Policy, simulate
from tests.unit.whatif_building import GPU, SHORTER_THAN_ITS_LIMIT, declared, machine, ran, table
from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.protocol.prices import PriceBookSpec
from trainmaster.protocol.simulations import SimulationOrder
from trainmaster.protocol.states import ClusterKind, Order
from trainmaster.protocol.tenants import ClusterSpec, PriorityClassSpec, QueueSpec
from trainmaster_dispatcher.whatif.engine import StudyOutcome
from trainmaster_dispatcher.whatif.figures import figures_of, jain, quantile
from trainmaster_dispatcher.whatif.scenario import scenario
from trainmaster_dispatcher.whatif.scenario import simulate as simulate_scenario
from trainmaster_dispatcher.whatif.trace import read_swf


def starts(outcome: StudyOutcome) -> list[float]:
    return [record.first_start for record in outcome.records]


def test_jobs_wait_for_room_and_small_ones_pass_where_they_delay_nobody() -> None:
    outcome = ran(table("0,100,3", "10,50,4", "20,30,1", "30,200,1", limits="exact"))
    # The second waits for all four nodes; the third ends before that, the fourth would not.
    assert starts(outcome) == [0, 100, 20, 150]
    figures = figures_of(outcome)
    assert figures.ends == {"succeeded": 4}
    assert (figures.waits.mean, figures.waits.most, figures.waits.p50) == ((0 + 90 + 0 + 120) / 4, 120, 45)
    assert figures.seconds == 350
    (cluster,) = figures.clusters
    assert cluster.used == {"cpu": round((300 + 200 + 30 + 200) / (4 * 350), 4)}


jobs = st.lists(st.tuples(st.integers(0, 300), st.integers(1, 200), st.integers(1, 4)), min_size=1, max_size=25)


@settings(max_examples=60, deadline=None)
@given(jobs, st.sampled_from([(Policy.FCFS, Order.STRICT), (Policy.EASY, Order.BEST_EFFORT)]))
def test_every_job_starts_when_the_textbook_says(
    found: list[tuple[int, int, int]], policy: tuple[Policy, Order]
) -> None:
    """True run times are the limits."""
    trace = table(*(f"{submit},{run},{members}" for submit, run, members in found), limits="none")
    trace = read_swf(
        "log",
        (
            f"{number} {job.submit} 0 {job.run} {job.spec.members} 0 0 {job.spec.members} {job.run} 0 0 0 0 0 0 0 0 0"
            for number, job in enumerate(trace.jobs, start=1)
        ),
        "main",
        "exact",
    )
    book = [BookJob(job.number, job.submit, job.run, job.spec.members) for job in trace.jobs]
    queue = QueueSpec(path="main", order=policy[1])
    outcome = ran(trace, of=declared(queue))
    assert {record.job.number: record.first_start for record in outcome.records} == simulate(book, 4, policy[0])


def test_the_same_seed_gives_the_same_and_failures_are_tried_again() -> None:
    failing = machine(8, group={"failures": {"every": "5m", "chance": 0.5, "lasts": "1m"}})
    trace = table(*(f"{at},600,2" for at in range(0, 3600, 120)))
    first, again = (figures_of(ran(trace, failing, seed=7)) for _ in range(2))
    assert first == again
    assert figures_of(ran(trace, failing, seed=8)) != first
    assert first.ends.get("failed", 0) > 0, "without retries a job whose node fails has failed"


def test_a_higher_class_takes_the_place_of_a_lower_one_which_runs_again() -> None:
    classes = (PriorityClassSpec(name="low", value=0, default=True), PriorityClassSpec(name="high", value=9))
    trace = table("0,100,4,low", "10,30,4,high", heading="submit,run,members,class")
    outcome = ran(trace, of=declared(classes=classes))
    low, high = outcome.records
    assert outcome.preemptions == 1
    assert (low.first_start, high.first_start) == (0, 10)
    assert low.last_start == 40
    assert low.ended_at == 140, "its work began anew"
    assert [(stay.placed_at, stay.ended_at) for stay in low.stays] == [(0, 10), (40, 140)]


def test_what_it_costs_is_what_the_price_books_say() -> None:
    book = PriceBookSpec.model_validate(
        {"name": "book", "onDemand": {"cpu": 3.6, "devices": {f"{GPU}@product=H100": 36}}}
    )
    cluster = ClusterSpec(name="cloud", cluster_kind=ClusterKind.PUBLIC, price_book="book")
    gpus = machine(2, "cloud", kind="public", more={GPU: "2"}, group={"labels": {"nvidia.com/gpu.product": "H100"}})
    trace = table("0,100,2,1", "0,50,1,2", heading="submit,run,members,gpu")
    figures = figures_of(ran(trace, gpus, of=declared(clusters=[cluster], books=[book])))
    # 2 members for 100 s with a core and a GPU each; then one with a core and two GPUs for 50 s.
    assert figures.cost == pytest.approx(2 * 100 * (0.001 + 0.01) + 50 * (0.001 + 0.02))
    assert figures.clusters[0].cost == figures.cost


def test_jobs_that_nothing_can_hold_are_told_as_waiting() -> None:
    figures = figures_of(ran(table("0,10,5", "0,10,4")))
    assert figures.ends == {"succeeded": 1, "waiting": 1}
    assert (figures.waits.jobs, figures.waits.started) == (2, 1)


def test_queues_are_told_apart_and_limits_hold() -> None:
    queues = (QueueSpec(path="a"), QueueSpec.model_validate({"path": "b", "limits": {"cpu": 1}}))
    trace = table(*(f"0,60,1,{queue}" for queue in "abab"), heading="submit,run,members,queue")
    figures = figures_of(ran(trace, of=declared(*queues)))
    assert figures.by_queue["a"].mean == 0
    assert figures.by_queue["b"].mean == 30, "one of the two waits for the other"
    assert figures.fairness < 1


def test_time_between_submissions_can_be_divided() -> None:
    assert [job.submit for job in table("100,1,1", "200,1,1", "400,1,1").faster(2).jobs] == [0, 50, 150]


LOG = """; a comment
1 100 5 60 4 -1 -1 4 120 -1 1 1 1 1 1 -1 -1 -1
2 90 5 30 -1 -1 -1 2 -1 -1 1 1 1 1 1 -1 -1 -1
3 95 5 -1 4 -1 -1 4 60 -1 0 1 1 1 1 -1 -1 -1
"""


def test_a_log_in_the_standard_workload_format() -> None:
    trace = read_swf("log.swf", LOG.splitlines(), "main")
    jobs = [(job.submit, job.run, job.spec.members, job.spec.time_limit) for job in trace.jobs]
    assert jobs == [(0, 30, 2, None), (10, 60, 4, "120s")]
    assert trace.left_out == 1
    exact = read_swf("log.swf", LOG.splitlines(), "main", "exact")
    assert [job.spec.time_limit for job in exact.jobs] == ["30.0009765625s", "60.0009765625s"]


@pytest.mark.parametrize(
    ("heading", "line", "path", "words"),
    [
        ("submit,run,colour", "0,1,red", "jobs.csv: line 1", "there is no column 'colour'"),
        ("submit", "0", "jobs.csv: line 1", "the column 'run' is missing"),
        ("submit,run", "x,1", "jobs.csv: line 2", "submit: 'x' is neither a number of seconds nor a duration"),
        ("submit,run,members", "0,1,two", "jobs.csv: line 2", "members: 'two' is no whole number"),
        (
            "submit,run,cpu",
            "0,1,lots",
            "jobs.csv: line 2: roles[0].template.resources.cpu",
            "is not a Kubernetes quantity",
        ),
    ],
)
def test_a_table_with_a_mistake_is_refused_with_its_line(heading: str, line: str, path: str, words: str) -> None:
    with pytest.raises(ProblemError) as refused:
        table(line, heading=heading)
    assert refused.value.mistakes[0].path == path
    assert words in refused.value.mistakes[0].message


def test_a_log_with_a_bad_line_is_refused_with_its_number() -> None:
    with pytest.raises(ProblemError) as refused:
        read_swf("log.swf", ["; fine", "1 2 3"], "main")
    assert refused.value.mistakes[0].path == "log.swf: line 2"


@pytest.mark.parametrize(
    ("heading", "line", "code"),
    [
        ("submit,run,queue", "0,1,none", Code.UNKNOWN_QUEUE),
        ("submit,run,class", "0,1,none", Code.UNKNOWN_PRIORITY_CLASS),
    ],
)
def test_a_job_that_names_what_is_not_there_is_refused(heading: str, line: str, code: Code) -> None:
    with pytest.raises(ProblemError) as refused:
        ran(table(line, heading=heading))
    assert refused.value.code is code


def test_figures_by_hand() -> None:
    assert quantile([1.0, 2.0, 3.0, 4.0], 0.5) == 2.5
    assert quantile([7.0], 0.95) == 7.0
    assert jain([1, 1, 1]) == 1
    assert jain([1, 0, 0, 0]) == 0.25
    assert jain([]) == 1
    assert ran(table("0,10,5")).records[0].first_start == inf


def test_a_request_may_turn_predictions_off() -> None:
    fleet = {"clusters": [{"name": "own", "groups": [{"name": "nodes", "count": 2, "resources": {"cpu": "2"}}]}]}
    waits = {}
    for predictions in (True, False):
        spec = {"workload": {"csv": SHORTER_THAN_ITS_LIMIT}, "fleet": fleet, "alone": True, "predictions": predictions}
        order = SimulationOrder.model_validate({"spec": spec, "installation": {}})
        (case,) = simulate_scenario(scenario(order), "", "EUR").result["cases"]
        waits[predictions] = case["waits"]["meanSeconds"]
    assert waits == {True: 190 / 5, False: (190 + 190) / 5}
