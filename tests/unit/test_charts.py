"""The Helm charts: what their schemas take and refuse, and, where there is a `helm`, what they render.

`helm` is looked for on PATH and in KUBEBUILDER_ASSETS. Without one, the tests of what is rendered are skipped.
"""

import base64
import json
import os
import re
import runpy
import shutil
import subprocess
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from cryptography.x509 import DNSName, SubjectAlternativeName, load_pem_x509_certificate
from jsonschema import Draft7Validator
from typer.main import get_command

from tests.compose_file import ROOT
from trainmaster.protocol.errors import Mistake
from trainmaster.protocol.json_limits import JsonNode
from trainmaster.protocol.pod_security import RESTRICTED, read_pod
from trainmaster.protocol.quantities import parse_quantity
from trainmaster.workload_kinds.registry import KINDS
from trainmaster_agent.cli import register as register_agent
from trainmaster_agent.runtime.kubernetes.config import KubernetesCluster
from trainmaster_dispatcher.cli import register as register_dispatcher
from trainmaster_dispatcher.services.issuers import IssuersFile
from trainmaster_dispatcher.services.settings import Settings

Object = dict[str, Any]

CHARTS = ROOT / "deploy/charts"
HELM = shutil.which(
    "helm", path=os.pathsep.join([os.environ.get("PATH", ""), os.environ.get("KUBEBUILDER_ASSETS", "")])
)

TOKEN = "tmk_0123456789abcdefghijklmnop"
AGENT: Object = {"cluster": "east", "url": "https://trainmaster.example.com", "joinToken": TOKEN}
BUNDLED: Object = {"postgresql": {"bundled": True}, "redis": {"bundled": True}}
URLS: Object = {"postgresql": {"url": "postgresql://u:p@db/tm"}, "redis": {"url": "redis://cache/0"}}
SECRETS: Object = {
    "postgresql": {"existingSecret": {"name": "db", "key": "url"}},
    "redis": {"existingSecret": {"name": "cache", "key": "url"}},
    "webhooks": {"existingSecret": {"name": "hooks", "key": "secret"}},
    "mail": {"existingSecret": {"name": "mail", "key": "url"}, "from": "tm@example.com"},
    "adminKey": {"existingSecret": {"name": "admin", "key": "key"}},
}
EVERYTHING: Object = {
    **URLS,
    "tenants": [{"kind": "PriorityClass", "name": "batch", "value": 100}, {"kind": "Queue", "path": "default"}],
    "settings": {"TRAINMASTER_LARGEST_BODY_BYTES": 33554432, "TRAINMASTER_WEBHOOK_ALLOW_HTTP": True},
    "webhooks": {"secret": "0123456789abcdef"},
    "mail": {"url": "smtp://u:p@mail.example.com:587", "from": "tm@example.com"},
    "oidc": {
        "issuer": "https://sso.example.com",
        "clientIds": ["trainmaster", "other"],
        "userClaims": ["email"],
        "groupsClaim": "roles",
        "publicClientSecret": "open",
        "caCertificates": {"configMap": "sso-ca", "key": "root.pem"},
        "issuers": [
            {
                "name": "east",
                "issuer": "https://kubernetes.default.svc",
                "serviceAccounts": True,
                "audiences": ["trainmaster"],
                "prefix": "east:",
                "jwksFile": "/etc/trainmaster/issuer-files/east.json",
            }
        ],
        "issuerFiles": "files-of-issuers",
        "browserClient": {"id": "web", "existingSecret": {"name": "web-client", "key": "secret"}},
    },
    "publicUrl": "https://tm.example.com",
    "tracing": {
        "endpoint": "http://collector.monitoring:4318",
        "sampler": "parentbased_traceidratio",
        "samplerArgument": "0.1",
        "resourceAttributes": {"deployment.environment.name": "prod", "team": "ml"},
        "headersSecret": {"name": "tracing", "key": "headers"},
    },
    "api": {"autoscaling": {"enabled": True}},
    "ingress": {"enabled": True, "host": "tm.example.com", "tlsSecret": "tls", "className": "nginx"},
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "grafana": {"dashboard": "{}", "usersDashboard": "{}", "adminsDashboard": "{}"},
    "nodeSelector": {"pool": "system"},
    "tolerations": [{"operator": "Exists"}],
    "imagePullSecrets": [{"name": "registry"}],
}
AGENT_EVERYTHING: Object = {
    "cluster": "east",
    "url": "http://trainmaster.example.com:8470/base",
    "existingSecret": {"name": "key-of-east", "key": "token"},
    "jobNamespaces": ["jobs-a", "jobs-b"],
    "olderNamespaces": [],
    "checkpoint": {"enabled": True},
    "use": {"source": "kubelet"},
    "config": {
        "namespaces": [{"queue": "research", "namespace": "jobs-b"}, {"queue": "teams", "namespace": "jobs-{last}"}],
        "placement": {"scheduler": "volcano"},
        "capacity": {"levels": [{"level": "zone", "label": "topology.kubernetes.io/zone"}]},
        "lease": {"duration": "15s"},
    },
    "serviceMonitor": {"enabled": True},
    "caCertificates": {"configMap": "ca"},
    "priorityClassName": "system-cluster-critical",
    "tracing": {
        "endpoint": "http://collector.monitoring:4318",
        "sampler": "parentbased_traceidratio",
        "samplerArgument": "0.1",
        "resourceAttributes": {"deployment.environment.name": "prod", "team": "ml"},
        "headersSecret": {"name": "tracing", "key": "headers"},
    },
    "env": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
    "networkPolicy": {"apiServerCidrs": ["10.0.0.1/32"], "extraEgress": [{"ports": [{"port": 3128}]}]},
}
AGENT_WITH_API: Object = {**AGENT, "extensionApi": {"enabled": True, "key": TOKEN}}
AGENT_WITH_SUBMISSIONS: Object = {
    **AGENT,
    "submissions": {"enabled": True, "existingSecret": {"name": "key"}, "byNamespace": True},
}
AGENT_THAT_PACKS: Object = {
    **AGENT,
    "config": {"placement": {"scheduler": "gates"}},
    "packingScheduler": {"enabled": True, "image": "kube-scheduler:v1.36.2", "featureGates": ["GenericWorkload=true"]},
}
CASES: list[tuple[str, Object]] = [
    ("agent", AGENT),
    ("agent", AGENT_EVERYTHING),
    ("agent", AGENT_WITH_API),
    ("agent", AGENT_WITH_SUBMISSIONS),
    ("agent", AGENT_THAT_PACKS),
    ("dispatcher", BUNDLED),
    ("dispatcher", URLS),
    ("dispatcher", SECRETS),
    ("dispatcher", EVERYTHING),
]
IDS = [
    "agent",
    "agent-everything",
    "agent-api",
    "agent-submissions",
    "agent-packing",
    "bundled",
    "urls",
    "secrets",
    "everything",
]

each_chart = pytest.mark.parametrize("chart", ["agent", "dispatcher"])
each_case = pytest.mark.parametrize(("chart", "values"), CASES, ids=IDS)


# --- values and their schemas


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> Object:
    result = dict(base)
    for key, value in over.items():
        below = result.get(key)
        result[key] = merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return result


def read_yaml(chart: str, name: str) -> Object:
    value: Object = yaml.safe_load((CHARTS / chart / name).read_text())
    return value


def schema(chart: str) -> Draft7Validator:
    document = json.loads((CHARTS / chart / "values.schema.json").read_text())
    Draft7Validator.check_schema(document)
    return Draft7Validator(document)


def mistakes(chart: str, given: Object) -> list[str]:
    """Return what the schema refuses in the chart's values with ``given``: paths, and messages of every level."""
    found = list(schema(chart).iter_errors(merged(read_yaml(chart, "values.yaml"), given)))
    found += [below for error in found for below in error.context or ()]
    return [f"{error.json_path}: {error.message}" for error in found]


@each_case
def test_the_schema_takes_what_is_right(chart: str, values: Object) -> None:
    assert mistakes(chart, values) == []


@pytest.mark.parametrize("chart", ["agent", "dispatcher"])
def test_the_schema_names_exactly_what_the_code_reads(chart: str) -> None:
    script = runpy.run_path(str(ROOT / "scripts/chart-schemas"))
    text = (CHARTS / chart / "values.schema.json").read_text()
    assert text == script["render"](text, chart), "run scripts/chart-schemas"


