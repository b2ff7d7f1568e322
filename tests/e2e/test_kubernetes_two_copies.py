"""Kubernetes agents without their records, and two with one key, on a real control plane: no two copies of a member ever live at once.

The members ignore SIGTERM and live until they are killed, so that a copy that is started too early meets them. What lives is read from
the kubelet's records.
"""

import asyncio
import copy
import itertools
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import yaml

from bench.kube_stage import KubeCluster
from bench.stage import ADMIN_KEY, PROGRAM
from tests.cluster.chart import NAMESPACE, helm
from tests.cluster.fixtures import need_programs
from tests.cluster.sandbox import Life, overlaps
from tests.e2e.fault_testbed import RUN_LABEL, Environment, a_gang, open_testbed, path_of, until
from trainmaster.client.http import Client
from trainmaster_agent.kube.pods import LABEL_INDEX, LABEL_ROLE
from trainmaster_agent.runtime.kubernetes import orphans
from trainmaster_dispatcher.cli.embedded import free_port, redis_command
from trainmaster_dispatcher.cli.up import Child

need_programs(whole_module=True)
if helm() is None:
    pytest.skip("there is no helm to render the agent's chart with", allow_module_level=True)

ROUNDS = int(os.environ.get("TRAINMASTER_ROUNDS", "1"))
"""How often each scenario is played."""
ACTS = "this replica holds the lease and acts now"
NODES = {"north": (2, {"cpu": "4", "memory": "16Gi", "pods": "50"})}
SIZE, GRACE = 4, "2s"
AGENT, RIVAL = "agent-north", "rival-north"
_numbers = itertools.count()


def member_identity(life: Life) -> tuple[str, str, str]:
    """Return job, role and index of a member: the same for its copies in other runs."""
    labels = life.labels
    return labels[RUN_LABEL].rpartition("-r")[0], labels[LABEL_ROLE], labels[LABEL_INDEX]


def no_copies_met(testbed: Environment) -> None:
    assert not overlaps(testbed.site.kubelet.starts, key=member_identity)


# -- what becomes of the records


async def delete_the_records(testbed: Environment) -> None:
    testbed.kill(AGENT)
    for record in await testbed.site.objects("records"):
        await testbed.site.apply("DELETE", path_of("records", record["metadata"]["name"]))
    testbed.start(AGENT)


async def delete_records_and_lease(testbed: Environment) -> None:
    """Delete everything by which the next agent could recognise its predecessor."""
    testbed.kill(AGENT)
    for record in await testbed.site.objects("records"):
        await testbed.site.apply("DELETE", path_of("records", record["metadata"]["name"]))
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
    for lease in (await testbed.site.api.get(leases))["items"]:
        await testbed.site.apply("DELETE", f"{leases}/{lease['metadata']['name']}")
    testbed.start(AGENT)


async def move_the_records(testbed: Environment) -> None:
    """Configure another namespace for the agent's records: the existing ones stay where they are."""
    testbed.kill(AGENT)
    child = testbed.stage.children[AGENT]
    child.command = await in_other_namespace(testbed, f"records-{next(_numbers)}", lease=False)
    testbed.start(AGENT)


async def in_other_namespace(testbed: Environment, namespace: str, *, lease: bool) -> list[str]:
    """Return the command of an agent with its records, and perhaps its lease, in a namespace of its own with the same rights."""
    api, roles = testbed.site.api, "/apis/rbac.authorization.k8s.io/v1/namespaces"
    await api.post("/api/v1/namespaces", {"metadata": {"name": namespace}})
    for kind in ("roles", "rolebindings"):
        for one in (await api.get(f"{roles}/{NAMESPACE}/{kind}"))["items"]:
            if "trainmaster" not in one["metadata"]["name"]:
                continue
            kept = {key: value for key, value in one.items() if key != "metadata"}
            await api.post(f"{roles}/{namespace}/{kind}", {**kept, "metadata": {"name": one["metadata"]["name"]}})
    cluster = testbed.stage.clusters[0]
    config = copy.deepcopy(dict(cluster.config)) | {"recordNamespace": namespace}
    if lease:
        config["lease"] = {**config["lease"], "namespace": namespace}
    command = testbed.stage.agent_command(KubeCluster(cluster.name, cluster.kubeconfig, config))
    path = testbed.stage.folder / f"{namespace}.yaml"
    path.write_text(yaml.safe_dump(config))
    testbed.stage.agent_command(cluster)  # what it had written before
    return [str(path) if word.endswith(f"/{cluster.name}.yaml") else word for word in command]


