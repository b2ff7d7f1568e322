"""The job specification: what is valid, what each mistake says, and that the stored form means the same."""

import json
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from trainmaster.protocol.durations import parse_duration
from trainmaster.protocol.jobs import AffinityTerm, JobSpec, RequeueAfter, Toleration
from trainmaster.protocol.states import ClusterKind, FailureCategory
from trainmaster.protocol.validation_errors import mistakes_of
from trainmaster_dispatcher.domain.shapes import Shape, shape_bytes, shape_from, shape_of

SMALLEST = """
name: hello
queue: main
roles: [{name: main, template: {command: [echo, hello]}}]
"""
LARGEST = """
kind: Job
name: bert-large
queue: research/nlp/pretraining
priorityClass: batch
priority: -5
labels: {team: nlp, example.org/run: "7"}
roles:
  - name: launcher
    template: {image: "busybox:1", command: [mpirun], resources: {cpu: 1}}
  - name: worker
    replicas: 8
    minReplicas: 4
    memberFailure: {action: restartGang, limit: 1}
    template:
      image: registry.example.org/train@sha256:00
      command: [python, train.py]
      args: ["--lr", "0.1"]
      env: {NCCL_DEBUG: INFO}
      workingDir: /work
      resources: {cpu: 500m, memory: 4Gi, nvidia.com/gpu: 8}
      ports: [{name: rdzv, port: 29500}]
      nodeSelector: {gpu.product: h100}
      nodeAffinity: [{key: cpus, operator: Gt, values: ["16"]}]
      tolerations: [{key: gpu, operator: Exists, effect: NoSchedule}]
minMember: 5
topology: {required: rack, preferred: block, numa: bestEffort, exclusive: node}
placement: {clusters: [a], kinds: [private, edge], selector: {region: eu}, datasets: [c4], emulatedGang: false}
timeLimit: 2h
stopGrace: 30
retries: {limit: 3, exitCodes: [1, 137], categories: [exit, oom], backOff: 1s, mostBackOff: 1m}
memberFailure: {action: restartMember, limit: 2, backOff: 5s}
success: {role: launcher}
onDisconnect: {requeueAfter: 15m}
notify: [{url: "https://example.org/hook", states: [failed]}]
suspend: true
"""


def spec(text: str = SMALLEST, **changes: Any) -> JobSpec:
    return JobSpec.model_validate({**yaml.safe_load(text), **changes})


def worker(**fields: Any) -> list[dict[str, Any]]:
    return [{"name": "main", "template": {}, **fields}]


def template(**fields: Any) -> list[dict[str, Any]]:
    return worker(template=fields)


def test_the_smallest_job_has_sensible_defaults() -> None:
    job = spec()
    assert (job.members, job.priority, job.retries.limit, job.suspend) == (1, 0, 0, False)
    assert (job.on_disconnect, job.time_limit, job.min_member) == (None, None, None)
    assert parse_duration(job.stop_grace) == 10
    assert set(job.to_wire()) == {"name", "queue", "roles"}


def test_every_field_can_be_given_in_yaml() -> None:
    job = spec(LARGEST)
    assert job.members == 9
    assert job.roles[1].template is not None
    assert job.roles[1].template.amounts == {"cpu": 500, "memory": 4 * 2**30, "nvidia.com/gpu": 8}
    assert job.on_disconnect == RequeueAfter(requeue_after="15m")
    assert job.placement.kinds == (ClusterKind.PRIVATE, ClusterKind.EDGE)
    assert job.stop_grace == "30s"
    assert JobSpec.model_validate(job.to_wire()) == job


def test_a_whole_pod_may_stand_for_a_template() -> None:
    pod = {"spec": {"containers": [{"name": "main", "image": "x", "resources": {"requests": {"cpu": "2"}}}]}}
    assert spec(roles=[{"name": "main", "podTemplate": pod}]).roles[0].pod_template == pod