@pytest.mark.skipif(HELM is None, reason="no helm")
@pytest.mark.parametrize(
    ("chart", "given", "word"),
    [
        ("agent", ["--set", "config.bogus=1"], "bogus"),
        ("agent", ["--set", "config.lease.durations=10s"], "durations"),
        ("dispatcher", ["--set", "settings.TRAINMASTER_BOGUS=1"], "TRAINMASTER_BOGUS"),
        ("dispatcher", ["--set", "api.replica=1"], "replica"),
    ],
)
def test_helm_refuses_values_that_nothing_reads(chart: str, given: list[str], word: str, tmp_path: Path) -> None:
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(AGENT if chart == "agent" else URLS))
    command = [str(HELM), "template", "tm", str(CHARTS / chart), "--values", str(tmp_path / "values.yaml")]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
    refused = subprocess.run([*command, *given], capture_output=True, text=True, check=False)
    assert refused.returncode != 0
    assert word in refused.stderr


def test_an_agent_needs_to_know_where_who_and_with_which_key() -> None:
    messages = "\n".join(mistakes("agent", {}))
    for name in ("url", "cluster", "joinToken", "existingSecret"):
        assert f"'{name}' is a required property" in messages


def test_a_dispatcher_needs_its_stores() -> None:
    messages = mistakes("dispatcher", {})
    assert {line.partition(":")[0] for line in messages} >= {"$.postgresql", "$.redis"}


@pytest.mark.parametrize(
    ("chart", "change", "path"),
    [
        ("agent", {"existingSecret": {"name": "key"}}, "$"),
        ("agent", {"joinToken": "secret"}, "$.joinToken"),
        ("agent", {"url": "trainmaster.example.com"}, "$.url"),
        ("agent", {"cluster": "East_1"}, "$.cluster"),
        ("agent", {"queues": ["a/b"]}, "$.queues[0]"),
        ("agent", {"queues": ["a_b"]}, "$.queues[0]"),
        ("agent", {"queues": ["a--b"]}, "$.queues[0]"),
        (
            "agent",
            {"isolation": {"networkPolicy": {"blockedCidrs": ["10.0.0.0"]}}},
            "$.isolation.networkPolicy.blockedCidrs[0]",
        ),
        ("agent", {"isolation": {"podSecurity": "privileged"}}, "$.isolation"),
        ("agent", {"config": {"recordNamespace": "jobs"}}, "$.config"),
        ("agent", {"jobNamespaces": ["kube-system"]}, "$.jobNamespaces[0]"),
        ("agent", {"schedulers": ["slurm"]}, "$.schedulers[0]"),
        ("agent", {"config": {"cluster": "other"}}, "$.config"),
        ("agent", {"config": {"lease": {"name": "other"}}}, "$.config.lease"),
        ("agent", {"config": {"placement": {"priorityClass": "other"}}}, "$.config.placement"),
        ("agent", {"priorityClass": {"name": "system-jobs"}}, "$.priorityClass.name"),
        ("agent", {"replicas": 0}, "$.replicas"),
        ("agent", {"resources": {"requests": {"cpu": None}}}, "$.resources.requests.cpu"),
        ("agent", {"podLabels": {"app.kubernetes.io/name": "x"}}, "$.podLabels"),
        ("agent", {"replicaCount": 2}, "$"),
        ("dispatcher", {"postgresql": {"bundled": True}}, "$.postgresql"),
        ("dispatcher", {"postgresql": {"url": "mysql://db/tm"}}, "$.postgresql.url"),
        ("dispatcher", {"redis": {"existingSecret": {"name": "cache"}}}, "$.redis"),
        ("agent", {"config": {"bogus": 1}}, "$.config"),
        ("agent", {"config": {"patience": {"imagee": "2m"}}}, "$.config.patience"),
        ("agent", {"config": {"tombstone": "5x"}}, "$.config.tombstone"),
        ("agent", {"config": {"port": 99999}}, "$.config.port"),
        ("agent", {"config": {"placement": {"scheduler": "slurm"}}}, "$.config.placement.scheduler"),
        (
            "agent",
            {"config": {"capacity": {"levels": [{"level": "zone", "lable": "x"}]}}},
            "$.config.capacity.levels[0]",
        ),
        ("dispatcher", {"settings": {"DATABASE_URL": "x"}}, "$.settings"),
        ("dispatcher", {"settings": {"TRAINMASTER_BOGUS": "x"}}, "$.settings"),
        ("dispatcher", {"settings": {"TRAINMASTER_WEBHOOK_SECRET": "x"}}, "$.settings"),
        ("dispatcher", {"tenants": [{"kind": "Cluster", "name": "east"}]}, "$.tenants[0].kind"),
        ("dispatcher", {"webhooks": {"secret": "short"}}, "$.webhooks.secret"),
        ("dispatcher", {"mail": {"url": "smtp://mail"}}, "$.mail"),
        ("dispatcher", {"mail": {"url": "http://mail", "from": "a@b"}}, "$.mail.url"),
        ("dispatcher", {"oidc": {"issuer": "http://sso", "clientIds": ["a"]}}, "$.oidc.issuer"),
        ("dispatcher", {"tracing": {"endpoint": "collector:4318"}}, "$.tracing.endpoint"),
        ("dispatcher", {"tracing": {"sampler": "always_on"}}, "$.tracing"),
        ("agent", {"tracing": {"endpoint": "http://user:secret@collector"}}, "$.tracing.endpoint"),
        ("agent", {"tracing": {"endpoint": "http://c", "sampler": "jaeger_remote"}}, "$.tracing.sampler"),
        ("dispatcher", {"oidc": {"issuer": "https://sso"}}, "$.oidc"),
        (
            "dispatcher",
            {"oidc": {"issuers": [{"name": "x", "algorithms": ["HS256"]}]}},
            "$.oidc.issuers[0].algorithms[0]",
        ),
        ("dispatcher", {"oidc": {"issuers": [{"name": "x", "audience": "y"}]}}, "$.oidc.issuers[0]"),
        ("dispatcher", {"settings": {"TRAINMASTER_OIDC_ISSUER": "https://sso"}}, "$.settings"),
        ("dispatcher", {"ingress": {"enabled": True}}, "$.ingress.host"),
        ("dispatcher", {"api": {"replicas": 0}}, "$.api.replicas"),
        ("dispatcher", {"api": {"replica": 1}}, "$.api"),
    ],
)
def test_the_schema_refuses_mistakes(chart: str, change: Object, path: str) -> None:
    messages = mistakes(chart, merged(AGENT if chart == "agent" else URLS, change))
    assert path in {line.partition(":")[0] for line in messages}, messages