# -- what is then wanted of the job


def act(testbed: Environment, do: Callable[[Client], object]) -> Awaitable[object]:
    def call() -> object:
        with Client(testbed.stage.urls[0], ADMIN_KEY) as client:
            return do(client)

    return asyncio.to_thread(call)


async def suspend(testbed: Environment, job: str) -> None:
    await act(testbed, lambda client: client.suspend(job))
    await testbed.until_job(job, "held")
    await act(testbed, lambda client: client.resume(job))


async def drain(testbed: Environment, job: str) -> None:
    await act(testbed, lambda client: client.drain("north"))
    await act(testbed, lambda client: client.cordon("north", on=False))


async def preempt(testbed: Environment, job: str) -> None:
    """Submit a job of a higher class that takes the capacity, and cancel it once it has it."""
    other = await testbed.submit(a_gang("urgent", SIZE, "run", cpu="2", priorityClass="high"))
    await testbed.until_job(other, "running")
    await act(testbed, lambda client: client.cancel(other))
    await testbed.until_job(other, "cancelled")


async def cancel(testbed: Environment, job: str) -> None:
    await act(testbed, lambda client: client.cancel(job))
    await testbed.until_job(job, "cancelled")


async def end(testbed: Environment, job: str) -> None:
    if (await testbed.job(job)).state != "cancelled":
        await cancel(testbed, job)
    await until(lambda: not testbed.site.kubelet.living(), "no member lives")


def starts_of(testbed: Environment, job: str) -> int:
    return sum(life.labels[RUN_LABEL].startswith(f"{job}-r") for life in testbed.site.kubelet.starts)


@pytest.mark.parametrize("loss", [delete_the_records, delete_records_and_lease, move_the_records])
async def test_a_job_whose_agent_lost_its_records_runs_once_at_a_time(
    tmp_path: Path, loss: Callable[[Environment], Awaitable[None]]
) -> None:
    async with open_testbed(tmp_path, NODES) as testbed:
        for number in range(ROUNDS):
            for action in (suspend, drain, preempt, cancel):
                name = f"{action.__name__}-{number}"
                job = await testbed.submit(a_gang(name, SIZE, "stubborn", cpu="2", stopGrace=GRACE))
                await testbed.until_job(job, "running")
                await loss(testbed)
                await testbed.until_said(AGENT, ACTS)
                await testbed.until_cluster("north", lambda cluster: cluster.state == "ready")
                await action(testbed, job)
                if action is not cancel:
                    await until(lambda job=job: starts_of(testbed, job) == 2 * SIZE, f"{name} has run again")  # type: ignore[misc]
                await end(testbed, job)
                no_copies_met(testbed)
        print(f"\n{loss.__name__}: {4 * ROUNDS} losses, {len(testbed.site.kubelet.starts)} starts, no copies met")


