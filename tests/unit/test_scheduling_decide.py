"""A cycle: which cluster is taken and why, and the reasons of those that wait."""

import pytest

from tests.unit.building import GPU, StateBuilder, gang, nodes, role, simple
from trainmaster.protocol.reasons import Check, Reason, Tier, Token
from trainmaster.protocol.states import ClusterKind, Order
from trainmaster_dispatcher.domain.weights import Weights

ANY_KIND = tuple(ClusterKind)
BIG = simple(cpu=8)


def one(builder: StateBuilder) -> Reason:
    """Return the reason of the only job that waits."""
    outcome = builder.cycle()
    assert not outcome.started
    assert outcome.plan.reasons
    return outcome.reason("j")


# -- filters, one by one

FILTERED: dict[str, tuple[StateBuilder, Check, str]] = {
    "its name": (
        StateBuilder().cluster("c", nodes()).job("j", gang(role(), clusters=("a", "b"))),
        Check.NAME,
        "the job names a, b",
    ),
    "its kind": (
        StateBuilder().cluster("c", nodes()).job("j", gang(role(), kinds=(ClusterKind.EDGE,))),
        Check.KIND,
        "the job wants edge clusters, this one is private",
    ),
    "the kinds that its queue allows": (
        StateBuilder().cluster("c", nodes(), kind=ClusterKind.PUBLIC).job("j"),
        Check.KIND,
        "its queue allows edge and private clusters, this one is public",
    ),
    "a label": (
        StateBuilder()
        .cluster("c", nodes(), labels={"region": "us"})
        .job("j", gang(role(), selector=(("region", "eu"),))),
        Check.SELECTOR,
        "the job wants region=eu, the cluster has region=us",
    ),
    "a label that it lacks": (
        StateBuilder().cluster("c", nodes()).job("j", gang(role(), selector=(("region", "eu"),))),
        Check.SELECTOR,
        "the job wants region=eu, the cluster has region=nothing",
    ),
    "a capacity report that is missing": (
        StateBuilder().cluster("c", silent=True).job("j"),
        Check.NO_REPORT,
        "its agent has not reported its capacity yet",
    ),
    "a dataset": (
        StateBuilder().cluster("c", nodes(), datasets=("c4",)).job("j", gang(role(), datasets=("c4", "pile"))),
        Check.DATASET,
        "it does not have dataset pile",
    ),
    "a capability": (
        StateBuilder().cluster("c", nodes()).job("j", gang(role(), capabilities=("gang", "numa"))),
        Check.CAPABILITY,
        "its local runtime does not offer numa",
    ),
    "its size": (
        StateBuilder().cluster("c", nodes()).job("j", BIG),
        Check.NEVER_FITS,
        "needs 8 cpu on one node, the best node has 4",
    ),
    "a cordon": (
        StateBuilder().cluster("c", nodes(), cordoned=True).job("j"),
        Check.CORDONED,
        "it is cordoned: nothing new starts there",
    ),
    "a lease that has run out": (
        StateBuilder().cluster("c", nodes(), lease=0).job("j"),
        Check.UNREACHABLE,
        "its agent is out of contact; nothing new is sent there",
    ),
    "an agent that cannot reach its own cluster": (
        StateBuilder().cluster("c", nodes(), closed="the API server does not answer").job("j"),
        Check.UNREACHABLE,
        "its agent can start nothing there now: the API server does not answer",
    ),
    "an agent that was never heard": (
        StateBuilder().cluster("c", nodes(), lease=None).job("j"),
        Check.UNREACHABLE,
        "its agent is out of contact; nothing new is sent there",
    ),
    "a return a short while ago": (
        StateBuilder().cluster("c", nodes()).cluster("d", nodes(), cordoned=True).job("j", returned_by=("c",)),
        Check.COOLING_DOWN,
        "it could not place this job a short while ago",
    ),
    "what runs there": (
        StateBuilder().cluster("c", nodes()).run("r", simple(3), on="c").job("j", simple(2)),
        Check.NO_ROOM,
        "room for 1 of the 2 members of role 'worker'",
    ),
}


@pytest.mark.parametrize(("builder", "check", "sentence"), FILTERED.values(), ids=FILTERED)
def test_a_cluster_is_ruled_out_by(builder: StateBuilder, check: Check, sentence: str) -> None:
    builder.cycle()
    verdict = next(verdict for verdict in one(builder).verdicts if verdict.cluster == "c")
    assert (verdict.check, verdict.sentence) == (check, sentence)


