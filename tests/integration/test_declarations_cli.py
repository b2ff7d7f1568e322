"""The commands for declared state, on a real dispatcher: a folder is applied, pruned, exported, applied again and rolled back."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from tests.conftest import ADMIN_KEY, Service
from tests.integration.test_conditions import OBJECTS
from tests.integration.test_declarations import contents, folder, shown
from trainmaster import AsyncClient
from trainmaster.cli.main import app
from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.protocol.resource_kinds import KINDS
from trainmaster.protocol.states import Exit


@pytest.fixture
def environment(service: Service, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRAINMASTER_URL", service.url)
    monkeypatch.setenv("TRAINMASTER_API_KEY", ADMIN_KEY)
    monkeypatch.setenv("TRAINMASTER_CONFIG", str(tmp_path / "config.yaml"))


async def run(*words: str, says: str | None = None, code: int = 0) -> str:
    """Return what a command has printed, on stdout and stderr."""
    done = await asyncio.to_thread(CliRunner().invoke, app, list(words), input=says)
    assert done.exit_code == code, done.output
    return done.output


def write(path: Path, *documents: dict[str, Any]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump_all(documents))
    return str(path)


@pytest.mark.usefixtures("environment")
async def test_a_folder_of_files_is_the_state_of_the_dispatcher(service: Service, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    documents = folder(12)
    for number, document in enumerate(documents):
        write(tree / f"part-{number % 3}" / f"{number:03d}.yaml", document)
    owner = ("--owner", "git", "--prune")
    await run("diff", "-f", str(tree), *owner, code=Exit.DIFFERENT)
    made = await run("apply", "-f", str(tree), *owner, "--yes")
    assert made.count("  created\n") == len(documents)
    before = await contents(service)
    assert "nothing to change" in await run("apply", "-f", str(tree), *owner)
    await run("diff", "-f", str(tree), *owner)
    (tree / "part-1/007.yaml").unlink()
    dropped = documents[7]["path"]
    tried = await run("apply", "-f", str(tree), *owner, "--dry-run")
    assert f"- Queue {dropped}  remove\n" in tried
    assert await contents(service) == before
    confirmed = await run("apply", "-f", str(tree), *owner, says="y\n")
    assert "remove 1 object?" in confirmed
    assert f"Queue {dropped}  removed\n" in confirmed
    assert (await service.http.get(f"/v1/queues/{dropped}")).status_code == 404
    back = await run("rollback", "queue", dropped, "--yes")
    assert f"+ Queue {dropped}  create\n" in back
    assert (await shown(service, f"/v1/queues/{dropped}"))["weight"] == documents[7]["weight"]


@pytest.mark.usefixtures("environment")
async def test_one_wrong_reference_is_told_with_its_file_and_nothing_is_applied(
    service: Service, tmp_path: Path
) -> None:
    good = write(tmp_path / "a.yaml", {"kind": "Queue", "path": "ok1"}, {"kind": "Queue", "path": "ok2"})
    bad = write(
        tmp_path / "b.yaml",
        {"kind": "Queue", "path": "bad1", "defaultPriorityClass": "nosuch"},
        {"kind": "Cluster", "name": "west", "priceBook": "nosuch"},
    )
    before = await contents(service)
    for words in (("--dry-run",), ("--yes",)):
        said = await run("apply", "-f", str(tmp_path), *words, code=Exit.BAD_REQUEST)
        assert f"  {bad} document 1: defaultPriorityClass: there is no priority class 'nosuch'" in said
        assert f"  {bad} document 2: priceBook: there is no price book 'nosuch'" in said
        assert good not in said
    assert await contents(service) == before


@pytest.mark.usefixtures("environment")
async def test_two_owners_share_an_object(tmp_path: Path) -> None:
    ours = write(tmp_path / "ours.yaml", {"kind": "Queue", "path": "q", "weight": 2})
    theirs = write(tmp_path / "theirs.yaml", {"kind": "Queue", "path": "q", "weight": 3, "maxRunning": 1})
    await run("apply", "-f", ours, "--owner", "ours", "--yes")
    said = await run("apply", "-f", theirs, "--owner", "theirs", "--yes", code=Exit.CONFLICT)
    assert f"  {theirs}: weight: is owned by 'ours'" in said
    taken = await run("apply", "-f", theirs, "--owner", "theirs", "--yes", "--force")
    assert "    weight: 2 -> 3\n" in taken
    await run("apply", "-f", ours, "--owner", "ours", "--yes", code=Exit.CONFLICT)


@pytest.mark.usefixtures("environment")
@pytest.mark.parametrize("form", ["yaml", "json"])
async def test_an_export_can_be_applied_again(service: Service, tmp_path: Path, form: str) -> None:
    for address, first, second in OBJECTS.values():
        for body in (first, second):
            assert (await service.http.put(address, json=body)).is_success
    text = await run("export", "-o", form)
    again = await run("apply", "-f", "-", "--owner", "else", says=text)
    assert again.endswith("nothing to change: the dispatcher has everything as the files declare it\n")
    kinds = {one["kind"] for one in (json.loads(text) if form == "json" else yaml.safe_load_all(text))}
    assert kinds == set(KINDS)
    file = tmp_path / f"all.{form}"
    file.write_text(text)
    assert "nothing to change" in await run("apply", "-f", str(file), "--replace")
    one = await run("export", "queue", "team")
    assert yaml.safe_load(one) == {"kind": "Queue", "path": "team", "weight": 3.0}
    await run("export", "queue", "none", code=Exit.NOT_FOUND)


@pytest.mark.usefixtures("environment")
async def test_a_list_of_the_api_is_refused_with_the_way_to_documents() -> None:
    text = await run("queues", "-o", "yaml")
    said = await run("apply", "-f", "-", says=text, code=Exit.BAD_REQUEST)
    assert "stdin: jobs: is shown by the API and cannot be declared; trainmaster export writes" in said


@pytest.mark.usefixtures("environment")
@pytest.mark.parametrize(("address", "first", "second"), OBJECTS.values(), ids=OBJECTS)
async def test_each_kind_is_shown_patched_traced_rolled_back_and_removed(
    service: Service, address: str, first: dict[str, Any], second: dict[str, Any]
) -> None:
    await service.http.put(address, json=first)
    kind = next(one for one in KINDS.values() if address.startswith(f"{one.address}/"))
    named = (kind.command, kind.name_in(first))
    assert yaml.safe_load(await run("get", *named))[kind.key] == named[1]
    assert named[1] in {one[kind.key] for one in yaml.safe_load(await run("get", kind.kind))}
    await run("patch", *named, "-p", json.dumps(second))
    found = json.loads(await run("history", *named, "-o", "json"))
    assert [(one["revision"], one["action"]) for one in found] == [(2, "patch"), (1, "put")]
    table = await run("history", *named, "--limit", "1")
    assert (table.count("\n"), found[0]["fields"][0]["field"] in table) == (2, True)
    assert "=" not in await run("rollback", *named, "--dry-run")
    assert "is as in revision 1\n" in await run("rollback", *named, "--to", "1", says="y\n")
    assert "unchanged" in await run("rollback", *named, "--to", "1")
    assert await run("delete", *named, "--yes") == f"{kind.kind} {named[1]}  removed\n"
    await run("get", *named, code=Exit.NOT_FOUND)


async def test_the_sdk_has_a_verb_for_each_call(service: Service) -> None:
    async with AsyncClient(service.url, ADMIN_KEY) as client:
        document = {"kind": "Queue", "path": "q", "weight": 2}
        tried = await client.apply([document], applier="git", dry_run=True)
        made = await client.apply([document], applier="git")
        assert (tried.dry_run, made.dry_run, tried.objects) == (True, False, made.objects)
        etag = (await service.http.get("/v1/queues/q")).headers["etag"]
        assert (await client.patch("Queue", "q", {"weight": 3}, if_match=etag))["weight"] == 3
        with pytest.raises(ProblemError) as refused:
            await client.patch("Queue", "q", {"weight": 4}, if_match=etag)
        assert refused.value.code is Code.PRECONDITION_FAILED
        assert [one.action async for one in client.history("Queue", "q", page_size=1)] == ["patch", "apply"]
        assert (await client.rollback("Queue", "q", dry_run=True)).revision == 1
        assert (await client.rollback("Queue", "q")).object.outcome == "changed"
        documents = await client.export(["Queue"])
        assert [one["path"] for one in documents] == ["default", "q"]
        gone = await client.apply(documents[:1], applier="git", prune="git", force=True)
        assert [(one.name, one.outcome) for one in gone.objects] == [("default", "unchanged"), ("q", "removed")]
