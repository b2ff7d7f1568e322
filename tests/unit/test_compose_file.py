"""docker-compose.yml: what its schema says, and what each service must and must not have."""

import json
import re
from importlib.resources import files
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from tests import compose_file, dockerfile
from tests.compose_file import ROOT
from trainmaster.protocol.base import Strict
from trainmaster.protocol.durations import parse_duration
from trainmaster.protocol.tenants import ClusterSpec, PriorityClassSpec, QueueSpec
from trainmaster_agent.runtime.local.config import LocalCluster

COMPOSE = compose_file.read()
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
ONE_SHOT = {"migrate", "bootstrap"}
AGENTS = {name for name in SERVICES if name.startswith("agent-")}
PROCESSES = {"api-users", "api-agents", "scheduler-1", "scheduler-2", "worker", "beat", *AGENTS}

each_service = pytest.mark.parametrize("name", SERVICES)


def schema() -> Draft202012Validator:
    package = files("check_jsonschema") / "builtin_schemas" / "vendor" / "compose-spec.json"
    return Draft202012Validator(json.loads(package.read_text()))


def tenants() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((ROOT / "deploy/compose/tenants.yaml").read_text()))


def test_it_is_what_the_compose_specification_allows() -> None:
    assert [f"{error.json_path}: {error.message}" for error in schema().iter_errors(COMPOSE)] == []


@pytest.mark.parametrize(
    "change", [{"imagee": "postgres"}, {"restart": 3}, {"deploy": {"limits": {}}}, {"healthcheck": {"tests": []}}]
)
def test_the_schema_finds_mistakes(change: dict[str, Any]) -> None:
    broken = {**COMPOSE, "services": {**SERVICES, "worker": {**SERVICES["worker"], **change}}}
    assert not schema().is_valid(broken)


def test_every_process_of_the_system_is_there() -> None:
    assert SERVICES.keys() == {"postgres", "redis", "prometheus"} | ONE_SHOT | PROCESSES
    assert {"agent-private", "agent-public", "agent-edge"} == AGENTS
    assert {name for name in SERVICES if compose_file.is_ours(SERVICES[name])} == ONE_SHOT | PROCESSES