def test_wait_is_a_way_to_disconnect() -> None:
    assert spec(onDisconnect="wait").on_disconnect == "wait"


UNKNOWN: dict[str, tuple[dict[str, Any], str, str]] = {
    "at the top": ({"replicas": 2}, "replicas", "roles[].replicas"),
    "in a role": ({"roles": worker(image="x")}, "roles[0].image", "roles[].template.image"),
    "in a template": ({"roles": template(gpus=1)}, "roles[0].template.gpus", "gpu"),
    "a resource in a template": (
        {"roles": template(memory="4Gi")},
        "roles[0].template.memory",
        "roles[].template.resources.memory",
    ),
    "a resource in a role": ({"roles": worker(cpus=2)}, "roles[0].cpus", "roles[].template.resources.cpu"),
    "in a port": (
        {"roles": template(ports=[{"name": "a", "port": 1, "hostPort": 1}])},
        "roles[0].template.ports[0].hostPort",
        "port",
    ),
    "in the placement": ({"placement": {"cluster": "a"}}, "placement.cluster", "clusters"),
    "in the retries": ({"retries": {"max": 3}}, "retries.max", ""),
    "in the topology": ({"topology": {"level": "rack"}}, "topology.level", ""),
    "in another way of writing": ({"time_limit": "1h"}, "time_limit", "timeLimit"),
    "with a wrong letter": ({"retires": {}}, "retires", "retries"),
    "in a policy's name": ({"roles": worker(member_failure={})}, "roles[0].member_failure", "memberFailure"),
    "in a profile": ({"placement": {"profile": {"mony": 1}}}, "placement.profile.mony", "money"),
    "in a mapping of no field": ({"onDisconnect": {"requeue": "1m"}}, "onDisconnect.requeue", "requeueAfter"),
    "in a notification": ({"notify": [{"url": "https://a", "when": []}]}, "notify[0].when", ""),
}