async def test_two_agents_with_one_key_do_not_take_turns(tmp_path: Path) -> None:
    """The second has its records and its Lease elsewhere, so that only the dispatcher can know of both."""
    async with open_testbed(tmp_path, NODES) as testbed:
        command = await in_other_namespace(testbed, "rival", lease=True)
        for number in range(ROUNDS):
            job = await testbed.submit(a_gang(f"steady-{number}", SIZE, "stubborn", cpu="2", stopGrace=GRACE))
            await testbed.until_job(job, "running")
            lives = {life.uid for life in testbed.site.kubelet.living()}
            rival = f"{RIVAL}-{number}"
            testbed.stage.add(rival, command)
            await testbed.until_said(rival, "another agent with other records acts for cluster")
            await asyncio.sleep(2)
            assert {life.uid for life in testbed.site.kubelet.living()} == lives
            if number % 2:
                testbed.kill(
                    AGENT
                )  # the second is served once the first has been silent for a lease, and takes all of it over
                await until(lambda rival=rival: ACTS in testbed.log(rival), "the rival acts")  # type: ignore[misc]
                await testbed.until_cluster("north", lambda cluster: cluster.orphaned_runs == 1)
                await asyncio.sleep(orphans._PATIENCE + 2)
                assert {life.uid for life in testbed.site.kubelet.living()} == lives, (
                    "what other records hold is left alone"
                )
                await act(testbed, lambda client, job=job: client.cancel(job))  # type: ignore[misc]
                await until(lambda: not testbed.site.kubelet.living(), "no member lives")
                await testbed.until_job(job, "cancelled")
                testbed.kill(rival)
                testbed.start(AGENT)
                probe = await testbed.submit(a_gang("probe", 1, "run"))
                await testbed.until_job(probe, "running")  # once the first is served again
                await end(testbed, probe)
            else:
                testbed.kill(rival)
                assert len((await testbed.job(job)).runs) == 1
                await end(testbed, job)
            no_copies_met(testbed)
        print(f"\ntwo agents with one key, {ROUNDS} times: {len(testbed.site.kubelet.starts)} starts, no copies met")


def add_installation(testbed: Environment, number: int, agent: list[str]) -> tuple[str, list[str]]:
    """Start a second installation on the database of the first one: a Redis, an api, a scheduler, and an agent that speaks to them.

    Return the address of its api, and the names of its processes, the agent's first.
    """
    stage, port, redis_port = testbed.stage, free_port(), free_port()
    env = {**stage.env, "REDIS_URL": f"redis://127.0.0.1:{redis_port}/0"}
    url = f"http://127.0.0.1:{port}"
    agent = [url if before == "--url" else word for before, word in itertools.pairwise(["", *agent])]
    commands = {
        f"{RIVAL}-{number}": agent,
        f"other-redis-{number}": redis_command(redis_port),
        f"other-api-{number}": [*PROGRAM, "serve", "--port", str(port)],
        f"other-scheduler-{number}": [*PROGRAM, "scheduler"],
    }
    for name, command in commands.items():
        stage.children[name] = Child(name, command, env, stage.folder / "logs" / f"{name}.log")
        stage.children[name].start()
    return url, list(commands)


async def test_two_installations_on_one_database_run_each_job_once(tmp_path: Path) -> None:
    """Jobs come in by both apis, and in every other round the second installation's scheduler has to take over."""
    async with open_testbed(tmp_path, NODES) as testbed:
        command = await in_other_namespace(testbed, "rival", lease=True)
        for number in range(ROUNDS):
            lasting = await testbed.submit(a_gang(f"lasting-{number}", SIZE, "stubborn", stopGrace=GRACE))
            await testbed.until_job(lasting, "running")
            lives = {life.uid for life in testbed.site.kubelet.living()}
            url, names = add_installation(testbed, number, command)
            await testbed.until_said(names[0], "another agent with other records acts for cluster")
            if number % 2:
                testbed.kill("scheduler-0")
            with Client(url, ADMIN_KEY) as client:
                by_the_other = (
                    await asyncio.to_thread(client.submit, a_gang(f"by-the-other-{number}", 2, "stubborn"))
                )[0]
            by_the_first = await testbed.submit(a_gang(f"by-the-first-{number}", 2, "stubborn"))
            for job in (by_the_other, by_the_first):
                await testbed.until_job(job, "running")
                assert (starts_of(testbed, job), len((await testbed.job(job)).runs)) == (2, 1)
            assert lives <= {life.uid for life in testbed.site.kubelet.living()}
            with Client(url, ADMIN_KEY) as client:
                for job in (lasting, by_the_other, by_the_first):
                    await asyncio.to_thread(client.cancel, job)
            await until(lambda: not testbed.site.kubelet.living(), "no member lives")
            for name in names:
                testbed.kill(name)
            if number % 2:
                testbed.start("scheduler-0")
            no_copies_met(testbed)
        starts = len(testbed.site.kubelet.starts)
        assert starts == ROUNDS * (SIZE + 4)
        print(f"\ntwo installations on one database, {ROUNDS} times: {starts} starts, no copies met")