@each_chart
def test_a_chart_has_the_version_of_the_project(chart: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    about = read_yaml(chart, "Chart.yaml")
    assert about["appVersion"] == about["version"] == project["version"]


@each_chart
def test_the_readme_explains_every_value(chart: str) -> None:
    readme = (CHARTS / chart / "README.md").read_text()
    known = json.loads((CHARTS / chart / "values.schema.json").read_text())["properties"].keys() - {"global"}
    assert [name for name in sorted(known) if not re.search(rf"^\| `{name}\b", readme, re.MULTILINE)] == []


# --- templates as text


def templates(chart: str) -> Iterator[Path]:
    return (path for path in sorted((CHARTS / chart / "templates").iterdir()) if path.is_file())


@each_chart
def test_templates_are_balanced(chart: str) -> None:
    for path in templates(chart):
        text = path.read_text()
        actions = re.findall(r"\{\{-?\s*(.*?)\s*-?\}\}", text, re.DOTALL)
        assert text.count("{{") == len(actions), path
        words = [action.split(maxsplit=1)[0] for action in actions]
        opened = sum(word in ("if", "range", "with", "define") for word in words)
        assert opened == words.count("end"), path


def rules(name: str) -> list[tuple[str, str, str]]:
    """Return for each rule in a template its reason, its resource with group, and its verbs."""
    found = []
    lines = (CHARTS / "agent/templates" / name).read_text().splitlines()
    for at, line in enumerate(lines):
        group = re.fullmatch(r"  - apiGroups: \[(.*)\]", line)
        if group is None:
            continue
        reason = lines[at - 1].strip().removeprefix("# ") if lines[at - 1].strip().startswith("# ") else ""
        fields = dict(re.findall(r"^\s+(\w+): \[(.*)\]$", "\n".join(lines[at + 1 : at + 4]), re.MULTILINE))
        resource = ".".join(filter(None, (fields["resources"], group[1].strip('"'))))
        found.append((reason, resource, fields["verbs"]))
    return found


ROLES = ("clusterrole.yaml", "packing-scheduler.yaml", "role-autoscaler.yaml", "role-jobs.yaml", "role-own.yaml")


@pytest.mark.parametrize("name", ROLES)
def test_every_permission_says_why(name: str) -> None:
    assert rules(name)
    for reason, resource, _ in rules(name):
        assert len(reason) > 20, resource
        assert reason.endswith("."), reason


@pytest.mark.parametrize("name", ROLES)
def test_the_page_of_permissions_lists_every_verb(name: str) -> None:
    page = (ROOT / "docs/reference/agent-permissions.md").read_text()
    for _, resource, verbs in rules(name):
        assert re.search(rf"^\| `{re.escape(resource)}`[^|]*\| {verbs} \| .{{10,}} \|$", page, re.MULTILINE), resource


# --- what is rendered


def helm(*arguments: str, values: Object | None = None) -> "subprocess.CompletedProcess[str]":
    if HELM is None:
        pytest.skip("no helm on PATH or in KUBEBUILDER_ASSETS: charts are not rendered")
    words = [HELM, *arguments, *(["--values", "/dev/stdin"] if values is not None else [])]
    return subprocess.run(words, input=json.dumps(values), capture_output=True, text=True, timeout=60, check=False)


@cache
def _rendered(chart: str, values: str) -> str:
    done = helm("template", "tm", str(CHARTS / chart), "--namespace", "here", values=json.loads(values))
    assert done.returncode == 0, done.stderr
    return done.stdout


def rendered(chart: str, values: Object) -> list[Object]:
    text = _rendered(chart, json.dumps(values))
    return [document for document in yaml.safe_load_all(text) if document is not None]


def of_kind(objects: list[Object], kind: str) -> dict[str, Object]:
    return {one["metadata"]["name"]: one for one in objects if one["kind"] == kind}


def of_the_release(objects: list[Object]) -> list[Object]:
    """Return the objects that are not in namespaces for jobs."""
    return [one for one in objects if one["metadata"].get("namespace") in (None, "here")]


def workloads(objects: list[Object]) -> dict[str, Object]:
    """Return pod templates by the name of the object that makes them."""
    kinds = ("Deployment", "StatefulSet", "Job")
    return {name: one["spec"]["template"] for kind in kinds for name, one in of_kind(objects, kind).items()}


def containers(template: Object) -> list[Object]:
    spec = template["spec"]
    return [*spec.get("initContainers", ()), *spec["containers"]]


def selects(selector: Object, labels: Mapping[str, str]) -> bool:
    wanted: bool = selector.get("matchLabels", {}).items() <= labels.items()
    for expression in selector.get("matchExpressions", ()):
        assert expression["operator"] == "In"
        wanted = wanted and labels.get(expression["key"]) in expression["values"]
    return wanted


def selected(objects: list[Object], selector: Object) -> set[str]:
    return {name for name, pod in workloads(objects).items() if selects(selector, pod["metadata"]["labels"])}


@each_case
def test_helm_finds_nothing_wrong(chart: str, values: Object) -> None:
    done = helm("lint", "--strict", str(CHARTS / chart), values=values)
    assert done.returncode == 0, done.stdout + done.stderr


@each_case
def test_objects_are_whole_and_named_once(chart: str, values: Object) -> None:
    objects = rendered(chart, values)
    names = [(one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]) for one in objects]
    assert len(names) == len(set(names))
    for one in objects:
        assert one["apiVersion"], one
        assert one["metadata"]["labels"]["app.kubernetes.io/instance"] == "tm"


@each_case
def test_every_pod_meets_the_level_restricted(chart: str, values: Object) -> None:
    for name, template in workloads(rendered(chart, values)).items():
        found: list[Mistake] = []
        pod = read_pod(JsonNode(template, "", found))
        for control in RESTRICTED:
            control(pod)
        assert found == [], name
        for container in containers(template):
            assert container["securityContext"]["readOnlyRootFilesystem"] is True, name


@each_case
def test_containers_ask_for_what_they_need_and_can_be_looked_after(chart: str, values: Object) -> None:
    objects = rendered(chart, values)
    jobs = of_kind(objects, "Job")
    for name, template in workloads(objects).items():
        for container in containers(template):
            assert container["resources"]["requests"].keys() >= {"cpu", "memory"}, name
            assert "memory" in container["resources"]["limits"], name
        for container in template["spec"]["containers"] if name not in jobs else ():
            assert container.keys() >= {"livenessProbe", "readinessProbe", "ports"}, name
            ports = {port["name"] for port in container["ports"]}
            probes = [probe for key, probe in container.items() if key.endswith("Probe") and "httpGet" in probe]
            assert {probe["httpGet"]["port"] for probe in probes} <= ports
        mounted = {mount["name"] for one in containers(template) for mount in one.get("volumeMounts", ())}
        assert {volume["name"] for volume in template["spec"]["volumes"]} <= mounted


@each_case
def test_only_the_agent_holds_a_token_of_the_cluster(chart: str, values: Object) -> None:
    for template in workloads(rendered(chart, values)).values():
        assert template["spec"]["automountServiceAccountToken"] is (chart == "agent")


@each_case
def test_a_disruption_budget_is_of_one_workload_and_never_holds_up_a_drain(chart: str, values: Object) -> None:
    objects = rendered(chart, values)
    budgets = of_kind(objects, "PodDisruptionBudget")
    assert budgets
    for name, budget in budgets.items():
        assert selected(objects, budget["spec"]["selector"]) == {name}
        assert budget["spec"]["maxUnavailable"] == 1


@each_case
def test_services_and_policies_name_ports_that_their_pods_have(chart: str, values: Object) -> None:
    objects = of_the_release(rendered(chart, values))
    pods = workloads(objects)

    def ports(names: set[str]) -> Iterator[set[str]]:
        assert names
        for name in names:
            yield {port["name"] for one in containers(pods[name]) for port in one.get("ports", ())}

    for service in of_kind(objects, "Service").values():
        targets = {port["targetPort"] for port in service["spec"]["ports"]}
        for having in ports(selected(objects, {"matchLabels": service["spec"]["selector"]})):
            assert targets <= having
    for policy in of_kind(objects, "NetworkPolicy").values():
        targets = {port["port"] for rule in policy["spec"].get("ingress", ()) for port in rule["ports"]}
        for having in ports(selected(objects, policy["spec"]["podSelector"])):
            assert {port for port in targets if isinstance(port, str)} <= having


@each_case
def test_every_pod_is_behind_a_policy_for_both_ways(chart: str, values: Object) -> None:
    objects = of_the_release(rendered(chart, values))
    for name, template in workloads(objects).items():
        ways = {
            way
            for policy in of_kind(objects, "NetworkPolicy").values()
            if selects(policy["spec"]["podSelector"], template["metadata"]["labels"])
            for way in policy["spec"]["policyTypes"]
        }
        assert ways == {"Ingress", "Egress"}, name


@each_chart
def test_policies_and_budgets_can_be_left_out(chart: str) -> None:
    off: Object = {"networkPolicy": {"enabled": False}, "podDisruptionBudget": {"enabled": False}}
    off |= {"isolation": {"networkPolicy": {"enabled": False}}} if chart == "agent" else {}
    kinds = {one["kind"] for one in rendered(chart, {**(AGENT if chart == "agent" else BUNDLED), **off})}
    assert not kinds & {"NetworkPolicy", "PodDisruptionBudget"}


@pytest.mark.parametrize("chart", ["agent", "dispatcher"])
def test_helm_says_what_is_missing(chart: str) -> None:
    done = helm("template", "tm", str(CHARTS / chart))
    assert done.returncode != 0
    for name in ("url", "cluster", "joinToken") if chart == "agent" else ("/postgresql", "/redis", "url"):
        assert f"'{name}'" in done.stderr


# --- the agent's chart