@pytest.mark.parametrize(("change", "path", "known"), UNKNOWN.values(), ids=UNKNOWN)
def test_an_unknown_field_is_a_mistake_at_its_path_with_the_field_that_is_meant(
    change: dict[str, Any], path: str, known: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        spec(**change)
    message = "this field is not known" + (f"; did you mean {known}?" if known else "")
    assert (path, message) in [(item.path, item.message) for item in mistakes_of(caught.value)]


MISTAKES: dict[str, tuple[dict[str, Any], str, str]] = {
    "success of a role that is not there": (
        {"success": {"role": "boss"}},
        "",
        "success.role 'boss' is no role of the job; there are: main",
    ),
    "success of a role that may be empty": (
        {"success": {"role": "main"}, "roles": worker(minReplicas=0)},
        "",
        "keeps at least one member",
    ),
    "a back-off of a day": ({"memberFailure": {"backOff": "1d"}}, "memberFailure.backOff", "at most 1h"),
    "a back-off of a day in a role": (
        {"roles": worker(memberFailure={"backOff": "1d"})},
        "roles[0].memberFailure.backOff",
        "at most 1h",
    ),
    "an action that is none": ({"memberFailure": {"action": "restartAll"}}, "memberFailure.action", "restartGang"),
    "no name": ({"name": ""}, "name", "1 to 24"),
    "a name of 25 letters": ({"name": "a" * 25}, "name", "1 to 24"),
    "a name in capitals": ({"name": "Bert"}, "name", "a-z"),
    "a name that begins with a dash": ({"name": "-a"}, "name", "a-z"),
    "a name that ends with a dash": ({"name": "a-"}, "name", "a-z"),
    "a name in other letters": ({"name": "\u00e9t\u00e9"}, "name", "a-z"),
    "a name with a line end": ({"name": "a\n"}, "name", "a-z"),
    "an empty part of the queue": ({"queue": "a//b"}, "queue", "queue path"),
    "a queue eleven deep": ({"queue": "/".join("abcdefghijk")}, "queue", "1 to 10 parts"),
    "a queue with dots": ({"queue": "a/../b"}, "queue", "queue path"),
    "a priority beyond 1000": ({"priority": 1001}, "priority", "1000"),
    "another kind": ({"kind": "CronJob"}, "kind", "Job"),
    "no roles": ({"roles": []}, "", "1 to 16 roles"),
    "seventeen roles": ({"roles": [{"name": f"r{n}", "template": {}} for n in range(17)]}, "roles", "at most 16"),
    "two roles of one name": ({"roles": worker() + worker()}, "roles", "two roles have the name 'main'"),
    "a role name of 13 letters": ({"roles": worker(name="a" * 13)}, "roles[0].name", "1 to 12"),
    "a role without members": ({"roles": worker(replicas=0)}, "roles[0].replicas", "1"),
    "a role with too many members": ({"roles": worker(replicas=10_001)}, "roles[0].replicas", "10000"),
    "too many members together": (
        {"roles": [{"name": f"r{n}", "replicas": 6000, "template": {}} for n in (1, 2)]},
        "",
        "12000 members",
    ),
    "neither template nor pod": ({"roles": [{"name": "a"}]}, "roles[0]", "exactly one"),
    "both template and pod": ({"roles": worker(podTemplate={})}, "roles[0]", "exactly one"),
    "minReplicas above replicas": ({"roles": worker(minReplicas=2)}, "roles[0]", "minReplicas 2"),
    "minMember above all members": ({"minMember": 2}, "", "minMember 2"),
    "minMember 0": ({"minMember": 0}, "minMember", "1"),
    "more CPU than can be counted, though as bytes it could": (
        {"roles": template(resources={"cpu": "1E"})},
        "roles[0].template.resources",
        "too large",
    ),
    "a reserved variable": (
        {"roles": template(env={"TRAINMASTER_RANK": "0"})},
        "roles[0].template.env",
        "set by the agent",
    ),
    "a variable with an equals sign": (
        {"roles": template(env={"A=B": "1"})},
        "roles[0].template.env.A=B",
        "the name must be letters",
    ),
    "a quantity that is none": (
        {"roles": template(resources={"cpu": "x"})},
        "roles[0].template.resources.cpu",
        "quantity",
    ),
    "more CPU than can be counted": (
        {"roles": template(resources={"cpu": "8Ei"})},
        "roles[0].template.resources.cpu",
        "too large",
    ),
    "two ports of one number": (
        {"roles": template(ports=[{"name": "a", "port": 80}, {"name": "b", "port": 80}])},
        "roles[0].template.ports",
        "same name or number",
    ),
    "port 0": ({"roles": template(ports=[{"name": "a", "port": 0}])}, "roles[0].template.ports[0].port", "1"),
    "In without values": (
        {"roles": template(nodeAffinity=[{"key": "a", "operator": "In"}])},
        "roles[0].template.nodeAffinity[0]",
        "at least one value",
    ),
    "Exists with values": (
        {"roles": template(nodeAffinity=[{"key": "a", "operator": "Exists", "values": ["b"]}])},
        "roles[0].template.nodeAffinity[0]",
        "no values",
    ),
    "a label that is none": ({"labels": {"a b": "c"}}, 'labels["a b"]', "the name must be letters"),
    "a label's value that is none": ({"labels": {"a": "-"}}, "labels.a", "must be empty, or letters"),
    "a time limit that is none": ({"timeLimit": "soon"}, "timeLimit", "not a duration"),
    "a disconnect limit below a second": (
        {"onDisconnect": {"requeueAfter": "1ms"}},
        "onDisconnect.requeueAfter",
        "at least 1s",
    ),
    "an exit code of 0": ({"retries": {"exitCodes": [0]}}, "retries.exitCodes[0]", "1"),
    "a webhook that is no web address": ({"notify": [{"url": "ftp://a"}]}, "notify[0].url", "must be an address"),
    "a kind of cluster that is none": ({"placement": {"kinds": ["cloud"]}}, "placement.kinds[0]", "private"),
}


@pytest.mark.parametrize(("change", "path", "words"), MISTAKES.values(), ids=MISTAKES)
def test_this_is_a_mistake(change: dict[str, Any], path: str, words: str) -> None:
    with pytest.raises(ValidationError) as caught:
        spec(**change)
    found = {mistake.path: mistake.message for mistake in mistakes_of(caught.value)}
    assert path in found
    assert words in found[path]


@pytest.mark.parametrize("number", ["--5", "", "-", "1.5", "five", "\u0665", "9" * 30, "9" * 5_000, "5\n"])
@pytest.mark.parametrize("operator", ["Gt", "Lt"])
def test_greater_and_less_take_one_whole_number(operator: str, number: str) -> None:
    with pytest.raises(ValidationError, match=r"one whole number|at most 63"):
        AffinityTerm.model_validate({"key": "a", "operator": operator, "values": [number]})


TERMS: dict[str, tuple[str, tuple[str, ...], list[str | None], list[str | None]]] = {
    "in": ("In", ("x", "y"), ["x", "y"], ["z", "", None]),
    "not in, also where there is no label": ("NotIn", ("x",), ["z", None], ["x"]),
    "exists": ("Exists", (), ["x", ""], [None]),
    "does not exist": ("DoesNotExist", (), [None], ["x", ""]),
    "greater": ("Gt", ("-3",), ["-2", "0", "16"], ["-3", "-4", "x", "--5", "", None]),
    "less": ("Lt", ("16",), ["15", "-1"], ["16", "17", "--5", "x", None]),
}


@pytest.mark.parametrize(("operator", "values", "yes", "no"), TERMS.values(), ids=TERMS)
def test_affinity_follows_kubernetes(
    operator: str, values: tuple[str, ...], yes: list[str | None], no: list[str | None]
) -> None:
    term = AffinityTerm.model_validate({"key": "a", "operator": operator, "values": values})
    for value in yes:
        assert term.holds({} if value is None else {"a": value, "b": "c"}), value
    for value in no:
        assert not term.holds({} if value is None else {"a": value, "b": "c"}), value


TOLERATIONS: dict[str, tuple[dict[str, str], bool]] = {
    "the very taint": ({"key": "gpu", "value": "yes", "effect": "NoSchedule"}, True),
    "any effect": ({"key": "gpu", "value": "yes"}, True),
    "another effect": ({"key": "gpu", "value": "yes", "effect": "NoExecute"}, False),
    "another value": ({"key": "gpu", "value": "no"}, False),
    "another key": ({"key": "cpu", "value": "yes"}, False),
    "that the key exists": ({"key": "gpu", "operator": "Exists"}, True),
    "that another key exists": ({"key": "cpu", "operator": "Exists"}, False),
    "everything": ({"operator": "Exists"}, True),
    "nothing": ({}, False),
}


@pytest.mark.parametrize(("fields", "yes"), TOLERATIONS.values(), ids=TOLERATIONS)
def test_tolerations_follow_kubernetes(fields: dict[str, str], yes: bool) -> None:
    assert Toleration.model_validate(fields).tolerates("gpu", "yes", "NoSchedule") is yes


# -- the stored form

words = st.from_regex(r"[a-z]([-a-z0-9]{0,9}[a-z0-9])?", fullmatch=True)
quantities = st.sampled_from(["0", "1", "500m", "1.5", "4Gi", "1e3", "100u"])
durations = st.sampled_from(["1s", "90s", "10m", "1h30m", "2d"])
terms: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.builds(
        dict, key=words, operator=st.sampled_from(["In", "NotIn"]), values=st.lists(words, min_size=1, max_size=3)
    ),
    st.builds(dict, key=words, operator=st.sampled_from(["Exists", "DoesNotExist"])),
    st.builds(
        dict, key=words, operator=st.sampled_from(["Gt", "Lt"]), values=st.integers(-99, 99).map(lambda n: [str(n)])
    ),
)
tolerations = st.fixed_dictionaries(
    {},
    optional={
        "key": words,
        "operator": st.sampled_from(["Exists", "Equal"]),
        "value": words,
        "effect": st.sampled_from(["NoSchedule", "NoExecute"]),
    },
)
templates = st.fixed_dictionaries(
    {},
    optional={
        "image": words,
        "command": st.lists(st.text(max_size=5), min_size=1, max_size=3),
        "args": st.lists(st.text(max_size=5), max_size=3),
        "env": st.dictionaries(words, st.text(max_size=5), max_size=3),
        "workingDir": st.just("/work"),
        "resources": st.dictionaries(st.sampled_from(["cpu", "memory", "nvidia.com/gpu"]), quantities),
        "ports": st.lists(st.integers(1, 65535), max_size=3, unique=True).map(
            lambda ports: [{"name": f"p{port}", "port": port} for port in ports]
        ),
        "nodeSelector": st.dictionaries(words, words, max_size=2),
        "nodeAffinity": st.lists(terms, max_size=2),
        "tolerations": st.lists(tolerations, max_size=2),
    },
)