# -- the reason that is told

NOT_OF_THE_SCHEDULER = {
    *(Token.HELD_BY_USER, Token.SUSPENDED, Token.BACKING_OFF, Token.START_TIME, Token.DEPENDENCY, Token.UNPLACEABLE),
    *(Token.BEING_PLACED, Token.RUNNING, Token.ENDED, Token.NOT_LOOKED_AT, Token.ELEMENTS),
}
"""What follows from a job's state alone."""

REASONS: dict[str, tuple[StateBuilder, Token, Tier, str]] = {
    "there is no cluster": (StateBuilder().job("j"), Token.NO_CLUSTERS, Tier.CAPACITY, "No cluster is connected."),
    "the only cluster is not allowed": (
        StateBuilder().cluster("c", nodes()).job("j", gang(role(), clusters=("d",))),
        Token.NO_CLUSTER_ALLOWED,
        Tier.CANNOT_RUN,
        "The only cluster is not allowed for it: c: the job names d.",
    ),
    "no cluster is allowed": (
        StateBuilder().cluster("c", nodes()).cluster("e", nodes()).job("j", gang(role(), clusters=("d",))),
        Token.NO_CLUSTER_ALLOWED,
        Tier.CANNOT_RUN,
        "None of the 2 clusters is allowed for it: c: the job names d.",
    ),
    "it is larger than anything": (
        StateBuilder().cluster("c", nodes()).job("j", BIG),
        Token.TOO_LARGE,
        Tier.CANNOT_RUN,
        "It fits on no cluster, not even on an empty one; c: needs 8 cpu on one node, the best node has 4.",
    ),
    "nobody offers a feature": (
        StateBuilder().cluster("c", nodes()).cluster("d", nodes()).job("j", gang(role(), capabilities=("numa",))),
        Token.NOT_SUPPORTED,
        Tier.CANNOT_RUN,
        "No cluster offers what it asks for; c: its local runtime does not offer numa (and 1 more cluster like it).",
    ),
    "nobody has a dataset": (
        StateBuilder().cluster("c", nodes()).job("j", gang(role(), datasets=("pile",))),
        Token.NOT_SUPPORTED,
        Tier.CANNOT_RUN,
        "No cluster offers what it asks for; c: it does not have dataset pile.",
    ),
    "all is taken": (
        StateBuilder().cluster("c", nodes()).run("r", simple(4), on="c").job("j"),
        Token.INSUFFICIENT_CAPACITY,
        Tier.CAPACITY,
        "It waits for free capacity; c: needs 1 cpu on one node, the best node has 0.",
    ),
    "its clusters are out of contact": (
        StateBuilder().cluster("c", nodes(), lease=-1).job("j"),
        Token.UNREACHABLE,
        Tier.CAPACITY,
        "The clusters it could go to can start nothing now; c: its agent is out of contact; nothing new is sent there.",
    ),
    "the agents of its clusters can start nothing": (
        StateBuilder().cluster("c", nodes(), closed="the API server does not answer").job("j"),
        Token.UNREACHABLE,
        Tier.CAPACITY,
        "The clusters it could go to can start nothing now; c: its agent can start nothing there now: the API server does not answer.",
    ),
    "its clusters have not reported": (
        StateBuilder().cluster("c", silent=True).job("j"),
        Token.UNREACHABLE,
        Tier.CAPACITY,
        "The clusters it could go to can start nothing now; c: its agent has not reported its capacity yet.",
    ),
    "its clusters are closed": (
        StateBuilder().cluster("c", nodes(), cordoned=True).job("j"),
        Token.CORDONED,
        Tier.CAPACITY,
        "The clusters it could go to are closed to new jobs; c: it is cordoned: nothing new starts there.",
    ),
    "it was refused where it could go": (
        StateBuilder().cluster("c", nodes()).cluster("d", nodes(), lease=-1).job("j", returned_by=("c",)),
        Token.COOLING_DOWN,
        Tier.CAPACITY,
        "The clusters it could go to have just refused it; c: it could not place this job a short while ago.",
    ),
    "its queue is held": (
        StateBuilder().queue("main", held=True).cluster("c", nodes()).job("j"),
        Token.QUEUE_HELD,
        Tier.HELD,
        "Queue main is held.",
    ),
    "its queue starts jobs at other hours": (
        StateBuilder()
        .queue("main", starts_when={"hours": [{"start": "06:00", "end": "08:00", "timeZone": "Europe/Berlin"}]})
        .cluster("c", nodes())
        .job("j"),
        Token.OUTSIDE_HOURS,
        Tier.HELD,
        "Queue main starts jobs at 06:00-08:00 Europe/Berlin only; the next time is 1970-01-01T05:00:00Z.",
    ),
    "its queue starts jobs where little runs": (
        StateBuilder()
        .queue("main", starts_when={"utilisation": {"below": 0.5}})
        .cluster("c", nodes(1, cpu=4))
        .run("r", simple(2), on="c")
        .job("j"),
        Token.START_CONDITION,
        Tier.CAPACITY,
        "Its queue starts jobs under conditions; c: 50% of it is in use, queue main starts jobs there below 50%.",
    ),
    "its queue is at its limit": (
        StateBuilder().queue("main", limits={"cpu": 1}).cluster("c", nodes()).run("r", on="c").job("j"),
        Token.QUEUE_LIMIT,
        Tier.QUOTA,
        "Queue main uses 1 of its 1 cpu; this job needs 1 more.",
    ),
    "its user has as many runs as one user may have": (
        StateBuilder()
        .queue("main", max_running_per_user=1)
        .cluster("c", nodes())
        .run("r", on="c", user="ann")
        .job("j", user="ann"),
        Token.USER_LIMIT,
        Tier.QUOTA,
        "User ann runs 1 of at most 1 jobs in queue main.",
    ),
    "its queue has borrowed as much as it may": (
        StateBuilder().queue("main", borrowing={"cpu": 1}).cluster("c", nodes()).run("r", on="c").job("j"),
        Token.BORROWING_LIMIT,
        Tier.QUOTA,
        "Queue main uses 1 cpu; 0 are guaranteed to it and it may borrow 1; this job needs 1 more.",
    ),
    "another queue keeps what is free": (
        StateBuilder().queue("other", guaranteed={"cpu": 4}, lending={"cpu": 0}).cluster("c", nodes()).job("j"),
        Token.KEPT_FOR_OTHERS,
        Tier.QUOTA,
        "Queue other keeps 4 cpu that it does not lend; 0 is left for others, and this job needs 1.",
    ),
    "it would delay another job": (
        StateBuilder()
        .cluster("c", nodes())
        .run("r", simple(cpu=3, limit=60), on="c", of="high")
        .job("big", simple(cpu=4), of="high")
        .job("j"),
        Token.RESERVED,
        Tier.CAPACITY,
        "It would delay a job that waits for more; c: it is kept for big-h7yf64e from 1970-01-01T00:17:40Z on,"
        " and this job has no time limit.",
    ),
    "nodes are reserved for a queue": (
        StateBuilder()
        .queue("team")
        .cluster("c", nodes())
        .reserved("weekend", 1, queue="team", starts=60, ends=3600)
        .job("j"),
        Token.RESERVED_FOR_QUEUE,
        Tier.CAPACITY,
        "It would use nodes that are reserved; c: 1 node is reserved for queue team from 1970-01-01T00:17:40Z to"
        " 1970-01-01T01:16:40Z (weekend), and this job has no time limit.",
    ),
    "its queue keeps its order": (
        StateBuilder()
        .queue("main", order=Order.STRICT)
        .cluster("c", nodes())
        .run("r", simple(cpu=3), on="c", of="high")
        .job("big", simple(cpu=4), of="high")
        .job("j"),
        Token.BEHIND_OTHERS,
        Tier.QUOTA,
        "Queue main keeps its order, and big-h7yf64e is before it.",
    ),
}