READ = ["get", "list", "watch"]
GROUP = [*READ, "create", "patch", "delete"]
MADE = [*READ, "create", "delete"]
NAME = "tm-trainmaster-agent"
FOR_ALL = [("", "nodes", READ), ("", "pods", READ), ("", "namespaces", ["get"])]
FOR_ALL += [("topology.node.k8s.io", "noderesourcetopologies", READ)]
FOR_ALL += [("resource.k8s.io", kind, READ) for kind in ("deviceclasses", "resourceclaims", "resourceslices")]
FOR_ALL += [("karpenter.sh", "nodepools", READ)]
FOR_ALL += [("trainer.kubeflow.org", "clustertrainingruntimes", ["list"])]
IN_JOB_NAMESPACES = [
    ("", "configmaps", ["get", "list", "create", "patch", "delete"]),
    ("", "pods", ["create", "patch", "delete", "deletecollection"]),
    ("", "pods/log", ["get"]),
    *(("", f"pods/{stream}", ["create", "get"]) for stream in ("exec", "attach", "portforward")),
    ("metrics.k8s.io", "pods", ["list"]),
    ("", "services", ["get", "list", "create", "delete"]),
    ("resource.k8s.io", "resourceclaimtemplates", MADE),
    ("resource.k8s.io", "resourceclaims", ["get", "list", "create", "delete"]),
    ("", "events", ["list"]),
    ("", "resourcequotas", READ),
    ("batch", "jobs", MADE),
    ("jobset.x-k8s.io", "jobsets", MADE),
    *(
        ("kubeflow.org", kind, MADE)
        for kind in ("pytorchjobs", "tfjobs", "xgboostjobs", "paddlejobs", "jaxjobs", "mpijobs")
    ),
    ("trainer.kubeflow.org", "trainjobs", MADE),
    ("ray.io", "rayjobs", MADE),
    ("ray.io", "rayclusters", MADE),
    ("leaderworkerset.x-k8s.io", "leaderworkersets", MADE),
    ("sparkoperator.k8s.io", "sparkapplications", MADE),
    ("workload.codeflare.dev", "appwrappers", MADE),
    ("apps", "deployments", ["create"]),
    ("apps", "statefulsets", ["create"]),
]
BY_SCHEDULER: dict[str, tuple[list[tuple[str, str, list[str]]], list[tuple[str, str, list[str]]]]] = {
    "native": ([], [("scheduling.k8s.io", "podgroups", GROUP)]),
    "volcano": ([("topology.volcano.sh", "hypernodes", READ)], [("scheduling.volcano.sh", "podgroups", GROUP)]),
    "kai": ([("kai.scheduler", "topologies", READ)], [("scheduling.run.ai", "podgroups", GROUP)]),
    "coscheduling": ([], [("scheduling.x-k8s.io", "podgroups", GROUP)]),
    "kueue": (
        [("kueue.x-k8s.io", "topologies", READ)],
        [("kueue.x-k8s.io", "workloads", [*READ, "delete"]), ("kueue.x-k8s.io", "localqueues", ["get", "list"])],
    ),
    "yunikorn": ([], []),
}


@pytest.mark.skipif(HELM is None, reason="no helm")
def test_the_extension_api_is_trusted_by_a_certificate_of_its_service() -> None:
    objects = rendered("agent", AGENT_WITH_API)
    (service,) = (one for one in of_kind(objects, "Service").values() if one["metadata"]["name"].endswith("-api"))
    (registered,) = of_kind(objects, "APIService").values()
    name, namespace = service["metadata"]["name"], service["metadata"]["namespace"]
    assert registered["spec"]["service"] == {"name": name, "namespace": namespace, "port": 443}
    secret = of_kind(objects, "Secret")[f"{name}-tls"]["data"]
    assert registered["spec"]["caBundle"] == secret["ca.crt"]
    authority, certificate = (load_pem_x509_certificate(base64.b64decode(secret[one])) for one in ("ca.crt", "tls.crt"))
    certificate.verify_directly_issued_by(authority)
    names = certificate.extensions.get_extension_for_class(SubjectAlternativeName).value.get_values_for_type(DNSName)
    assert f"{name}.{namespace}.svc" in names


def granted(role: Object) -> list[tuple[str, str, list[str]]]:
    return [(rule["apiGroups"][0], resource, rule["verbs"]) for rule in role["rules"] for resource in rule["resources"]]


def written(values: Object) -> Object:
    """Return the agent.yaml that the agent's chart renders with ``values``."""
    value: Object = yaml.safe_load(of_kind(rendered("agent", values), "ConfigMap")[NAME]["data"]["agent.yaml"])
    return value


def roles(values: Object) -> dict[tuple[str | None, str], Object]:
    return {
        (one["metadata"].get("namespace"), one["metadata"]["name"]): one
        for one in rendered("agent", values)
        if one["kind"] in ("ClusterRole", "Role")
    }


@pytest.mark.parametrize("enabled", [[], ["auto"], *([name] for name in BY_SCHEDULER), ["kai", "kueue"]], ids=str)
def test_the_agent_is_granted_exactly_what_its_schedulers_need(enabled: list[str]) -> None:
    found = roles({**AGENT, "schedulers": enabled})
    names = [name for name in BY_SCHEDULER if name in enabled or "auto" in enabled]
    everywhere = FOR_ALL + [rule for name in names for rule in BY_SCHEDULER[name][0]]
    in_jobs = IN_JOB_NAMESPACES + [rule for name in names for rule in BY_SCHEDULER[name][1]]
    assert sorted(granted(found.pop((None, NAME)))) == sorted(everywhere)
    for namespace in ("trainmaster-jobs", "trainmaster-jobs-default"):
        assert sorted(granted(found.pop((namespace, NAME)))) == sorted(in_jobs)
    own = found.pop(("here", f"{NAME}-own"))
    assert granted(own) == [
        ("coordination.k8s.io", "leases", ["create", "list", "watch"]),
        ("coordination.k8s.io", "leases", ["get", "update", "patch"]),
        ("", "configmaps", GROUP),
    ]
    assert own["rules"][1]["resourceNames"] == [NAME]
    autoscaler = found.pop(("kube-system", f"{NAME}-autoscaler"))
    assert granted(autoscaler) == [("", "configmaps", READ)]
    assert autoscaler["rules"][0]["resourceNames"] == ["cluster-autoscaler-status"]
    assert found == {}


def test_nodes_are_asked_for_only_where_the_configuration_says_by_which_class() -> None:
    wanted = [
        ("autoscaling.x-k8s.io", "provisioningrequests", MADE),
        ("", "podtemplates", ["get", "list", "create", "delete"]),
    ]
    autoscaler = {"provisioningRequest": "best-effort-atomic-scale-up.autoscaling.x-k8s.io"}
    found = roles({**AGENT, "config": {"capacity": {"autoscaler": autoscaler}}})
    assert all(rule in granted(found["trainmaster-jobs-default", NAME]) for rule in wanted)
    assert not any(rule in granted(roles(AGENT)["trainmaster-jobs-default", NAME]) for rule in wanted)


def test_the_report_of_the_autoscaler_is_readable_where_the_configuration_says() -> None:
    given = {"namespace": "infra", "configMap": "ca-status"}
    found = roles({**AGENT, "config": {"capacity": {"autoscaler": given}}})
    (rule,) = found["infra", f"{NAME}-autoscaler"]["rules"]
    assert rule["resourceNames"] == ["ca-status"]
    off = roles({**AGENT, "config": {"capacity": {"autoscaler": {**given, "enabled": False}}}})
    assert not [name for _, name in off if name.endswith("-autoscaler")]
    assert ("karpenter.sh", "nodepools", READ) not in granted(off[None, NAME])


@pytest.mark.parametrize("values", [AGENT, AGENT_EVERYTHING], ids=["least", "everything"])
def test_the_agent_sees_no_secret_and_has_no_wildcard(values: Object) -> None:
    for role in roles(values).values():
        for rule in role["rules"]:
            assert not {"secrets", "serviceaccounts/token"} & set(rule["resources"])
            assert not any("*" in item for key in ("apiGroups", "resources", "verbs") for item in rule[key])
            assert not {"escalate", "bind", "impersonate"} & set(rule["verbs"])


def test_the_agent_may_write_in_each_job_namespace_and_nowhere_else() -> None:
    objects = rendered("agent", AGENT_EVERYTHING)
    bound = {(one["metadata"]["namespace"], one["roleRef"]["name"]) for one in objects if one["kind"] == "RoleBinding"}
    assert bound == {
        *(("jobs-a", NAME), ("jobs-b", NAME)),
        *(("here", f"{NAME}-own"), ("kube-system", f"{NAME}-autoscaler")),
    }
    (read_only,) = roles(AGENT_EVERYTHING)["kube-system", f"{NAME}-autoscaler"]["rules"]
    assert read_only["verbs"] == READ
    (everywhere,) = (role for (namespace, _), role in roles(AGENT_EVERYTHING).items() if namespace is None)
    assert all(set(rule["verbs"]) <= set(READ) for rule in everywhere["rules"])
    assert [rule["resourceNames"] for rule in everywhere["rules"] if rule["resources"] == ["namespaces"]] == [
        ["jobs-a", "jobs-b", "kube-system"]
    ]
    for one in objects:
        if one["kind"].endswith("RoleBinding"):
            assert [(who["name"], who["namespace"]) for who in one["subjects"]] == [(NAME, "here")]