@st.composite
def roles(draw: st.DrawFn) -> list[dict[str, Any]]:
    out = []
    for name in draw(st.lists(words.map(lambda word: word[:12].strip("-")), min_size=1, max_size=4, unique=True)):
        replicas = draw(st.integers(1, 50))
        role: dict[str, Any] = {"name": name, "replicas": replicas, "template": draw(templates)}
        if draw(st.booleans()):
            role["minReplicas"] = draw(st.integers(0, replicas))
        out.append(role)
    return out


@st.composite
def specs(draw: st.DrawFn) -> JobSpec:
    made = draw(roles())
    rest = draw(
        st.fixed_dictionaries(
            {"name": words, "queue": st.lists(words, min_size=1, max_size=3).map("/".join)},
            optional={
                "priorityClass": words,
                "priority": st.integers(-1000, 1000),
                "labels": st.dictionaries(words, words, max_size=2),
                "minMember": st.integers(1, sum(role["replicas"] for role in made)),
                "topology": st.fixed_dictionaries(
                    {},
                    optional={
                        "required": words,
                        "preferred": words,
                        "numa": st.sampled_from(["none", "restricted"]),
                        "exclusive": st.just("node"),
                    },
                ),
                "placement": st.fixed_dictionaries(
                    {},
                    optional={
                        "clusters": st.lists(words, max_size=2),
                        "kinds": st.lists(st.sampled_from(list(ClusterKind)), max_size=2),
                        "selector": st.dictionaries(words, words, max_size=2),
                        "datasets": st.lists(words, max_size=2),
                        "emulatedGang": st.booleans(),
                    },
                ),
                "timeLimit": durations,
                "stopGrace": durations,
                "checkpoint": st.fixed_dictionaries({}, optional={"signal": st.sampled_from(["SIGUSR1", "SIGHUP"])}),
                "retries": st.fixed_dictionaries(
                    {},
                    optional={
                        "limit": st.integers(0, 9),
                        "exitCodes": st.lists(st.integers(1, 255), max_size=3),
                        "categories": st.lists(st.sampled_from(list(FailureCategory)), max_size=3),
                        "backOff": durations,
                    },
                ),
                "memberFailure": st.fixed_dictionaries(
                    {},
                    optional={
                        "action": st.sampled_from(["failRun", "restartMember", "restartGang"]),
                        "limit": st.integers(0, 9),
                        "backOff": st.sampled_from(["0s", "1m"]),
                    },
                ),
                "onDisconnect": st.just("wait") | durations.map(lambda text: {"requeueAfter": text}),
                "suspend": st.booleans(),
            },
        )
    )
    return JobSpec.model_validate({**rest, "roles": made})