@pytest.mark.parametrize(("builder", "token", "tier", "sentence"), REASONS.values(), ids=REASONS)
def test_a_job_waits_because(builder: StateBuilder, token: Token, tier: Tier, sentence: str) -> None:
    reason = one(builder)
    assert (reason.token, reason.tier, reason.sentence) == (token, tier, sentence)
    assert reason.advice.endswith(".")


def test_every_token_of_the_scheduler_is_reached_by_a_scenario_above() -> None:
    elsewhere = {Token.INTERNAL_ERROR, Token.PREEMPTING, Token.BURST_NOT_YET, Token.BURST_LIMIT, Token.BURST_BUDGET}
    reached = {token for _, token, _, _ in REASONS.values()} | elsewhere
    said = "each token has a scenario in REASONS or is in NOT_OF_THE_SCHEDULER"
    assert reached == set(Token) - NOT_OF_THE_SCHEDULER, said


NEARER: dict[str, tuple[StateBuilder, Token]] = {
    "no room before too large": (
        StateBuilder().cluster("c", nodes(1, cpu=8)).run("r", BIG, on="c").cluster("d", nodes()).job("j", BIG),
        Token.INSUFFICIENT_CAPACITY,
    ),
    "no contact before a cordon": (
        StateBuilder().cluster("c", nodes(), cordoned=True).cluster("d", nodes(), lease=-1).job("j"),
        Token.UNREACHABLE,
    ),
    "a cordon before too large": (
        StateBuilder().cluster("c", nodes(1, cpu=8), cordoned=True).cluster("d", nodes()).job("j", BIG),
        Token.CORDONED,
    ),
    "too large before not supported": (
        StateBuilder()
        .cluster("c", nodes())
        .cluster("d", nodes(), capabilities=())
        .job("j", gang(role(2, cpu=8), capabilities=("gang",))),
        Token.TOO_LARGE,
    ),
    "not supported before not allowed": (
        StateBuilder()
        .cluster("c", nodes(), kind=ClusterKind.PUBLIC)
        .cluster("d", nodes())
        .job("j", gang(role(), capabilities=("numa",))),
        Token.NOT_SUPPORTED,
    ),
}