def test_objects_of_other_apis_are_granted_as_the_registry_has_them_and_only_where_wanted() -> None:
    def groups(values: Object) -> set[tuple[str, str]]:
        return {(group, resource) for role in roles(values).values() for group, resource, _ in granted(role)}

    wanted = {(kind.api_version.split("/")[0], kind.plural) for kind in KINDS if not kind.is_made_by_agent}
    assert wanted <= groups(AGENT)
    assert not wanted & groups({**AGENT, "workloads": {"enabled": False}})


def test_exec_is_granted_only_for_checkpoints_and_streams_to_members() -> None:
    def streams(values: Object) -> set[str]:
        found = {rule[1] for role in roles(values).values() for rule in granted(role)}
        return found & {"pods/exec", "pods/attach", "pods/portforward"}

    without = {**AGENT, "memberStreams": {"enabled": False}}
    assert streams(AGENT) == {"pods/exec", "pods/attach", "pods/portforward"}
    assert not streams(without)
    assert streams({**without, "checkpoint": {"enabled": True}}) == {"pods/exec"}


def test_kubelets_are_read_only_where_the_owner_says_so() -> None:
    def grants(values: Object) -> set[tuple[str, str]]:
        found = {rule[:2] for role in roles(values).values() for rule in granted(role)}
        return found & {("", "nodes/proxy"), ("metrics.k8s.io", "pods")}

    assert grants(AGENT) == {("metrics.k8s.io", "pods")}
    assert grants({**AGENT, "use": {"source": "kubelet"}}) == {("metrics.k8s.io", "pods"), ("", "nodes/proxy")}
    off = {**AGENT, "use": {"enabled": False, "source": "kubelet"}}
    assert not grants(off)
    assert written(off)["useSeconds"] == 0