@given(specs())
def test_the_stored_form_means_the_same(job: JobSpec) -> None:
    stored = json.loads(json.dumps(job.to_wire()))
    assert JobSpec.model_validate(stored) == job
    assert JobSpec.model_validate(stored).to_wire() == stored


@given(specs())
def test_the_shape_holds_what_the_scheduler_reads(job: JobSpec) -> None:
    body, fingerprint = shape_bytes(job)
    shape = shape_from(json.loads(body))
    assert shape_bytes(JobSpec.model_validate(job.to_wire())) == (body, fingerprint)
    assert shape.members == job.members
    assert [(role.name, role.replicas) for role in shape.roles] == [(role.name, role.replicas) for role in job.roles]
    assert 1 <= shape.least_members <= job.members
    assert (shape.required_level, shape.clusters) == (job.topology.required, job.placement.clusters)
    for role, of_job in zip(shape.roles, job.roles, strict=True):
        assert of_job.template is not None
        assert role.needs == of_job.template.amounts
        assert role.affinity == of_job.template.node_affinity
        assert role.tolerations == of_job.template.tolerations


def shape(text: str = SMALLEST, **changes: Any) -> Shape:
    return shape_from(json.loads(shape_bytes(spec(text, **changes))[0]))


LEAST: dict[str, tuple[dict[str, Any], int]] = {
    "all members where nothing is said": ({"roles": worker(replicas=4)}, 4),
    "minReplicas": ({"roles": worker(replicas=4, minReplicas=2)}, 2),
    "a role that may be missing": (
        {"roles": [*worker(), {"name": "b", "replicas": 4, "minReplicas": 0, "template": {}}]},
        1,
    ),
    "one member where every role may be missing": ({"roles": worker(replicas=4, minReplicas=0)}, 1),
    "minMember": ({"roles": worker(replicas=4, minReplicas=2), "minMember": 3}, 3),
    "minMember alone": ({"roles": worker(replicas=4), "minMember": 3}, 3),
}