@pytest.mark.parametrize(("builder", "token"), NEARER.values(), ids=NEARER)
def test_the_cluster_nearest_to_a_start_gives_the_reason(builder: StateBuilder, token: Token) -> None:
    assert one(builder).token is token


def test_every_cluster_has_a_verdict_by_name() -> None:
    builder = (
        StateBuilder()
        .cluster("z", nodes(), cordoned=True)
        .cluster("a", silent=True)
        .cluster("m", nodes(1, cpu="0.5"))
        .job("j")
    )
    verdicts = one(builder).verdicts
    assert [(verdict.cluster, verdict.check) for verdict in verdicts] == [
        ("a", Check.NO_REPORT),
        ("m", Check.NEVER_FITS),
        ("z", Check.CORDONED),
    ]


# -- returns

RETURNED: dict[str, tuple[StateBuilder, list[str], dict[str, str]]] = {
    "a job returned by its only cluster is held": (
        StateBuilder().cluster("c", nodes()).job("j", returned_by=("c",)),
        [],
        {"j": "every cluster it could go to returned it: c"},
    ),
    "a job returned by all clusters is held": (
        StateBuilder().cluster("c", nodes()).cluster("d", nodes()).job("j", returned_by=("c", "d")),
        [],
        {"j": "every cluster it could go to returned it: c, d"},
    ),
    "clusters that it could never go to do not count": (
        StateBuilder()
        .cluster("c", nodes())
        .cluster("p", nodes(), kind=ClusterKind.PUBLIC)
        .job("j", returned_by=("c",)),
        [],
        {"j": "every cluster it could go to returned it: c"},
    ),
    "a job that another cluster can take goes there": (
        StateBuilder().cluster("c", nodes()).cluster("d", nodes()).job("j", returned_by=("c",)),
        ["j"],
        {},
    ),
    "a job that another cluster will take waits for it": (
        StateBuilder().cluster("c", nodes()).cluster("d", nodes(), cordoned=True).job("j", returned_by=("c",)),
        [],
        {},
    ),
    "others of its kind are not left out": (
        StateBuilder().cluster("c", nodes()).job("j", returned_by=("c",)).job("other"),
        ["other"],
        {"j": "every cluster it could go to returned it: c"},
    ),
}


@pytest.mark.parametrize(("builder", "started", "held"), RETURNED.values(), ids=RETURNED)
def test_returned(builder: StateBuilder, started: list[str], held: dict[str, str]) -> None:
    outcome = builder.cycle()
    assert (outcome.started, outcome.held) == (started, held)


def test_a_cluster_that_returned_a_job_is_tried_again_after_the_pause() -> None:
    builder = StateBuilder().cluster("c", nodes()).cluster("d", nodes(), cordoned=True).job("j", returned_by=("c",))
    assert builder.cycle().reason("j").token is Token.COOLING_DOWN
    builder.state.set_avoided({})
    assert builder.cycle().where == {"j": "c"}


