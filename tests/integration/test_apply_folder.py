"""The life of a large folder of documents, by the commands that a pipeline runs: 300 documents of all kinds, in several files."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import ADMIN_KEY, Service
from tests.integration.test_declarations import contents, shown
from tests.integration.test_declarations_cli import run
from trainmaster.protocol.base import Strict
from trainmaster.protocol.resource_kinds import KINDS
from trainmaster.protocol.states import Exit

Document = dict[str, Any]
Files = dict[str, list[Document]]
"""Documents by the name of their file in the folder."""
PLATFORM = ("--owner", "platform")
NOTHING = "nothing to change: the dispatcher has everything as the files declare it\n"
MANY = 300


@pytest.fixture(autouse=True)
def environment(service: Service, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRAINMASTER_URL", service.url)
    monkeypatch.setenv("TRAINMASTER_API_KEY", ADMIN_KEY)
    monkeypatch.setenv("TRAINMASTER_CONFIG", str(tmp_path / "config.yaml"))


@pytest.fixture
def files() -> Files:
    """Documents of all kinds. Files come in the order of their names, so that most documents come before those that they name."""
    window = {"start": "2036-01-01T00:00:00Z", "end": "2036-01-02T00:00:00Z"}
    return {
        "bursting/policies.yml": [
            {
                "kind": "BurstPolicy",
                "name": f"policy-{n}",
                "queues": [f"dept-{n % 5}/team-{n}", f"dept-{n % 5}"],
                "clusters": [f"cloud-{n % 30}"],
                "when": {"classAtLeast": f"tier-{n % 20}"},
                "budget": {"day": 10 + n},
            }
            for n in range(20)
        ],
        **{
            f"clusters/{region}.yaml": [
                {
                    "kind": "Cluster",
                    "name": f"cloud-{n}",
                    "clusterKind": "public",
                    "region": region,
                    "labels": {"generation": f"g{n % 4}"},
                    "priceBook": f"book-{n % 20}",
                    "onlyQueues": [f"dept-{n % 5}"],
                }
                for n in range(first, first + 10)
            ]
            for region, first in (("eu", 0), ("us", 10), ("asia", 20))
        },
        "datasets.json": [
            {"kind": "Dataset", "name": f"images-{n}", "size": f"{n + 1}Gi", "clusters": [f"cloud-{n}"]}
            for n in range(24)
        ],
        **{f"departments/dept-{d}/queues.yaml": list(_queues(f"dept-{d}")) for d in range(5)},
        "reservations.yaml": [
            {
                "kind": "Reservation",
                "name": f"night-{n}",
                "queue": f"dept-{n % 5}/team-{n}",
                "clusters": [f"cloud-{n}"],
                "nodes": n + 1,
                **window,
            }
            for n in range(10)
        ],
        "roles.yaml": [
            {"kind": "RoleBinding", "name": "all", "groups": ["all"], "role": "user", "queues": ["dept-0/team-1"]}
        ],
        "tiers/classes.yaml": [
            {"kind": "PriorityClass", "name": f"tier-{n}", "value": 10 * n, "longestWait": "1h"} for n in range(20)
        ],
        "tiers/prices.yaml": [
            {"kind": "PriceBook", "name": f"book-{n}", "onDemand": {"cpu": f"0.0{n + 1}"}} for n in range(20)
        ],
    }


def _queues(department: str) -> Iterator[Document]:
    """Yield the queues of 34 teams, and that of their department last."""
    for n in range(34):
        yield {
            "kind": "Queue",
            "path": f"{department}/team-{n}",
            "weight": 1 + n,
            "defaultPriorityClass": f"tier-{n % 20}",
            "limits": {"cpu": 8 + n},
        }
    yield {"kind": "Queue", "path": department, "allowedKinds": ["private", "public"]}


@pytest.fixture
async def fleet(tmp_path: Path, files: Files) -> str:
    """The folder of the files, applied by the platform."""
    folder = written(tmp_path / "fleet", files)
    await run("apply", "-f", folder, *PLATFORM, "--yes")
    return folder


def written(folder: Path, files: Files) -> str:
    """Write files into a folder, beside others that are none of documents; return its path."""
    for name, documents in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            json.dumps(documents) if path.suffix == ".json" else yaml.dump_all(documents, Dumper=yaml.CSafeDumper)
        )
    (folder / "README.md").write_text("kind: none\n")
    (folder / ".draft.yaml").write_text("kind: none\n")
    return str(folder)


def title(document: Document) -> str:
    return f"{document['kind']} {document[KINDS[document['kind']].key]}"


def specs_of(documents: list[Document]) -> dict[str, Strict]:
    """Return what documents declare, with each default, by kind and name."""
    return {title(one): KINDS[one["kind"]].spec.model_validate(one) for one in documents}


async def declared(service: Service) -> dict[str, Strict]:
    """Return what the api shows of all kinds, by kind and name."""
    return specs_in(await contents(service))


def specs_in(found: dict[str, Any]) -> dict[str, Strict]:
    """Return the objects in the contents of a dispatcher, by kind and name."""
    return specs_of([one for kind in KINDS for one in found[kind]])


async def history(*named: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(await run("history", *named, "-o", "json"))
    return found


def queue(files: Files, path: str) -> Document:
    """Return the document of a team's queue, to be changed."""
    return next(one for one in files[f"departments/{path.partition('/')[0]}/queues.yaml"] if one["path"] == path)


