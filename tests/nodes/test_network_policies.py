"""The NetworkPolicies of the agent's chart on real nodes, where a program of another project enforces them."""

import asyncio
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.cluster.chart import JOBS
from tests.nodes.machine import Machine
from tests.nodes.network import GATEWAY, pods_of
from tests.nodes.requirements import need_real_nodes
from tests.nodes.system import NodeSystem, open_system

need_real_nodes()

ENFORCER = "TRAINMASTER_NETWORK_POLICIES"
PROGRAM = shutil.which(os.environ.get(ENFORCER) or "/nonexistent")
if PROGRAM is None:
    pytest.skip(f"{ENFORCER} names no program kube-network-policies", allow_module_level=True)
if shutil.which("iptables") is None:
    pytest.skip("the program iptables is missing", allow_module_level=True)

RESEARCH = "trainmaster-jobs-research"
ACCOUNT = "network-policies"
_QUEUE = 100
OBJECTS = [
    {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ACCOUNT, "namespace": "kube-system"}},
    {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": ACCOUNT},
        "rules": [
            {"apiGroups": [""], "resources": ["pods", "namespaces", "nodes"], "verbs": ["list", "watch"]},
            {"apiGroups": ["networking.k8s.io"], "resources": ["networkpolicies"], "verbs": ["list", "watch"]},
        ],
    },
    {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": ACCOUNT},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": ACCOUNT},
        "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": "kube-system"}],
    },
]
SERVER = "while :; do echo word-$TRAINMASTER_RANK | nc -l -p 7777; done & echo serves; sleep 600"
PROBE = """
(while :; do echo word-$TRAINMASTER_RANK | nc -l -p 7777; done) &
sleep 5
probe() {{
  if nc -w 2 $2 $3 </dev/null >/dev/null 2>&1; then verb=reaches; else verb=misses; fi
  echo rank $TRAINMASTER_RANK $verb $1
}}
while [ ! -e /tmp/end ]; do
  for peer in $(cut -d: -f1 $TRAINMASTER_ADDRESSES_FILE); do probe peer $peer 7777; done
  probe server {server} 7777; probe api-server {gateway} {port}
  sleep 1
done
"""
"""Says again and again whom a member reaches: the members of its own gang by name, a member of another job, and the API server."""


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeSystem]:
    """Provide a system whose nodes enforce NetworkPolicies, with a namespace for each of two queues. DNS is outside the cluster."""
    values = ("queues={default,research}", f"isolation.networkPolicy.dns.to[0].ipBlock.cidr={GATEWAY}/32")
    folder = tmp_path_factory.mktemp("policies")
    with open_system(folder, Path(os.environ["KUBE_BIN"]), values=values, queues=("default", "research")) as system:
        path = folder / "enforcer.yaml"
        path.write_text(yaml.safe_dump_all(OBJECTS))
        system.kubectl("apply", "-f", str(path))
        token = asyncio.run(system.plane.service_account_token("kube-system", ACCOUNT, 24 * 3600))
        for machine in system.machines.values():
            enforce(system, machine, token)
        yield system


def enforce(system: NodeSystem, machine: Machine, token: str) -> None:
    """Run the program on a node as its pod would run, between the node's own pods as well.

    A kernel whose nftables have no queues refuses the program's own rules: iptables have them, too.
    """
    account = "/run/secrets/kubernetes.io/serviceaccount"
    (machine.folder / "token").write_text(token)
    script = f"""
    echo 1 > /proc/sys/net/bridge/bridge-nf-call-iptables
    rule="iptables -w -t mangle -A POSTROUTING"
    $rule -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT
    $rule -s {pods_of(machine.number)} -j NFQUEUE --queue-num {_QUEUE}
    $rule -d {pods_of(machine.number)} -j NFQUEUE --queue-num {_QUEUE}
    mkdir -p {account}
    cp {machine.folder}/token {account}/token
    cp {system.plane.ca_file} {account}/ca.crt
    export KUBERNETES_SERVICE_HOST={GATEWAY} KUBERNETES_SERVICE_PORT={system.plane.url.rpartition(":")[2]}
    exec {PROGRAM} --hostname-override={machine.name} --disable-nri --nfqueue-id={_QUEUE} --v=2
    """
    machine.add_daemon("network-policies", script)


def submit(system: NodeSystem, name: str, queue: str, server: str) -> str:
    """Submit a gang with a member on each node that probes; return its id once both probe."""
    (pod,) = system.pods(server)
    port = system.plane.url.rpartition(":")[2]
    script = PROBE.format(server=pod["status"]["podIP"], gateway=GATEWAY, port=port)
    template = {"command": ["sh", "-c", script], "resources": {"cpu": "1100m", "memory": "64Mi"}}
    job = system.submit_template(name, template, replicas=2, queue=queue)
    system.until_state(job, "running")
    return job


def until_said(system: NodeSystem, job: str, what: str, times: int = 3) -> None:
    """Wait until both members have said something several times."""

    def said() -> bool:
        output = system.output(job)
        return all(output.count(f"rank {rank} {what}") >= times for rank in range(2))

    system.until(said, lambda: f"{what}: {system.output(job)}; {system.describe(job)}", 90)


def end(system: NodeSystem, job: str) -> None:
    system.client.cancel(job)
    system.until_ended(job)


def test_members_reach_those_of_their_own_queue_and_no_others_as_the_chart_says(system: NodeSystem) -> None:
    server = system.submit("server", SERVER)
    system.until_printed(server, "serves")

    friends = submit(system, "friends", "default", server)
    assert {pod["spec"]["nodeName"] for pod in system.pods(friends)} == {"node-1", "node-2"}
    for what in ("reaches peer", "reaches server", "misses api-server"):
        until_said(system, friends, what)
    end(system, friends)

    strangers = submit(system, "strangers", "research", server)
    assert {pod["spec"]["nodeName"] for pod in system.pods(strangers, RESEARCH)} == {"node-1", "node-2"}
    for what in ("reaches peer", "misses server", "misses api-server"):
        until_said(system, strangers, what, times=5)
    assert re.search("reaches (server|api-server)", system.output(strangers)) is None

    for namespace in (JOBS, RESEARCH):
        system.kubectl("-n", namespace, "delete", "networkpolicies", "--all")
    for what in ("reaches server", "reaches api-server"):
        until_said(system, strangers, what)
    end(system, strangers)
    end(system, server)