@pytest.mark.parametrize(("change", "least"), LEAST.values(), ids=LEAST)
def test_the_least_gang_is(change: dict[str, Any], least: int) -> None:
    assert shape(**change).least_members == least


def test_names_labels_and_commands_are_no_part_of_the_shape() -> None:
    one = spec(name="a", labels={"x": "y"}, priority=3, roles=template(command=["a"], env={"A": "b"}, image="i"))
    other = spec(name="b", queue="other", retries={"limit": 3}, roles=template())
    assert shape_of(one) == shape_of(other)


@pytest.mark.parametrize(
    ("given", "path", "message"),
    [
        ({"wait": "0s"}, "checkpoint.wait", "more than 0s and at most 10m"),
        ({"wait": "11m"}, "checkpoint.wait", "more than 0s and at most 10m"),
        ({"wait": "soon"}, "checkpoint.wait", "duration"),
        ({"signal": "SIGKILL"}, "checkpoint.signal", "SIGUSR1"),
        ({"grace": "1s"}, "checkpoint.grace", "not known"),
        ("SIGUSR1", "checkpoint", ""),
    ],
)
def test_a_checkpoint_that_cannot_be_kept_is_told_with_its_place(given: Any, path: str, message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        spec(checkpoint=given)
    (mistake,) = mistakes_of(caught.value)
    assert mistake.path == path
    assert message in mistake.message


CAPABILITIES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "none for one plain member": ({}, ()),
    "gang for several members": ({"roles": worker(replicas=2)}, ("gang",)),
    "restarts of members": ({"memberFailure": {"action": "restartMember"}}, ("memberRestart",)),
    "restarts of members of one role": (
        {"roles": worker(memberFailure={"action": "restartMember"})},
        ("memberRestart",),
    ),
    "restarts of the gang": ({"memberFailure": {"action": "restartGang", "backOff": "5s"}}, ("gangRestart",)),
    "nothing for restarts that no role has": (
        {"memberFailure": {"action": "restartGang"}, "roles": worker(memberFailure={"action": "failRun"})},
        (),
    ),
    "success of one role": ({"success": {"role": "main"}}, ("successRole",)),
    "a gang that really starts together": (
        {"roles": worker(replicas=2), "placement": {"emulatedGang": False}},
        ("gang", "gangStrict"),
    ),
    "nothing for one member, which is no gang": ({"placement": {"emulatedGang": False}}, ()),
    "saving state": ({"checkpoint": {}}, ("checkpoint",)),
    "members apart": ({"roles": worker(replicas=3, maxPerNode=2)}, ("gang", "maxPerNode")),
    "nothing for a node that may take them all": ({"roles": worker(replicas=2, maxPerNode=2)}, ("gang",)),
    "NUMA where it is required": ({"topology": {"numa": "singleNode"}}, ("numa",)),
    "nodes for single members": ({"topology": {"exclusive": "node"}}, ("exclusiveNodes",)),
    "one member per node is implied": (
        {"topology": {"exclusive": "node"}, "roles": worker(replicas=3, maxPerNode=1)},
        ("exclusiveNodes", "gang", "maxPerNode"),
    ),
    "no NUMA where it is only wished": ({"topology": {"numa": "bestEffort"}}, ()),
    "pod templates": ({"roles": [{"name": "a", "podTemplate": {"spec": {"containers": []}}}]}, ("podTemplate",)),
}