def lines_of_objects(said: str) -> list[str]:
    """Return the lines that apply prints after it has made its changes, one for each object."""
    return [line for line in said.splitlines() if line.endswith(("  created", "  changed", "  removed"))]


async def test_a_folder_is_applied_and_nothing_of_it_is_left_to_apply(
    service: Service, tmp_path: Path, files: Files
) -> None:
    documents = [one for each in files.values() for one in each]
    assert (len(documents), {one["kind"] for one in documents}) == (MANY, set(KINDS))
    folder = written(tmp_path / "fleet", files)
    installed = await declared(service)
    said = await run("diff", "-f", folder, *PLATFORM, code=Exit.DIFFERENT)
    effects = [line for line in said.splitlines() if not line.startswith(" ")]
    assert sorted(effects) == sorted(f"+ {title(one)}  create" for one in documents)
    assert await run("apply", "-f", folder, *PLATFORM, "--dry-run") == said
    assert await declared(service) == installed

    done = await run("apply", "-f", folder, *PLATFORM, says="y\n")
    assert f"make {MANY} changes? [y/N]:" in done
    assert lines_of_objects(done) == [f"{line.removeprefix('+ ')}d" for line in effects]
    assert await declared(service) == installed | specs_of(documents)

    before = await contents(service)
    assert await run("diff", "-f", folder, *PLATFORM) == f"no difference in {len(effects)} objects\n"
    assert (await run("apply", "-f", folder, *PLATFORM, "--dry-run")).splitlines(keepends=True)[-1] == NOTHING
    again = await run("apply", "-f", folder, *PLATFORM, "--yes")
    assert again == "".join(f"={line[1:].removesuffix('create')}unchanged\n" for line in effects) + NOTHING
    assert await contents(service) == before, "no revision, no line of the audit, no owner of a field"
    for named in (("queue", "dept-3/team-7"), ("burst-policy", "policy-9"), ("cluster", "cloud-12")):
        found = [(one["revision"], one["action"], one["applier"]) for one in await history(*named)]
        assert found == [(1, "apply", "platform")]


