"""Manifests of other projects as they are, taken by kubectl, run as themselves by the projects' own operators.

A whole dispatcher, an agent under the role of its chart, a real control plane with simulated nodes, and the operators that
``TRAINMASTER_OPERATOR_ASSETS`` has (see ``tests.cluster.operators``), which run as processes. Each example file is applied to the
dispatcher's Kubernetes API unmodified. The result of each is expected: one that changes fails the test.

The results are written to ``operators.json`` and ``operators.md`` in the folder of the test.
"""

import asyncio
import json
import os
import re
import shutil
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from bench.kube_stage import KubeCluster, KubeStage
from bench.stage import ADMIN_KEY
from tests.cluster.api import ApiClient, ApiError
from tests.cluster.chart import helm, install_agent
from tests.cluster.control_plane import CONTROLLER_MANAGER, ControlPlane
from tests.cluster.examples import words_of_example
from tests.cluster.fixtures import need_programs
from tests.cluster.kubelet import Kubelet
from tests.cluster.operators import (
    ASSETS,
    CONTROLLERS,
    KUBERNETES,
    OPERATORS,
    examples_of,
    operators,
    present,
    released,
)
from tests.e2e.operator_results import EXPECTED, NOT_TAKEN, REFUSED, RUNS, WAITS
from tests.tls import OPENSSL, served_over_tls
from tests.waiting import eventually
from trainmaster.client.http import Client
from trainmaster.workload_kinds.registry import kind_of

need_programs(whole_module=True)
if not present():
    pytest.skip(f"{ASSETS} names no folder of operators", allow_module_level=True)
if helm() is None or OPENSSL is None:
    pytest.skip("there is no helm to render the agent's chart with, or no openssl", allow_module_level=True)

GROUPS = {
    "most": (KUBERNETES, *(name for name in OPERATORS if name != "mpi-operator")),
    "mpi-operator": ("mpi-operator",),
}
"""What is on a cluster together: the training operator and the MPI operator have kinds of the same name."""
AT_A_TIME = 8
NODES = 16
NODE = {"cpu": "256", "memory": "4096Gi", "pods": "200", "nvidia.com/gpu": "8", "ephemeral-storage": "1Ti"}
LABELS = {"node-type": "training"}
"""By which an example selects nodes."""
RUNTIME = "ClusterTrainingRuntime"
"""A kind of examples that the owner of a cluster makes."""
ALL = ["*"]
POLICY = {
    "level": "baseline",
    **dict.fromkeys(("serviceAccounts", "secrets", "configMaps", "claims", "runtimeClasses", "resourceClaims"), ALL),
    **dict.fromkeys(("storageClasses", "annotations", "labels", "tolerations"), ALL),
}
"""What the queues and the cluster allow: all that a policy can allow and that is in the examples, at the level of most clusters."""
_KEY = "trainmaster.dev/"
_QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
_QUIET_SECONDS = 3.0
"""How long an object has to be running before it is taken for one that runs until it is deleted."""
_PATIENCE = 60.0
"""Seconds in which an object of which nothing is expected changes its state; others have four times as many."""
_PATH = re.compile(r'\b((?:spec|metadata)(?:\.[\w-]+|\[\d+\]|\["[^"]+"\])+)(?=[:, ])')


@dataclass
class Example:
    """A file, and what became of it."""

    project: str
    path: Path
    documents: list[dict[str, Any]]
    result: str = ""
    said: str = ""
    """What kubectl wrote, and for an object that waits or has failed the reason."""

    @property
    def name(self) -> str:
        return f"{self.project}/{self.path.name}"

    @property
    def objects(self) -> list[dict[str, Any]]:
        """The documents that are taken as jobs."""
        return [one for one in self.documents if kind_of(one.get("apiVersion"), one.get("kind"))]

    @property
    def kinds(self) -> str:
        return ", ".join(sorted({f"{one['apiVersion']} {one['kind']}" for one in self.objects}))

    @property
    def names(self) -> set[str]:
        return {str(one.get("metadata", {}).get("name")) for one in self.objects}

    @property
    def namespace(self) -> str | None:
        """The namespace of its queue, for a file that names none."""
        if any((one.get("metadata") or {}).get("namespace") for one in self.documents):
            return None
        queues = [(one.get("metadata", {}).get("labels") or {}).get(_QUEUE_LABEL) for one in self.objects]
        return next((queue for queue in queues if queue), "default")

    @property
    def namespaces(self) -> set[str]:
        named = {(one.get("metadata") or {}).get("namespace") or self.namespace or "default" for one in self.objects}
        return {str(one) for one in named}