def test_job_namespaces_are_restricted_and_outlive_the_chart() -> None:
    spaces = of_kind(rendered("agent", AGENT_EVERYTHING), "Namespace")
    assert spaces.keys() == {"jobs-a", "jobs-b"}
    for space in spaces.values():
        assert space["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
        assert space["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    assert not of_kind(rendered("agent", {**AGENT, "createNamespaces": False}), "Namespace")


def by_namespace(values: Object, kind: str) -> dict[str, Object]:
    """Return the objects of a kind in namespaces for jobs, by namespace."""
    others = ("here", "kube-system")
    found = [
        one for one in rendered("agent", values) if one["kind"] == kind and one["metadata"]["namespace"] not in others
    ]
    assert len({one["metadata"]["namespace"] for one in found}) == len(found)
    return {one["metadata"]["namespace"]: one for one in found}


def test_each_top_level_queue_gets_a_namespace_of_its_own() -> None:
    values = {**AGENT, "queues": ["research", "a-b"]}
    names = {"trainmaster-jobs-research": "research", "trainmaster-jobs-a-b": "a-b"}
    spaces = of_kind(rendered("agent", values), "Namespace")
    assert spaces.keys() == {*names, "trainmaster-jobs"}
    for name, queue in names.items():
        assert spaces[name]["metadata"]["labels"]["trainmaster.dev/queue"] == queue
    config = KubernetesCluster.model_validate(written(values))
    assert {config.namespace_of(f"{queue}/team/x") for queue in names.values()} == names.keys()
    for stranger in ("a/b", "a_b", "default", "researchers"):
        assert config.namespace_of(stranger) not in config.job_namespaces, stranger


@pytest.mark.parametrize(
    ("given", "queue", "namespace"),
    [
        ({"queues": ["teams"], "config": {"namespace": "jobs-{top}"}}, "teams/a", "jobs-teams"),
        (
            {"queues": ["teams"], "config": {"namespaces": [{"queue": "teams", "namespace": "t-{top}"}]}},
            "teams",
            "t-teams",
        ),
        ({"queues": ["x" * 46]}, "x" * 46, f"trainmaster-jobs-{'x' * 46}"),
        ({"jobNamespaces": ["shared"]}, "any/queue", "shared"),
        ({"jobNamespaces": ["shared"], "queues": ["teams"]}, "teams/a", "trainmaster-jobs-teams"),
    ],
)
def test_chart_and_agent_fill_rules_alike(given: Object, queue: str, namespace: str) -> None:
    values = {**AGENT, **given}
    config = KubernetesCluster.model_validate(written(values))
    assert config.namespace_of(queue) == namespace
    assert namespace in config.job_namespaces
    assert by_namespace(values, "NetworkPolicy").keys() >= {namespace}
    assert by_namespace(values, "RoleBinding").keys() == set(config.job_namespaces)


def test_rights_in_namespaces_of_an_older_release_are_kept_and_its_runs_are_left_as_they_are() -> None:
    values = {**AGENT, "olderNamespaces": ["old-jobs"]}
    assert by_namespace(values, "Role").keys() == {"old-jobs", "trainmaster-jobs-default"}
    assert written(values)["jobNamespaces"][0] == "old-jobs", "the agent's identity was the uid of the first one"
    for kind in ("NetworkPolicy", "LimitRange"):
        assert by_namespace(values, kind).keys() == {"trainmaster-jobs-default"}


def test_what_jobs_reach_and_take_is_limited_as_shipped() -> None:
    policy = by_namespace(AGENT, "NetworkPolicy")["trainmaster-jobs-default"]
    spec = policy["spec"]
    assert (spec["podSelector"], spec["policyTypes"]) == ({}, ["Ingress", "Egress"])
    assert spec["ingress"] == [{"from": [{"podSelector": {}}]}]
    siblings, dns, world, agent = spec["egress"]
    assert agent["ports"] == [{"port": 8471, "protocol": "TCP"}], "for elements of arrays"
    assert agent["to"][0]["podSelector"]["matchLabels"]["app.kubernetes.io/name"] == "trainmaster-agent"
    assert siblings == {"to": [{"podSelector": {}}]}
    assert {(one["port"], one["protocol"]) for one in dns["ports"]} == {(53, "UDP"), (53, "TCP")}
    assert dns["to"][0] == {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}}
    blocks = [one["ipBlock"] for one in world["to"]]

    def is_reached(address: str) -> bool:
        ip = ip_address(address)
        networks = [(ip_network(block["cidr"]), [ip_network(cidr) for cidr in block["except"]]) for block in blocks]
        return any(ip in whole and not any(ip in part for part in parts) for whole, parts in networks)

    for block in blocks:
        whole = ip_network(block["cidr"])
        assert all(whole.supernet_of(ip_network(cidr)) for cidr in block["except"])  # type: ignore[arg-type] # versions agree
    metadata = ("169.254.169.254", "fd00:ec2::254", "168.63.129.16", "192.0.0.192", "100.100.100.200")
    private = ("10.96.0.1", "172.17.0.1", "192.168.1.1", "100.64.0.1", "127.0.0.1", "240.10.0.1", "fd12::1", "fe80::1")
    assert [address for address in (*metadata, *private) if is_reached(address)] == []
    assert is_reached("140.82.112.3")
    assert is_reached("2606:50c0:8000::153")
    (limits,) = by_namespace(AGENT, "LimitRange")["trainmaster-jobs-default"]["spec"]["limits"]
    assert limits["type"] == "Container"
    assert limits["max"] == {"cpu": "256", "memory": "4Ti", "ephemeral-storage": "1Ti"}
    assert limits["default"] == {"cpu": "256", "memory": "1Gi", "ephemeral-storage": "10Gi"}
    assert limits["defaultRequest"] == {"cpu": "100m", "memory": "128Mi", "ephemeral-storage": "1Gi"}
    for one in (policy, by_namespace(AGENT, "LimitRange")["trainmaster-jobs-default"]):
        assert one["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


def test_owners_open_and_close_what_jobs_reach() -> None:
    def spec(**network: Any) -> Object:
        values = {**AGENT, "isolation": {"networkPolicy": network}}
        found: Object = by_namespace(values, "NetworkPolicy")["trainmaster-jobs-default"]["spec"]
        return found

    storage = {"to": [{"ipBlock": {"cidr": "10.1.0.0/16"}}], "ports": [{"port": 2049}]}
    assert len(spec(internet=False)["egress"]) == 3
    values = {**AGENT, "arrays": {"enabled": False}}
    assert len(by_namespace(values, "NetworkPolicy")["trainmaster-jobs-default"]["spec"]["egress"]) == 3
    assert spec(internet=False, extraEgress=[storage])["egress"][-1] == storage
    scrape = {"from": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]}
    assert spec(extraIngress=[scrape])["ingress"][-1] == scrape
    off = {"networkPolicy": {"enabled": False}, "limitRange": {"enabled": False}}
    for kind in ("NetworkPolicy", "LimitRange"):
        assert not by_namespace({**AGENT, "isolation": off}, kind)


def test_jobs_do_not_share_the_agents_namespace() -> None:
    done = helm("template", "tm", str(CHARTS / "agent"), "--namespace", "trainmaster-jobs-default", values=AGENT)
    assert done.returncode != 0
    assert "use another one" in done.stderr


@pytest.mark.parametrize("config", [{"namespace": "other"}, {"namespaces": [{"queue": "a", "namespace": "other"}]}])
def test_runs_are_sent_only_where_the_agent_may_create_them(config: Object) -> None:
    values = {**AGENT, "jobNamespaces": ["jobs"], "config": config}
    done = helm("template", "tm", str(CHARTS / "agent"), values=values)
    assert done.returncode != 0
    assert "add it to jobNamespaces" in done.stderr


@pytest.mark.parametrize(
    ("enabled", "config", "used"),
    [
        (["auto"], {}, "auto"),
        (["yunikorn"], {}, "yunikorn"),
        (["kai", "native"], {}, "auto"),
        ([], {}, "gates"),
        (["volcano"], {"scheduler": "gates"}, "gates"),
        (["auto"], {"scheduler": "coscheduling"}, "coscheduling"),
        (["volcano"], {"scheduler": "kai"}, None),
    ],
    ids=str,
)
def test_the_agent_uses_a_scheduler_whose_objects_it_may_use(
    enabled: list[str], config: Object, used: str | None
) -> None:
    values = {**AGENT, "schedulers": enabled, "config": {"placement": config}}
    if used is None:
        assert "add it to schedulers" in helm("template", "tm", str(CHARTS / "agent"), values=values).stderr
    else:
        assert written(values)["placement"]["scheduler"] == used


@pytest.mark.parametrize("placement", [{}, {"scheduler": "auto"}, {"scheduler": "volcano"}], ids=str)
def test_the_packing_scheduler_is_for_pods_that_any_kube_scheduler_places(placement: Object) -> None:
    values = {**AGENT_THAT_PACKS, "config": {"placement": placement}}
    assert "packingScheduler places the pods" in helm("template", "tm", str(CHARTS / "agent"), values=values).stderr


def test_pods_of_jobs_name_the_packing_scheduler_where_there_is_one() -> None:
    objects = rendered("agent", AGENT_THAT_PACKS)
    (config,) = (
        yaml.safe_load(one["data"]["scheduler.yaml"]) for one in objects if "scheduler.yaml" in (one.get("data") or {})
    )
    (profile,) = config["profiles"]
    assert profile == yaml.safe_load((ROOT / "deploy/kube-scheduler/packing.yaml").read_text())["profiles"][1]
    assert profile["schedulerName"] == written(AGENT_THAT_PACKS)["placement"]["schedulerName"] == "trainmaster-packing"
    leases = {
        name
        for one in objects
        if one["kind"] == "Role"
        for rule in one["rules"]
        for name in rule.get("resourceNames", ())
    }
    assert config["leaderElection"]["resourceName"] in leases
    assert "schedulerName" not in written(AGENT)["placement"]


@pytest.mark.parametrize("values", [AGENT, AGENT_EVERYTHING, AGENT_THAT_PACKS], ids=["least", "everything", "packing"])
def test_the_agent_understands_what_it_is_told(values: Object) -> None:
    config = KubernetesCluster.model_validate(written(values))
    assert config.namespace == values.get("jobNamespaces", ["trainmaster-jobs-{top}"])[0]
    assert config.namespace_of("default/team") in config.job_namespaces


def test_the_class_of_job_pods_never_preempts() -> None:
    (one,) = of_kind(rendered("agent", AGENT), "PriorityClass").values()
    assert one["metadata"]["name"] == "trainmaster"
    assert (one["value"], one["preemptionPolicy"], one["globalDefault"]) == (0, "Never", False)
    assert not of_kind(rendered("agent", {**AGENT, "priorityClass": {"create": False}}), "PriorityClass")


def test_the_agent_is_told_what_the_chart_knows_and_what_the_owner_adds() -> None:
    objects = rendered("agent", AGENT_EVERYTHING)
    assert written(AGENT_EVERYTHING) == {
        **AGENT_EVERYTHING["config"],
        "cluster": "east",
        "jobNamespaces": ["jobs-a", "jobs-b"],
        "namespace": "jobs-a",
        "placement": {"scheduler": "volcano", "priorityClass": "trainmaster"},
        "lease": {"namespace": "here", "name": NAME, "duration": "15s"},
        "checkpoint": True,
        "memberStreams": True,
        "arrays": {
            "port": 8471,
            "url": f"http://{NAME}-arrays.here.svc:8471",
            "imageEntryPoints": {"image": "trainmaster-agent:0.1.0"},
        },
        "files": {"image": "trainmaster-agent:0.1.0", "uploadTime": "10m"},
        "useSource": "kubelet",
    }
    (container,) = workloads(objects)[NAME]["spec"]["containers"]
    assert container["args"] == [
        *("agent", "run", "--kubernetes", "/etc/trainmaster/agent.yaml"),
        *("--url", "http://trainmaster.example.com:8470/base"),
        *("--key-file", "/etc/trainmaster-key/key", "--metrics-port", "9470"),
    ]


def test_members_of_arrays_reach_the_agent_from_the_job_namespaces_alone() -> None:
    objects = rendered("agent", AGENT)
    service = of_kind(objects, "Service")[f"{NAME}-arrays"]["spec"]
    pods = workloads(objects)[NAME]["metadata"]["labels"]
    assert service["selector"].items() <= pods.items()
    assert service["ports"] == [{"name": "arrays", "port": 8471, "targetPort": "arrays"}]
    (rule,) = [
        one for one in of_kind(objects, "NetworkPolicy")[NAME]["spec"]["ingress"] if one["ports"][0]["port"] == "arrays"
    ]
    spaces = {one["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"] for one in rule["from"]}
    assert spaces == {"trainmaster-jobs", "trainmaster-jobs-default"}
    none = {**AGENT, "arrays": {"enabled": False}}
    assert f"{NAME}-arrays" not in of_kind(rendered("agent", none), "Service")
    assert not {"arrays", "files"} & written(none).keys(), "files are fetched at the same server"
    assert "files" not in written({**AGENT, "files": {"enabled": False}})


def test_entry_points_of_images_are_read_as_the_owner_says() -> None:
    settings = {
        "pullSecrets": ["regcred"],
        "caConfigMap": "authorities",
        "registries": {"docker.io": "https://mirror.example.com/hub"},
    }
    found = written({**AGENT, "arrays": {"imageEntryPoints": settings}})["arrays"]["imageEntryPoints"]
    assert found == {"image": "trainmaster-agent:0.1.0", **settings}
    assert KubernetesCluster.model_validate(written({**AGENT, "arrays": {"imageEntryPoints": settings}})).arrays
    assert "imageEntryPoints" not in written({**AGENT, "arrays": {"imageEntryPoints": {"enabled": False}}})["arrays"]


def test_the_key_is_a_secret_of_the_chart_or_of_the_owner() -> None:
    made = of_kind(rendered("agent", AGENT), "Secret")
    assert base64.b64decode(made[f"{NAME}-key"]["data"]["key"]).decode() == TOKEN
    assert not of_kind(rendered("agent", AGENT_EVERYTHING), "Secret")
    for values, name, key in ((AGENT, f"{NAME}-key", "key"), (AGENT_EVERYTHING, "key-of-east", "token")):
        volumes = workloads(rendered("agent", values))[NAME]["spec"]["volumes"]
        (secret,) = (volume["secret"] for volume in volumes if "secret" in volume)
        assert (secret["secretName"], secret["items"]) == (name, [{"key": key, "path": "key"}])


def test_a_new_key_or_configuration_starts_new_pods() -> None:
    def notes(values: Object) -> Object:
        found: Object = workloads(rendered("agent", values))[NAME]["metadata"]["annotations"]
        return found

    assert notes(AGENT) != notes({**AGENT, "joinToken": f"{TOKEN}2"})
    assert notes(AGENT) != notes({**AGENT, "config": {"port": 29501}})


@pytest.mark.parametrize(
    ("url", "port"), [("https://tm.example.com", 443), ("http://tm.example.com/x", 80), ("http://[fd00::1]:8470", 8470)]
)
def test_the_agent_reaches_dns_the_api_server_and_its_dispatcher(url: str, port: int) -> None:
    policy = of_kind(rendered("agent", {**AGENT, "url": url}), "NetworkPolicy")[NAME]
    assert [{one["port"] for one in rule["ports"]} for rule in policy["spec"]["egress"]] == [{53}, {443, 6443}, {port}]


# --- the dispatcher's chart


PROCESSES = {"api", "scheduler", "worker", "beat"}


@pytest.mark.parametrize("values", [BUNDLED, URLS, SECRETS, EVERYTHING], ids=IDS[5:])
def test_every_process_is_started_with_options_that_it_has(values: Object) -> None:
    app = typer.Typer()
    register_agent(app)
    register_dispatcher(app)
    commands: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]  # a group has them
    started = set()
    for template in workloads(rendered("dispatcher", values)).values():
        for container in containers(template):
            words = list(container["args"])
            if container["image"].startswith(("postgres:", "redis:")):
                continue
            command = commands[words.pop(0)]
            while hasattr(command, "commands"):
                command = command.commands[words.pop(0)]
            command.make_context(command.name, words)
            started.add(command.name)
    assert started == {"serve", "scheduler", "worker", "beat", "migrate", "bootstrap"}