async def test_one_wrong_reference_among_good_changes_is_told_and_nothing_is_applied(
    service: Service, fleet: str, files: Files
) -> None:
    files["datasets.json"].append({"kind": "Dataset", "name": "new", "size": "1Gi", "clusters": ["cloud-1"]})
    files["tiers/prices.yaml"][4]["onDemand"]["cpu"] = "0.9"
    del files["reservations.yaml"][3]
    for n in range(34):
        queue(files, f"dept-1/team-{n}")["weight"] = 100
    named = files["bursting/policies.yml"][8]["queues"]
    named[0] = "dept-3/taem-8"
    written(Path(fleet), files)
    before = await contents(service)
    refusal = (
        "error: the queue does not exist\n"
        f"  {fleet}/bursting/policies.yml document 9: queues[0]: there is no queue 'dept-3/taem-8'; did you mean 'dept-3/team-8'?\n"
    )
    for command in (("diff",), ("apply", "--dry-run"), ("apply", "--yes"), ("apply", "--yes", "--force")):
        said = await run(*command, "-f", fleet, *PLATFORM, "--prune", code=Exit.BAD_REQUEST)
        assert said == refusal
    assert await contents(service) == before

    named[0] = "dept-3/team-8"
    written(Path(fleet), files)
    done = await run("apply", "-f", fleet, *PLATFORM, "--prune", "--yes")
    changed = ["PriceBook book-4", *(f"Queue dept-1/team-{n}" for n in range(34))]
    expected = ["Dataset new  created", *(f"{one}  changed" for one in changed), "Reservation night-3  removed"]
    assert sorted(lines_of_objects(done)) == sorted(expected)


async def test_what_the_files_no_longer_have_is_removed_for_their_owner_alone(
    service: Service, fleet: str, tmp_path: Path, files: Files
) -> None:
    theirs: Files = {
        "own.yaml": [
            {"kind": "Queue", "path": "dept-2/guests", "weight": 2},
            {"kind": "Dataset", "name": "texts", "size": "1Gi"},
        ]
    }
    others = written(tmp_path / "others", theirs)
    await run("apply", "-f", others, "--owner", "vision", "--yes")
    by_hand = await service.http.put("/v1/price-books/by-hand", json={"name": "by-hand"})
    assert by_hand.status_code == 201
    before = await contents(service)
    del files["bursting/policies.yml"][:2], files["reservations.yaml"][-2:], files["datasets.json"][-5:]
    del files["departments/dept-4/queues.yaml"][33]
    (Path(fleet) / "bursting/policies.yml").unlink()
    written(Path(fleet), files)
    gone = [
        *("Reservation night-9", "Reservation night-8", "BurstPolicy policy-1", "BurstPolicy policy-0"),
        *(f"Dataset images-{n}" for n in range(23, 18, -1)),
        "Queue dept-4/team-33",
    ]

    assert (await run("apply", "-f", fleet, *PLATFORM, "--yes")).endswith(NOTHING)
    refused = await run("apply", "-f", fleet, "--prune", code=Exit.USAGE)
    assert refused.startswith("error: --prune needs --owner NAME")
    assert (await run("apply", "-f", others, "--owner", "vision", "--prune", "--yes")).endswith(NOTHING)
    said = await run("diff", "-f", fleet, *PLATFORM, "--prune", code=Exit.DIFFERENT)
    assert sorted(said.splitlines()) == sorted(f"- {one}  remove" for one in gone)
    assert await contents(service) == before

    used = files["tiers/prices.yaml"].pop(7)
    written(Path(fleet), files)
    refused = await run("apply", "-f", fleet, *PLATFORM, "--prune", "--yes", code=Exit.CONFLICT)
    assert refused == (
        "error: the object is still in use\n  PriceBook book-7: price book 'book-7' is named by cloud-27, cloud-7\n"
    )
    assert await contents(service) == before
    files["tiers/prices.yaml"].append(used)
    written(Path(fleet), files)

    done = await run("apply", "-f", fleet, *PLATFORM, "--prune", says="y\n")
    assert "remove 10 objects? [y/N]:" in done
    assert sorted(lines_of_objects(done)) == sorted(f"{one}  removed" for one in gone)
    assert await declared(service) == {name: spec for name, spec in specs_in(before).items() if name not in gone}
    last = (await history("dataset", "images-20"))[0]
    assert (last["action"], last["actor"], last["applier"], last["spec"]) == ("prune", "admin", "platform", None)
    assert (await run("apply", "-f", fleet, *PLATFORM, "--prune", "--yes")).endswith(NOTHING)