def examples(projects: tuple[str, ...]) -> list[Example]:
    """Return the files of projects with an object that is taken as a job."""
    found = []
    for project in projects:
        for path in examples_of(project):
            try:
                example = Example(project, path, [one for one in yaml.safe_load_all(path.read_text()) if one])
            except yaml.YAMLError:  # kubectl says so, too
                found.append(Example(project, path, []))
                continue
            if example.objects:
                found.append(example)
    return found


def runtimes() -> list[dict[str, Any]]:
    """Return the runtimes of Trainer's examples."""
    documents = [one for path in examples_of("trainer") for one in yaml.safe_load_all(path.read_text())]
    return [one for one in documents if one and one["kind"] == RUNTIME]


@dataclass
class Site:
    """The dispatcher, kubectl for it, and the cluster where its jobs run."""

    folder: Path
    examples: list[Example]
    plane: ControlPlane
    member: ApiClient
    kubelet: Kubelet
    api: httpx.AsyncClient
    kubeconfig: Path
    namespaces: list[str]
    """The namespaces for jobs on the member cluster."""
    in_use: dict[str, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))
    """By the name of an object: some examples have objects of the same name."""

    async def kubectl(self, *words: str) -> tuple[int, str]:
        program = shutil.which("kubectl", path=os.environ["KUBEBUILDER_ASSETS"])
        process = await asyncio.create_subprocess_exec(
            str(program),
            f"--kubeconfig={self.kubeconfig}",
            *words,
            env={"HOME": str(self.folder), "PATH": os.environ["PATH"]},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        out, _ = await process.communicate()
        return process.returncode or 0, out.decode()

    async def annotations(self, path: str) -> dict[str, str] | None:
        """Return what the dispatcher says of an object; None if it does not exist."""
        answer = await self.api.get(path)
        if answer.status_code == 404:
            return None
        answer.raise_for_status()
        return {
            key.removeprefix(_KEY): value
            for key, value in (answer.json()["metadata"].get("annotations") or {}).items()
            if key.startswith(_KEY)
        }

    async def left(self) -> set[str]:
        """Return what exists in the namespaces for jobs, apart from events."""
        groups = (await self.member.get("/apis"))["groups"]
        roots = ["/api/v1", *(f"/apis/{one['preferredVersion']['groupVersion']}" for one in groups)]
        found = set()
        for root in roots:
            for kind in (await self.member.get(root))["resources"]:
                if not kind["namespaced"] or "list" not in kind["verbs"] or kind["name"] == "events":
                    continue
                for namespace in self.namespaces:
                    items = (await self.member.get(f"{root}/namespaces/{namespace}/{kind['name']}"))["items"]
                    found |= {f"{namespace}/{kind['name']}/{one['metadata']['name']}" for one in items}
        return found


@pytest.fixture(params=GROUPS)
async def site(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Site]:
    programs = present(*GROUPS[request.param])
    if not programs:
        pytest.skip(f"{ASSETS} names no folder with {' or '.join(GROUPS[request.param])}")
    found = examples((*GROUPS[request.param],))
    for folder in ("plane", "operators", "stage"):
        (tmp_path / folder).mkdir()
    queues = sorted({"default"} | {name for one in found for name in one.namespaces})
    async with AsyncExitStack() as stack:
        plane = await ControlPlane.start(
            tmp_path / "plane", flags={CONTROLLER_MANAGER: [f"--controllers={CONTROLLERS}"]}
        )
        stack.push_async_callback(plane.stop)
        member = await stack.enter_async_context(plane.client())
        kubelet = await stack.enter_async_context(await Kubelet.start(plane))
        kubelet.words_of = words_of_example
        await kubelet.add_nodes("node", NODES, allocatable=NODE, labels=LABELS)
        await stack.enter_async_context(operators(plane, tmp_path / "operators", programs))
        for one in runtimes() if "trainer" in programs else ():
            await member.post("/apis/trainer.kubeflow.org/v1alpha1/clustertrainingruntimes", one)
        agent = await install_agent(plane, "north", f"queues={{{','.join(queues)}}}")
        namespaces = [f"trainmaster-jobs-{queue}" for queue in queues]
        await _open_namespaces(member, namespaces, _accounts([one.objects for one in found]))
        config = agent.config | {"admission": POLICY, "capacity": {"labels": list(LABELS)}}
        stage = KubeStage(tmp_path / "stage", [KubeCluster("north", agent.kubeconfig, config)], queues=queues)
        stack.callback(stage.stop)
        await asyncio.to_thread(stage.start)
        with Client(stage.urls[0], ADMIN_KEY) as client:
            documents = [{"kind": "Queue", "path": queue, "admission": POLICY} for queue in queues]
            await asyncio.to_thread(client.apply, documents, force=True)
        url, certificate = await stack.enter_async_context(served_over_tls(stage.urls[0], tmp_path))
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(json.dumps(_kubeconfig(url, certificate)))
        headers = {"Authorization": f"Bearer {ADMIN_KEY}"}
        api = await stack.enter_async_context(httpx.AsyncClient(base_url=stage.urls[0], headers=headers, timeout=60))
        yield Site(tmp_path, found, plane, member, kubelet, api, kubeconfig, namespaces)


async def _open_namespaces(member: ApiClient, namespaces: list[str], accounts: set[str]) -> None:
    """Let in what meets the baseline, as the owner of a cluster with such operators does, and make the accounts that examples name."""
    label = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "baseline"}}}
    for namespace in namespaces:
        await member.patch(f"/api/v1/namespaces/{namespace}", label)
        for name in sorted(accounts - {"default"}):
            await member.post(f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": name}})


def _accounts(node: Any) -> set[str]:
    """Return the service accounts that a manifest names."""
    if isinstance(node, list):
        return set().union(*map(_accounts, node))
    if not isinstance(node, dict):
        return set()
    found = set().union(*map(_accounts, node.values()))
    return found | {node[key] for key in ("serviceAccountName", "serviceAccount") if isinstance(node.get(key), str)}


def _kubeconfig(url: str, certificate: Path) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": url, "certificate-authority": str(certificate)}}],
        "users": [{"name": "test", "user": {"token": ADMIN_KEY}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test", "namespace": "default"}}],
    }


async def _run(site: Site, example: Example) -> None:
    """Apply a file, follow its objects to the result, and delete it."""
    where = ["-n", example.namespace] if example.namespace else []
    generated = any("generateName" in one.get("metadata", {}) for one in example.objects)
    _, example.said = await site.kubectl("create" if generated else "apply", *where, "-f", str(example.path))
    created = re.findall(r"^[\w.-]+/([\w.-]+) created", example.said, re.MULTILINE)
    results = []
    for one in example.objects:
        name = one.get("metadata", {}).get("name") or next(iter(created), "")
        if name in created:
            path = _path(example, one, name)
            results.append(await _followed(site, example, path))
            await site.api.delete(path)
            await eventually(lambda path=path: _is_gone(site, path), 20)  # type: ignore[misc]
    example.result = "; ".join(dict.fromkeys(results)) or _refusal(example.said)


def _refusal(said: str) -> str:
    """Return the fields that an error names, or its last words where it names none."""
    first, *more = sorted(set(_PATH.findall(said))) or [said.strip().rpartition(": ")[2]]
    return f"{REFUSED}{first}{f' and {len(more)} more' if more else ''}"


def _path(example: Example, document: dict[str, Any], name: str) -> str:
    kind = kind_of(document["apiVersion"], document["kind"])
    assert kind is not None
    root = f"/apis/{kind.api_version}" if "/" in kind.api_version else f"/api/{kind.api_version}"
    namespace = document["metadata"].get("namespace") or example.namespace or "default"
    return f"{root}/namespaces/{namespace}/{kind.plural}/{name}"


async def _is_gone(site: Site, path: str) -> bool:
    return await site.annotations(path) is None


async def _followed(site: Site, example: Example, path: str) -> str:
    """Return how an object has ended, or what it does that does not end."""
    expected = EXPECTED.get(example.name, "")
    loop = asyncio.get_running_loop()
    patience = _PATIENCE * (4 if expected else 1)
    state, since = "", loop.time()
    while True:
        said = await site.annotations(path)
        if said is None:
            return "gone"
        if said.get("state") != state:
            state, since = said.get("state", ""), loop.time()
        quiet = loop.time() - since
        if state in ("succeeded", "failed", "cancelled"):
            return _end(example, state, said.get("message", ""))
        if state == "running" and quiet > (_QUIET_SECONDS if expected == RUNS else patience):
            return RUNS
        if state != "running" and (expected.startswith(WAITS) or quiet > patience):
            reason = (await site.api.get(f"/v1/jobs/{said['job']}/why")).json()["sentence"]
            if expected.startswith(WAITS) and expected.removeprefix(WAITS) in reason:
                return expected
            if quiet > patience:
                return f"{WAITS}{reason}"
        await asyncio.sleep(0.3)


def _end(example: Example, state: str, message: str) -> str:
    example.said += f"\n{message}"
    if state != "failed":
        return state
    _, refused, words = message.partition("the cluster does not take its ")
    return f"{NOT_TAKEN}{words.partition(': ')[2]}" if refused else "fails"


async def test_each_example_comes_to_the_end_that_is_expected_of_it(site: Site) -> None:
    before, found, turns = await site.left(), site.examples, asyncio.Semaphore(AT_A_TIME)

    async def take(example: Example) -> None:
        async with AsyncExitStack() as held:
            for name in sorted(example.names):
                await held.enter_async_context(site.in_use[name])
            await held.enter_async_context(turns)
            try:
                await _run(site, example)
            except (ApiError, AssertionError, httpx.HTTPError, KeyError) as error:
                example.result = f"error: {error!r}"

    await asyncio.gather(*map(take, found))
    _write(site.folder, found)
    print(f"\n{_summary(found)}")

    async def nothing_is_left() -> bool:
        return not await site.left() - before

    left: set[str] = set()
    try:
        await eventually(nothing_is_left, 20)
    except AssertionError:
        left = await site.left() - before
    wrong = {one.name: {"is": one.result, "expected": EXPECTED.get(one.name)} for one in found}
    wrong = {name: both for name, both in wrong.items() if both["is"] != both["expected"]}
    assert (wrong, sorted(left)) == ({}, []), f"{len(wrong)} of {len(found)}: {json.dumps(wrong, indent=1)}"


def _write(folder: Path, found: list[Example]) -> None:
    rows = [{**asdict(one), "name": one.name, "kinds": one.kinds, "path": str(one.path)} for one in found]
    for row in rows:
        del row["documents"]
    (folder / "operators.json").write_text(json.dumps(rows, indent=1))
    lines = [f"| {one.name} | {one.kinds} | {one.result} |" for one in found]
    table = "\n".join(["| file | kinds | result |", "|---|---|---|", *lines])
    (folder / "operators.md").write_text(f"{_summary(found)}\n\n{table}\n")


def _summary(found: list[Example]) -> str:
    """Return a table of kinds with how many of their files came to which end."""
    ends = ("succeeded", "fails", RUNS, "refused", "else")
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for one in found:
        end = one.result.partition(":")[0]
        counts[one.project][end if end in ends else "else"] += 1
    lines = [f"| of | release | files | {' | '.join(ends)} |", "|---" * (len(ends) + 3) + "|"]
    for project, of in counts.items():
        release = released(project)
        lines.append(f"| {project} | {release} | {of.total()} | {' | '.join(str(of[end]) for end in ends)} |")
    return "\n".join(lines)


def test_all_operators_are_met_or_named() -> None:
    """Print which of them the results are of."""
    print(f"operators: {', '.join(f'{name} {released(name)}' for name in present())}")
    assert set(present()) <= set(OPERATORS)