@pytest.mark.parametrize("values", [BUNDLED, URLS, SECRETS, EVERYTHING], ids=IDS[5:])
def test_the_schema_is_there_before_the_processes_are(values: Object) -> None:
    objects = rendered("dispatcher", values)
    hooks = of_kind(objects, "Job")
    waiting = {name for name, pod in workloads(objects).items() if "initContainers" in pod["spec"]}
    if values is BUNDLED:
        assert hooks.keys() == {"tm-trainmaster-bootstrap"}
        assert waiting == {f"tm-trainmaster-{name}" for name in PROCESSES | {"bootstrap"}}
    else:
        assert not waiting
        annotations = hooks["tm-trainmaster-migrate"]["metadata"]["annotations"]
        assert annotations["helm.sh/hook"] == "pre-install,pre-upgrade"


def test_a_hook_before_the_release_needs_nothing_of_the_release() -> None:
    for values in (URLS, SECRETS, EVERYTHING):
        objects = rendered("dispatcher", values)
        early = {
            name
            for name, one in of_kind(objects, "Secret").items()
            if one["metadata"].get("annotations", {}).get("helm.sh/hook")
        }
        pod = of_kind(objects, "Job")["tm-trainmaster-migrate"]["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        used = {item["valueFrom"]["secretKeyRef"]["name"] for item in container["env"] if "valueFrom" in item}
        assert used == (early or {"db"})
        assert "serviceAccountName" not in pod
        assert "envFrom" not in container


def test_the_admins_key_is_read_by_the_bootstrap_alone() -> None:
    for values, name in ((BUNDLED, "tm-trainmaster-admin-key"), (SECRETS, "admin")):
        objects = rendered("dispatcher", values)
        holders = {who for who, pod in workloads(objects).items() if f'"{name}"' in json.dumps(pod)}
        assert holders == {"tm-trainmaster-bootstrap"}
        assert (name in of_kind(objects, "Secret")) is (values is BUNDLED)
    key = of_kind(rendered("dispatcher", BUNDLED), "Secret")["tm-trainmaster-admin-key"]["data"]["key"]
    assert re.fullmatch(rb"tmk_[A-Za-z0-9]{43}", base64.b64decode(key))


def test_settings_reach_every_process_as_they_were_written() -> None:
    objects = rendered("dispatcher", EVERYTHING)
    data = of_kind(objects, "ConfigMap")["tm-trainmaster"]["data"]
    assert data["TRAINMASTER_LARGEST_BODY_BYTES"] == "33554432"
    assert data["TRAINMASTER_WEBHOOK_ALLOW_HTTP"] == "true"
    assert {name.removeprefix("TRAINMASTER_").lower() for name in data} <= Settings.model_fields.keys()
    for process in PROCESSES:
        (container,) = workloads(objects)[f"tm-trainmaster-{process}"]["spec"]["containers"]
        assert container["envFrom"] == [{"configMapRef": {"name": "tm-trainmaster"}}]
        names = {item["name"] for item in container["env"]}
        assert names >= {"DATABASE_URL", "REDIS_URL", "TRAINMASTER_WEBHOOK_SECRET"}


def test_apis_know_the_issuer_and_its_authority() -> None:
    objects = rendered("dispatcher", EVERYTHING)
    data = of_kind(objects, "ConfigMap")["tm-trainmaster"]["data"]
    found = {name: value for name, value in data.items() if name.startswith("TRAINMASTER_OIDC_")}
    ca_file = found.pop("TRAINMASTER_OIDC_CA_FILE")
    issuers_file = found.pop("TRAINMASTER_OIDC_ISSUERS_FILE")
    assert found == {
        "TRAINMASTER_OIDC_ISSUER": "https://sso.example.com",
        "TRAINMASTER_OIDC_CLIENT_IDS": "trainmaster,other",
        "TRAINMASTER_OIDC_USER_CLAIMS": "email",
        "TRAINMASTER_OIDC_GROUPS_CLAIM": "roles",
        "TRAINMASTER_OIDC_PUBLIC_CLIENT_SECRET": "open",
        "TRAINMASTER_OIDC_BROWSER_CLIENT_ID": "web",
    }
    assert data["TRAINMASTER_PUBLIC_URL"] == "https://tm.example.com"
    spec = workloads(objects)["tm-trainmaster-api"]["spec"]
    maps = {one["name"]: one for one in spec["volumes"] if "configMap" in one}
    secrets = {one["name"]: one.get("valueFrom", {}).get("secretKeyRef") for one in spec["containers"][0]["env"]}
    assert secrets["TRAINMASTER_OIDC_BROWSER_CLIENT_SECRET"] == {"name": "web-client", "key": "secret"}
    paths = {one["name"]: one["mountPath"] for one in spec["containers"][0]["volumeMounts"]}
    assert maps["issuer-files"]["configMap"]["name"] == "files-of-issuers"
    assert EVERYTHING["oidc"]["issuers"][0]["jwksFile"].startswith(paths["issuer-files"])
    assert issuers_file == f"{paths['issuers']}/issuers.yaml"
    text = of_kind(objects, "ConfigMap")[maps["issuers"]["configMap"]["name"]]["data"]["issuers.yaml"]
    assert IssuersFile.model_validate(yaml.safe_load(text)).issuers[0].prefix == "east:"
    volume = maps["issuer"]
    (mount,) = [one for one in spec["containers"][0]["volumeMounts"] if one["name"] == volume["name"]]
    (item,) = volume["configMap"]["items"]
    assert (volume["configMap"]["name"], item["key"]) == ("sso-ca", "root.pem")
    assert f"{mount['mountPath']}/{item['path']}" == ca_file
    for values, is_reached in ((EVERYTHING, True), (BUNDLED, False)):
        egress = of_kind(rendered("dispatcher", values), "NetworkPolicy")["tm-trainmaster-api"]["spec"]["egress"]
        assert (443 in {one["port"] for rule in egress for one in rule["ports"]}) is is_reached


@pytest.mark.parametrize(
    ("endpoint", "port"),
    [("http://collector:4318", 4318), ("https://otel.example.com/base", 443), ("http://collector", 80)],
)
@pytest.mark.parametrize(("chart", "least"), [("dispatcher", BUNDLED), ("agent", AGENT)])
def test_every_process_knows_the_receiver_of_traces_and_reaches_it(
    chart: str, least: Object, endpoint: str, port: int
) -> None:
    whole = (AGENT_EVERYTHING if chart == "agent" else EVERYTHING)["tracing"]
    objects = rendered(chart, least | {"tracing": whole | {"endpoint": endpoint}})
    tracing = [
        {one["name"]: one for one in container.get("env", []) if one["name"].startswith("OTEL_")}
        for deployment in of_kind(objects, "Deployment").values()
        for container in deployment["spec"]["template"]["spec"]["containers"]
        if container["name"] in ("api", "scheduler", "worker", "beat", "agent")
    ]
    assert len(tracing) == (1 if chart == "agent" else 4)
    for variables in tracing:
        headers = variables["OTEL_EXPORTER_OTLP_HEADERS"]["valueFrom"]
        assert headers == {"secretKeyRef": {"name": "tracing", "key": "headers"}}
        assert {name: one["value"] for name, one in variables.items() if "value" in one} == {
            "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
            "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
            "OTEL_TRACES_SAMPLER_ARG": "0.1",
            "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=prod,team=ml",
        }

    def ports(values: Object) -> list[int]:
        policies = of_kind(rendered(chart, values), "NetworkPolicy")
        name = "tm-trainmaster" if chart == "dispatcher" else NAME
        return [one["port"] for rule in policies[name]["spec"]["egress"] for one in rule["ports"]]

    more = list(ports(least | {"tracing": {"endpoint": endpoint}}))
    for one in ports(least):
        more.remove(one)
    assert more == [port], "one rule more than without traces"
    assert "OTEL_" not in str(rendered(chart, least))


def test_apis_reach_the_scheduler_that_leads() -> None:
    objects = rendered("dispatcher", BUNDLED)
    (container,) = workloads(objects)["tm-trainmaster-scheduler"]["spec"]["containers"]
    settings = {item["name"]: item for item in container["env"]}
    assert settings["TRAINMASTER_SCHEDULER_READ_HOST"]["valueFrom"]["fieldRef"]["fieldPath"] == "status.podIP"
    port = int(settings["TRAINMASTER_SCHEDULER_READ_PORT"]["value"])
    assert {"name": "questions", "containerPort": port} in container["ports"]
    egress = of_kind(objects, "NetworkPolicy")["tm-trainmaster-api"]["spec"]["egress"]
    assert port in {one["port"] for rule in egress for one in rule["ports"]}


def test_apis_reach_each_other_for_streams() -> None:
    objects = rendered("dispatcher", BUNDLED)
    (container,) = workloads(objects)["tm-trainmaster-api"]["spec"]["containers"]
    settings = {item["name"]: item for item in container["env"]}
    assert settings["TRAINMASTER_STREAM_HOST"]["valueFrom"]["fieldRef"]["fieldPath"] == "status.podIP"
    port = int(settings["TRAINMASTER_STREAM_PORT"]["value"])
    assert {"name": "streams", "containerPort": port} in container["ports"]
    policy = of_kind(objects, "NetworkPolicy")["tm-trainmaster-api"]["spec"]
    assert port in {one["port"] for rule in policy["egress"] for one in rule["ports"]}
    (taken,) = [rule for rule in policy["ingress"] if rule["ports"] == [{"port": "streams", "protocol": "TCP"}]]
    assert [name for peer in taken["from"] for name in selected(objects, peer["podSelector"])] == ["tm-trainmaster-api"]


def test_bundled_stores_answer_trainmasters_pods_alone() -> None:
    objects = rendered("dispatcher", BUNDLED)
    for store, port in (("postgresql", 5432), ("redis", 6379)):
        spec = of_kind(objects, "NetworkPolicy")[f"tm-trainmaster-{store}"]["spec"]
        assert selected(objects, spec["podSelector"]) == {f"tm-trainmaster-{store}"}
        ((rule,), egress) = spec["ingress"], spec["egress"]
        assert (rule["ports"], egress) == ([{"port": port, "protocol": "TCP"}], [])
        callers = {name for peer in rule["from"] for name in selected(objects, peer["podSelector"])}
        assert callers == {f"tm-trainmaster-{name}" for name in PROCESSES | {"bootstrap"}}


@each_case
def test_no_secret_is_in_the_arguments_of_a_process(chart: str, values: Object) -> None:
    """Whoever sees a node's processes reads their arguments; Kubernetes puts variables there where they are named in them."""
    for name, template in workloads(rendered(chart, values)).items():
        for container in containers(template):
            secret = {item["name"] for item in container.get("env", ()) if "secretKeyRef" in item.get("valueFrom", {})}
            words = " ".join([*container.get("command", ()), *container.get("args", ())])
            assert not {variable for variable in secret if f"$({variable})" in words}, name


def test_the_bundled_redis_reads_its_password_from_a_file() -> None:
    objects = rendered("dispatcher", BUNDLED)
    template = workloads(objects)["tm-trainmaster-redis"]
    (container,) = template["spec"]["containers"]
    (volume,) = [one for one in template["spec"]["volumes"] if "secret" in one]
    (mount,) = [one for one in container["volumeMounts"] if one["name"] == volume["name"]]
    (item,) = volume["secret"]["items"]
    assert container["args"][:2] == ["redis-server", f"{mount['mountPath']}/{item['path']}"]
    data = of_kind(objects, "Secret")[volume["secret"]["secretName"]]["data"]
    password = base64.b64decode(data["redis-password"]).decode()
    assert base64.b64decode(data[item["key"]]).decode() == f"requirepass {password}\n"


def test_both_charts_together_fit_on_a_node_of_two_cpus_beside_a_control_plane() -> None:
    """A control plane and its add-ons ask for some 0.9 CPU; the hooks run beside the rest for a while."""
    requested = {"cpu": 0, "memory": 0}
    for chart, values in (("dispatcher", BUNDLED), ("agent", AGENT)):
        for one in rendered(chart, values):
            if one["kind"] in ("Deployment", "StatefulSet", "Job"):
                for container in one["spec"]["template"]["spec"]["containers"]:
                    for name, text in container["resources"]["requests"].items():
                        requested[name] += one["spec"].get("replicas", 1) * parse_quantity(name, text)
    assert 0 < requested["cpu"] <= parse_quantity("cpu", "1")
    assert 0 < requested["memory"] <= parse_quantity("memory", "2Gi")


def test_metrics_are_not_passed_on_to_the_world() -> None:
    (ingress,) = of_kind(rendered("dispatcher", EVERYTHING), "Ingress").values()
    (rule,) = ingress["spec"]["rules"]
    paths = {path["path"] for path in rule["http"]["paths"]}
    assert paths == {"/v1", "/agent/v1", "/docs", "/redoc", "/openapi.json", "/agent/openapi.json", "/healthz"}


def test_an_ingress_passes_on_all_hosts_of_the_sessions_domain() -> None:
    domain = "sessions.example.com"
    values = EVERYTHING | {
        "settings": {"TRAINMASTER_SESSIONS_DOMAIN": domain},
        "ingress": {"enabled": True, "host": "tm.example.com", "sessionsTlsSecret": "wildcard"},
    }
    (ingress,) = of_kind(rendered("dispatcher", values), "Ingress").values()
    _, rule = ingress["spec"]["rules"]
    assert (rule["host"], [path["path"] for path in rule["http"]["paths"]]) == (f"*.{domain}", ["/"])
    assert ingress["spec"]["tls"] == [{"hosts": [f"*.{domain}"], "secretName": "wildcard"}]


def test_an_autoscaler_takes_the_place_of_a_number() -> None:
    objects = rendered("dispatcher", EVERYTHING)
    (scaler,) = of_kind(objects, "HorizontalPodAutoscaler").values()
    deployment = of_kind(objects, "Deployment")[scaler["spec"]["scaleTargetRef"]["name"]]
    assert "replicas" not in deployment["spec"]


def test_prometheus_reads_every_process_under_the_name_that_rules_know() -> None:
    objects = rendered("dispatcher", EVERYTHING)
    (monitor,) = of_kind(objects, "ServiceMonitor").values()
    read = set()
    for service in of_kind(objects, "Service").values():
        if selects(monitor["spec"]["selector"], service["metadata"]["labels"]):
            read |= selected(objects, {"matchLabels": service["spec"]["selector"]})
    assert read == {f"tm-trainmaster-{name}" for name in PROCESSES}
    jobs = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())["scrape_configs"]
    components = {workloads(objects)[name]["metadata"]["labels"]["app.kubernetes.io/component"] for name in read}
    assert {f"trainmaster-{name}" for name in components | {"agent"}} == {job["job_name"] for job in jobs}