def test_a_job_that_found_no_room_on_any_cluster_waits_for_the_end_of_the_pause() -> None:
    builder = StateBuilder().cluster("c", nodes()).job("j", returned_by=("c",)).job("k", returned_by=("c",))
    builder.state.set_avoided(dict(builder.state.avoided), {builder.ids["j"]})
    outcome = builder.cycle()
    assert outcome.held == {"k": "every cluster it could go to returned it: c"}, "the other one was refused"
    assert outcome.reason("j").token is Token.COOLING_DOWN
    builder.state.set_avoided({})
    assert builder.cycle().started == ["j", "k"]


# -- scores

CHOSEN: dict[str, tuple[StateBuilder, str, str]] = {
    "the only one": (StateBuilder().cluster("c", nodes()).job("j"), "c", "c is the only cluster where it fits now"),
    "private before edge": (
        StateBuilder().cluster("e", nodes(), kind=ClusterKind.EDGE).cluster("p", nodes()).job("j"),
        "p",
        "p before e: private clusters are preferred to edge ones",
    ),
    "edge before public": (
        StateBuilder()
        .queue("main", kinds=ANY_KIND)
        .cluster("p", nodes(), kind=ClusterKind.PUBLIC)
        .cluster("e", nodes(1, cpu=100), kind=ClusterKind.EDGE)
        .job("j"),
        "e",
        "e before p: edge clusters are preferred to public ones",
    ),
    "the fuller of two": (
        StateBuilder().cluster("full", nodes(1, cpu=2)).cluster("empty", nodes(1, cpu=64)).job("j"),
        "full",
        "full before empty: it packs tighter there",
    ),
    "the one that is fuller by its runs": (
        StateBuilder().cluster("a", nodes(2)).cluster("b", nodes(2)).run("r", simple(4), on="a").job("j"),
        "a",
        "a before b: it packs tighter there",
    ),
    "the kind where it weighs more than the packing": (
        StateBuilder().cluster("e", nodes(1, cpu=1), kind=ClusterKind.EDGE).cluster("p", nodes(1, cpu=2)).job("j"),
        "p",
        "p before e: private clusters are preferred to edge ones",
    ),
    "the packing where it weighs more than the kind": (
        StateBuilder().cluster("e", nodes(1, cpu=1), kind=ClusterKind.EDGE).cluster("p", nodes(1, cpu=100)).job("j"),
        "e",
        "e before p: it packs tighter there",
    ),
    "by name when they are as good": (
        StateBuilder().cluster("a", nodes()).cluster("b", nodes()).job("j"),
        "a",
        "a before b: both are as good, and their names decide",
    ),
}


@pytest.mark.parametrize(("builder", "cluster", "why"), CHOSEN.values(), ids=CHOSEN)
def test_the_cluster_that_is_taken(builder: StateBuilder, cluster: str, why: str) -> None:
    outcome = builder.cycle()
    assert outcome.where == {"j": cluster}
    assert outcome.start("j").why == why


def test_the_table_shows_what_each_candidate_scored() -> None:
    builder = StateBuilder().cluster("a", nodes(1, cpu=4)).cluster("e", nodes(1, cpu=2), kind=ClusterKind.EDGE).job("j")
    builder.profile("normal", Weights(kind=2, packing=1, money=1))
    assert builder.cycle().start("j").table == (
        {"cluster": "a", "score": 3.25, "kind": 1.0, "packing": 0.25, "money": 1.0},
        {"cluster": "e", "score": 2.7, "kind": 0.6, "packing": 0.5, "money": 1.0},
    )


def test_jobs_without_needs_are_scored_too() -> None:
    builder = StateBuilder().cluster("a", nodes()).job("j", gang(role(cpu=0)))
    assert builder.cycle().where == {"j": "a"}


# -- elastic roles, plans, limits of a cycle


def test_an_elastic_job_starts_whole_where_it_can_and_small_where_it_must() -> None:
    shape = gang(role(1, "launcher"), role(6, least=2))
    builder = StateBuilder().cluster("c", nodes(3)).jobs(2, "j", shape)
    outcome = builder.cycle()
    assert outcome.start("j1").sizes == {"launcher": 1, "worker": 6}
    assert outcome.start("j2").sizes == {"launcher": 1, "worker": 2}
    assert outcome.start("j2").placement == {"nodes": {"launcher": 1, "worker": 2}}


def test_the_smallest_size_decides_whether_it_could_ever_fit() -> None:
    builder = StateBuilder().cluster("c", nodes(1)).job("j", gang(role(100, least=5)))
    assert one(builder).sentence.endswith("room for 4 of the 5 members of role 'worker'.")