@pytest.mark.usefixtures("fleet")
async def test_an_export_of_everything_changes_nothing(service: Service, tmp_path: Path) -> None:
    before = await contents(service)
    everything = specs_in(before)
    assert len(everything) == MANY + 7, "with the queue, the clusters and the classes of the installation"
    text = await run("export")
    assert specs_of(json.loads(await run("export", "-o", "json"))) == everything
    documents = list(yaml.safe_load_all(text))
    assert (len(documents), specs_of(documents)) == (len(everything), everything)
    file = tmp_path / "all.yaml"
    file.write_text(text)
    for terms in (PLATFORM, (*PLATFORM, "--prune"), ("--owner", "else", "--replace")):
        said = await run("apply", "-f", str(file), *terms, "--yes")
        lines = [*(f"= {title(one)}  unchanged\n" for one in documents), NOTHING]
        assert sorted(said.splitlines(keepends=True)) == sorted(lines)
    same = await run("diff", "-f", str(file), "--owner", "else", "--replace")
    assert re.fullmatch(r"no difference in \d+ objects\n", same)
    owners = {"field_owners": 0}  # whoever applies an export owns its fields as well
    assert await contents(service) | owners == before | owners


async def test_a_change_is_rolled_back_by_a_person_whom_the_history_names(
    service: Service, fleet: str, files: Files
) -> None:
    made = await service.http.post("/v1/keys", json={"name": "nora", "role": "admin"})
    named = ("queue", "dept-2/team-5")
    before, exported = await declared(service), await run("export", *named)
    changed = queue(files, named[1])
    changed |= {"weight": 50}
    del changed["defaultPriorityClass"]
    written(Path(fleet), files)
    await run("apply", "-f", fleet, *PLATFORM, "--yes")
    assert await declared(service) != before

    back = await run("--key", made.json()["key"], "rollback", *named, "--yes")
    assert back == (
        "~ Queue dept-2/team-5  change\n"
        "    weight: 50 -> 6\n"
        "    defaultPriorityClass: (unset) -> tier-5\n"
        "Queue dept-2/team-5  is as in revision 1\n"
    )
    assert (await declared(service), await run("export", *named)) == (before, exported)
    found = await history(*named)
    assert [(one["revision"], one["action"], one["actor"], one["applier"]) for one in found] == [
        (3, "rollback", "nora", "nora"),
        (2, "apply", "admin", "platform"),
        (1, "apply", "admin", "platform"),
    ]
    assert found[0]["spec"] == found[2]["spec"]
    (line,) = [line for line in (await run("history", *named)).splitlines() if " rollback " in line]
    assert line.split()[0] == "3"
    assert line.count(" nora ") == 2

    refused = await run("apply", "-f", fleet, *PLATFORM, "--yes", code=Exit.CONFLICT)
    place = f"{fleet}/departments/dept-2/queues.yaml document 6"
    assert refused.splitlines()[1:] == [f"  {place}: weight: is owned by 'nora'"]
    assert await declared(service) == before


async def test_a_field_of_another_applier_is_a_conflict_until_it_is_taken_over_by_force(
    service: Service, fleet: str, tmp_path: Path
) -> None:
    path = "dept-1/team-9"
    theirs: Files = {
        "a/more.yaml": [{"kind": "Dataset", "name": "texts", "size": "1Gi"}],
        "b/queues.yaml": [
            {"kind": "Queue", "path": "dept-1/guests", "weight": 2},
            {"kind": "Queue", "path": path, "maxRunning": 4, "limits": {"cpu": 64}},
        ],
    }
    folder = written(tmp_path / "others", theirs)
    before = await contents(service)
    refusal = (
        "error: 1 change concerns fields of other appliers; apply under the same name as they do, or take the fields over"
        f" with --force\n  {folder}/b/queues.yaml document 2: resources.cpu.limit: is owned by 'platform'\n"
    )
    for command in (("diff",), ("apply", "--dry-run"), ("apply", "--yes")):
        assert await run(*command, "-f", folder, "--owner", "vision", code=Exit.CONFLICT) == refusal
    assert await contents(service) == before

    done = await run("apply", "-f", folder, "--owner", "vision", "--yes", "--force")
    assert f"~ Queue {path}  change\n    resources.cpu.limit: 17 -> 64\n    maxRunning: (unset) -> 4\n" in done
    assert lines_of_objects(done) == [
        "Queue dept-1/guests  created",
        f"Queue {path}  changed",
        "Dataset texts  created",
    ]
    found = await shown(service, f"/v1/queues/{path}")
    assert (found["resources"], found["maxRunning"]) == ({"cpu": {"limit": "64"}}, 4)
    assert (found["weight"], found["defaultPriorityClass"]) == (10, "tier-9"), "fields of the platform stay"
    assert (await history("queue", path))[0]["applier"] == "vision"
    refused = await run("apply", "-f", fleet, *PLATFORM, "--yes", code=Exit.CONFLICT)
    place = f"{fleet}/departments/dept-1/queues.yaml document 10"
    assert refused.splitlines()[1:] == [f"  {place}: resources.cpu.limit: is owned by 'vision'"]