@pytest.mark.parametrize(("change", "names"), CAPABILITIES.values(), ids=CAPABILITIES)
def test_a_runtime_must_offer(change: dict[str, Any], names: tuple[str, ...]) -> None:
    assert shape(**change).capabilities == names


def pod(**fields: Any) -> list[dict[str, Any]]:
    container = {"name": "a", "image": "b", "resources": {"requests": {"cpu": "2"}}}
    return [{"name": "a", "podTemplate": {"spec": {"containers": [container], **fields}}}]


def test_a_pod_template_is_read_as_kubernetes_reads_it() -> None:
    fields = [{"key": "gpu", "operator": "", "value": None, "effect": "NoSchedule", "tolerationSeconds": 5}]
    read = shape(roles=pod(nodeSelector={"disk": "ssd"}, tolerations=fields)).roles[0]
    assert (read.needs, read.node_selector) == ({"cpu": 2000}, (("disk", "ssd"),))
    assert read.tolerations == (Toleration(key="gpu", effect="NoSchedule"),)


@pytest.mark.parametrize("wrong", [{"operator": "Sometimes"}, {"effect": "Never"}, {"operator": "exists"}])
def test_a_toleration_that_the_scheduler_cannot_read_never_reaches_it(wrong: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="Input should be"):
        shape_bytes(spec(roles=pod(tolerations=[{"key": "a", **wrong}])))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"roles": worker(replicas=4, maxPerNode=2)}, "maxPerNode of role 'main' has to be 1 or left out, not 2"),
        (
            {"roles": worker(replicas=4, minReplicas=1), "elastic": {}},
            "elastic cannot be combined with topology.exclusive",
        ),
        ({"topology": {"exclusive": "rack"}}, "must be node, not 'rack'"),
    ],
)
def test_what_contradicts_a_node_for_each_member_is_a_mistake(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        spec(**({"topology": {"exclusive": "node"}} | change))
    assert any(message in one.message for one in mistakes_of(caught.value)), mistakes_of(caught.value)


def test_one_member_on_a_node_may_be_said_twice() -> None:
    said = spec(roles=worker(replicas=4, maxPerNode=1), topology={"exclusive": "node"})
    assert said.topology.to_wire() == {"exclusive": "node"}