def test_the_advice_on_what_is_blocked_is_of_the_smallest_size() -> None:
    builder = StateBuilder().cluster("c", nodes(1)).run("r", simple(3), on="c").job("j", gang(role(100, least=2)))
    assert one(builder).sentence == "It waits for free capacity; c: room for 1 of the 2 members of role 'worker'."


def test_a_cycle_has_a_limit_and_says_nothing_of_those_it_did_not_look_at() -> None:
    builder = StateBuilder().cluster("c", nodes(9)).jobs(5, "j").job("other", simple(2))
    outcome = builder.cycle(most_starts=2)
    assert outcome.started == ["j1", "j2"]
    assert outcome.plan.reasons == {}
    assert outcome.plan.is_cut
    assert outcome.plan.sentence == "2 jobs start, and others were not looked at"


def test_the_next_cycle_goes_on_where_the_last_one_stopped() -> None:
    builder = StateBuilder().cluster("c", nodes(1)).jobs(6, "j")
    assert builder.applied().started == ["j1", "j2", "j3", "j4"]
    assert builder.applied().started == []
    assert builder.ended("j2").applied().started == ["j5"]


def test_classes_of_which_all_jobs_start_have_no_reason() -> None:
    outcome = StateBuilder().cluster("c", nodes(1)).jobs(3, "j").job("g", simple(gpu=1)).cycle()
    assert outcome.plan.reasons
    assert outcome.reason("g").sentence.endswith(f"needs 1 {GPU} on one node, the best node has 0.")


# -- what the reason names is what keeps it


def test_changing_what_the_reason_names_leads_to_the_next_reason_and_at_last_to_a_start() -> None:
    builder = (
        StateBuilder().queue("main", held=True, limits={"cpu": 2}).cluster("c", silent=True, cordoned=True, lease=-1)
    )
    builder.job("j", simple(2))
    path = [one(builder).token]
    builder.queue("main", limits={"cpu": 1})
    path.append(one(builder).token)
    builder.queue("main", limits={"cpu": 2})
    path.append(one(builder).token)
    builder.cluster("c", nodes(1, cpu=1), cordoned=True, lease=-1)
    path.append(one(builder).token)
    builder.cluster("c", nodes(1, cpu=2), cordoned=True, lease=-1)
    path.append(one(builder).token)
    builder.cluster("c", nodes(1, cpu=2), lease=-1)
    path.append(one(builder).token)
    builder.cluster("c", nodes(1, cpu=2)).run("r", on="c", queue="main")
    path.append(one(builder).token)
    builder.queue("main")
    path.append(one(builder).token)
    builder.ended("r")
    assert path == [
        Token.QUEUE_HELD,
        Token.QUEUE_LIMIT,
        Token.UNREACHABLE,
        Token.TOO_LARGE,
        Token.CORDONED,
        Token.UNREACHABLE,
        Token.QUEUE_LIMIT,
        Token.INSUFFICIENT_CAPACITY,
    ]
    assert builder.cycle().where == {"j": "c"}


def test_what_a_cluster_lacks_is_told_as_it_is_now_though_it_was_asked_for_a_start_in_between() -> None:
    wanted, half = simple(cpu=2), simple(cpu="500m")
    builder = StateBuilder().cluster("a", nodes()).cluster("b", nodes()).job("j", wanted)
    builder.run("r1", simple(cpu=3), on="a").run("r2", simple(cpu=3), on="b")
    assert builder.cycle().verdict("j", "a").sentence == "needs 2 cpu on one node, the best node has 1"
    builder.run("r3", half, on="a").ended("r2")
    assert "a: needs 2 cpu on one node, the best node has 0.5" in builder.cycle().start("j").why
    builder.run("r4", simple(cpu=3), on="b")
    assert builder.cycle().verdict("j", "a").sentence == "needs 2 cpu on one node, the best node has 0.5"


def test_what_a_cluster_lacks_is_told_by_its_nodes_of_now_though_it_lacks_as_much_as_before() -> None:
    wanted = simple(cpu=2)
    builder = StateBuilder().cluster("a", nodes()).job("j", wanted).run("r1", simple(cpu=3), on="a")
    assert builder.cycle().reason("j").token is Token.INSUFFICIENT_CAPACITY
    builder.ended("r1").cluster("a", nodes(cpu=1))
    assert builder.cycle().reason("j").token is Token.TOO_LARGE