async def test_who_applies_what_is_there_already_owns_it_from_then_on(service: Service, tmp_path: Path) -> None:
    await service.http.put("/v1/datasets/texts", json={"name": "texts", "size": "1Gi"})
    exported = tmp_path / "all.yaml"
    exported.write_text(await run("export"))
    assert (await run("apply", "-f", str(exported), *PLATFORM)).endswith(NOTHING), "without a question"
    rest = [one for one in yaml.safe_load_all(exported.read_text()) if one["kind"] != "Dataset"]
    exported.write_text(yaml.safe_dump_all(rest))
    refused = await run("apply", "-f", str(exported), *PLATFORM, "--prune", "--yes", code=Exit.CONFLICT)
    assert "Dataset texts: is not removed: fields of it are owned by 'admin'" in refused, "who had set them by hand"
    done = await run("apply", "-f", str(exported), *PLATFORM, "--prune", "--yes", "--force")
    assert lines_of_objects(done) == ["Dataset texts  removed"]


async def test_a_value_that_two_declare_stays_when_one_of_them_takes_it_out(service: Service, tmp_path: Path) -> None:
    one, two = tmp_path / "one.yaml", tmp_path / "two.yaml"
    for file, name in ((one, "one"), (two, "two")):
        file.write_text("kind: Queue\npath: shared\nweight: 2\n")
        await run("apply", "-f", str(file), "--owner", name, "--yes")
    one.write_text("kind: Queue\npath: shared\nweight: 3\n")
    refused = await run("apply", "-f", str(one), "--owner", "one", "--yes", code=Exit.CONFLICT)
    assert "weight: is owned by 'two'" in refused
    one.write_text("kind: Queue\npath: shared\n")
    assert (await run("apply", "-f", str(one), "--owner", "one", "--yes")).endswith(NOTHING)
    assert (await shown(service, "/v1/queues/shared"))["weight"] == 2
    two.write_text("kind: Queue\npath: shared\nweight: 3\n")
    assert lines_of_objects(await run("apply", "-f", str(two), "--owner", "two", "--yes")) == ["Queue shared  changed"]


@pytest.mark.parametrize("by_hand", ["rollback", "patch", "put"])
async def test_a_field_that_a_person_unsets_is_not_set_again_without_a_conflict(
    service: Service, tmp_path: Path, by_hand: str
) -> None:
    file = tmp_path / "queue.yaml"
    for more in ("", "maxRunning: 3\n"):
        file.write_text(f"kind: Queue\npath: q\nweight: 2\n{more}")
        await run("apply", "-f", str(file), *PLATFORM, "--yes")
    match by_hand:
        case "rollback":
            await run("rollback", "queue", "q", "--yes")
        case "patch":
            await run("patch", "queue", "q", "-p", '{"maxRunning": null}')
        case _:
            (await service.http.put("/v1/queues/q", json={"path": "q", "weight": 2})).raise_for_status()
    assert (await shown(service, "/v1/queues/q")).get("maxRunning") is None
    refused = await run("apply", "-f", str(file), *PLATFORM, "--yes", code=Exit.CONFLICT)
    assert "maxRunning: is owned by 'admin'" in refused
    await run("apply", "-f", str(file), *PLATFORM, "--yes", "--force")
    assert (await shown(service, "/v1/queues/q"))["maxRunning"] == 3
    assert (await run("apply", "-f", str(file), *PLATFORM, "--yes")).endswith(NOTHING)