@each_service
def test_a_container_may_do_no_more_than_it_needs(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "cap_add" not in service
    assert "privileged" not in service
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service.get("user") != "root"
    assert not {mount.source for mount in compose_file.mounts(service)} & {"/", "/var/run/docker.sock"}


@each_service
def test_a_container_cannot_fill_the_machine(name: str) -> None:
    service = SERVICES[name]
    assert service["deploy"]["resources"]["limits"].keys() == {"cpus", "memory", "pids"}
    assert service["logging"]["options"].keys() == {"max-size", "max-file"}


@each_service
def test_a_machine_of_two_cpus_starts_every_container(name: str) -> None:
    """Docker refuses a container that may use more CPUs than the machine has."""
    limits = compose_file.with_variables(SERVICES[name]["deploy"]["resources"]["limits"], {})
    assert float(limits["cpus"]) <= 2


@each_service
def test_what_shall_run_is_started_again_and_looked_after(name: str) -> None:
    service = SERVICES[name]
    if name in ONE_SHOT:
        assert service["restart"] == "no"
        assert "healthcheck" not in service
    else:
        assert service["restart"] == "unless-stopped"
        assert service["healthcheck"]["test"][0] == "CMD"
    assert parse_duration(service["stop_grace_period"]) >= 10


@each_service
def test_who_is_waited_for_can_be_waited_for(name: str) -> None:
    for other, wait in SERVICES[name].get("depends_on", {}).items():
        expected = "service_completed_successfully" if other in ONE_SHOT else "service_healthy"
        assert wait == {"condition": expected}, other


@each_service
def test_images_are_pinned_and_named_shortly(name: str) -> None:
    image = compose_file.with_variables(SERVICES[name]["image"], {})
    assert re.fullmatch(r"([a-z]+/)?[a-z-]+:v?\d+\.\d+(\.\d+)?", image), image


@each_service
def test_only_this_machine_reaches_what_is_published(name: str) -> None:
    for port in SERVICES[name].get("ports", ()):
        assert port.startswith("127.0.0.1:"), port


@each_service
def test_networks_volumes_and_files_exist(name: str) -> None:
    assert SERVICES[name]["networks"], "not on the default network"
    assert set(SERVICES[name]["networks"]) <= COMPOSE["networks"].keys()
    for mount in compose_file.mounts(SERVICES[name]):
        if mount.is_path:
            assert (ROOT / mount.source).exists(), mount
            assert mount.read_only, mount
        else:
            assert mount.source in COMPOSE["volumes"], mount


def test_nothing_declared_is_left_unused() -> None:
    used = {mount.source for service in SERVICES.values() for mount in compose_file.mounts(service)}
    assert COMPOSE["volumes"].keys() <= used
    assert COMPOSE["networks"].keys() == {net for service in SERVICES.values() for net in service["networks"]}


def test_agents_have_the_agents_image_and_all_others_the_dispatchers() -> None:
    ours = {name: service for name, service in SERVICES.items() if compose_file.is_ours(service)}
    for name, declared in ours.items():
        service = compose_file.with_variables(declared, {"POSTGRES_PASSWORD": "secret"})
        part = "agent" if name.startswith("agent-") else "dispatcher"
        assert (service["build"]["target"], service["image"].partition(":")[0]) == (part, f"trainmaster-{part}"), name
    assert len(ours) > 8


@pytest.mark.parametrize("name", sorted(ONE_SHOT | PROCESSES))
def test_a_new_volume_belongs_to_the_user_of_the_image(name: str) -> None:
    making = next(run for run in dockerfile.stage("base").all("RUN") if "install --directory" in run.rest)
    for mount in compose_file.mounts(SERVICES[name]):
        if not mount.is_path:
            assert mount.target in making.words, mount


@pytest.mark.parametrize("name", sorted(AGENTS))
def test_an_agent_reaches_no_store_and_holds_one_key(name: str) -> None:
    agent = SERVICES[name]
    kind = name.removeprefix("agent-")
    assert agent["networks"] == ["agents"]
    assert "environment" not in agent
    volumes = {mount.source: mount for mount in compose_file.mounts(agent)}
    assert volumes.keys() == {f"./deploy/compose/{kind}.yaml", f"key-{kind}", f"state-{kind}"}
    assert volumes[f"key-{kind}"].read_only
    assert agent["init"] is True


def test_only_the_bootstrap_sees_the_admins_key() -> None:
    holders = {
        name
        for name, service in SERVICES.items()
        if any(mount.source == "key-admin" for mount in compose_file.mounts(service))
    }
    assert holders == {"bootstrap"}


def test_stores_and_agents_are_cut_off_from_the_world() -> None:
    assert COMPOSE["networks"]["stores"]["internal"] is True
    assert COMPOSE["networks"]["agents"]["internal"] is True
    assert SERVICES["postgres"]["networks"] == SERVICES["redis"]["networks"] == ["stores"]


def test_apis_for_agents_can_be_scaled() -> None:
    assert not {"ports", "container_name", "hostname"} & SERVICES["api-agents"].keys()


def test_prometheus_finds_every_process_that_it_is_to_read() -> None:
    config = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    targets = [
        target
        for job in config["scrape_configs"]
        for static in job.get("static_configs", [])
        for target in static["targets"]
    ]
    targets += [
        f"{name}:{dns['port']}"
        for job in config["scrape_configs"]
        for dns in job.get("dns_sd_configs", [])
        for name in dns["names"]
    ]
    assert {target.partition(":")[0] for target in targets} == PROCESSES
    for target in targets:
        name, _, port = target.partition(":")
        assert port in SERVICES[name]["command"], target
        assert set(SERVICES[name]["networks"]) & set(SERVICES["prometheus"]["networks"]), target


def test_postgres_keeps_what_it_has_acknowledged() -> None:
    command = SERVICES["postgres"]["command"]
    settings = dict(word.split("=") for word in command[2::2])
    assert {name: settings[name] for name in ("fsync", "full_page_writes", "synchronous_commit")} == {
        "fsync": "on",
        "full_page_writes": "on",
        "synchronous_commit": "on",
    }
    assert "POSTGRES_INITDB_ARGS" not in SERVICES["postgres"]["environment"]


def test_the_example_of_the_environment_names_what_is_required() -> None:
    lines = (ROOT / "deploy/compose/env.example").read_text().splitlines()
    given = {line.partition("=")[0] for line in lines if line and not line.startswith("#")}
    assert given == compose_file.required_variables()


def test_tenants_and_clusters_are_valid_and_each_cluster_has_an_agent() -> None:
    models: dict[str, type[Strict]] = {"Queue": QueueSpec, "PriorityClass": PriorityClassSpec, "Cluster": ClusterSpec}
    declared = [models[document["kind"]].model_validate(document) for document in tenants()]
    names = {spec.name for spec in declared if isinstance(spec, ClusterSpec)}
    assert {f"agent-{name}" for name in names} == AGENTS
    for name in names:
        LocalCluster.model_validate(yaml.safe_load((ROOT / f"deploy/compose/{name}.yaml").read_text()))
    targets = {mount.target for mount in compose_file.mounts(SERVICES["bootstrap"]) if not mount.is_path}
    assert targets == {"/keys/admin"} | {f"/keys/agent-{name}" for name in names}
