"""``apply``: shows the changes that files declare, then makes them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainmaster.cli import config
from trainmaster.cli.confirm import agreed
from trainmaster.cli.output import clean, styled
from trainmaster.protocol.resource_kinds import KINDS

if TYPE_CHECKING:
    from trainmaster.client.http import Client
    from trainmaster.protocol.base import Strict
    from trainmaster.protocol.documents import Item
    from trainmaster.protocol.resource_kinds import Kind


def register(app: typer.Typer) -> None:
    app.command()(apply)


@dataclass(frozen=True, slots=True)
class Change:
    """Effect of applying one document. ``fields``: name, value before, value after; ``before`` None: the object is new."""

    kind: "Kind"
    name: str
    body: dict[str, Any]
    is_new: bool
    fields: tuple[tuple[str, Any, Any], ...]

    @property
    def changes_nothing(self) -> bool:
        return not self.is_new and not self.fields


def apply(
    ctx: typer.Context,
    files: Annotated[
        list[str], typer.Option("-f", "--file", metavar="FILE", help="YAML or JSON file; - is stdin. May be repeated.")
    ],
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Replace @NAME@ in the files.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the changes without making them.")] = False,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask for confirmation.")] = False,
) -> None:
    """Create or change the objects that files declare, and submit their jobs. Shows the changes and asks first."""
    from trainmaster.cli import submit
    from trainmaster.cli.documents import parse_settings, read_documents
    from trainmaster.protocol.documents import read_declared

    documents = read_documents(files, parse_settings(settings or []))
    declared = read_declared(documents)
    jobs = [document for document in documents if document.kind == "Job"]
    with config.connect(ctx) as client:
        changes = _changes(client, declared)
        for change in changes:
            _show(change)
        for job in jobs:
            print(f"{styled('+', 'green')} Job {clean(str(job.value.get('name')))}  submit")
        real = [change for change in changes if not change.changes_nothing]
        if not real and not jobs:
            print("nothing to change: the dispatcher has everything as the files declare it")
            return
        if dry_run or not agreed(_question(len(real), len(jobs)), yes=yes):
            return
        for change in real:
            client.put(change.kind, change.name, change.body)
            print(f"{change.kind} {change.name}  {'created' if change.is_new else 'changed'}")
        if any(change.kind in ("Queue", "Cluster") for change in real):
            from trainmaster.cli.admin import warn_of

            for queue in client.queues():
                warn_of(queue.path, queue.warnings)
        if jobs:
            submit.show_ids(submit.send(client, jobs))


def _question(changes: int, jobs: int) -> str:
    parts = [f"make {changes} change{'s' if changes > 1 else ''}"] if changes else []
    parts += [f"submit {jobs} job{'s' if jobs > 1 else ''}"] if jobs else []
    return f"{' and '.join(parts)}?"


def _changes(client: "Client", declared: "Sequence[Item]") -> list[Change]:
    kinds = dict.fromkeys(item.kind for item in declared)
    present = {(kind, KINDS[kind].name_in(item)): item for kind in kinds for item in client.objects(kind)}
    return [_change(item.kind, item.name, item.spec, present.get((item.kind, item.name))) for item in declared]


def _change(kind: "Kind", name: str, spec: "Strict", present: dict[str, Any] | None) -> Change:
    after = spec.model_dump(mode="json", by_alias=True)
    if present is None:
        fields = [(key, None, value) for key, value in _flat(spec.to_wire()).items()]
    else:
        # Fields that the API adds to the specification (states, counts) are left out.
        shown = type(spec).model_validate({key: value for key, value in present.items() if key in after})
        before, after = _flat(shown.model_dump(mode="json", by_alias=True)), _flat(after)
        names = [*after, *(name for name in before if name not in after)]
        fields = [(name, before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)]
    changed_fields = tuple(field for field in fields if field[0] not in ("kind", "name", "path"))
    return Change(kind, name, spec.to_wire(), present is None, changed_fields)


def _flat(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields, with each quota of a queue under a name of its own, such as ``resources.cpu.limit``."""
    out: dict[str, Any] = {}
    for key, value in fields.items():
        if key != "resources":
            out[key] = value
            continue
        for flavor, quota in value.items():
            out |= {f"{key}.{flavor}.{name}": amount for name, amount in quota.items() if amount is not None}
    return out


def _show(change: Change) -> None:
    mark, colour, word = ("+", "green", "create") if change.is_new else ("~", "yellow", "change")
    if change.changes_nothing:
        mark, colour, word = "=", "dim", "unchanged"
    print(f"{styled(mark, colour)} {change.kind} {change.name}  {word}")
    for name, before, after in change.fields:
        print(f"    {name}: {_value(after)}" if change.is_new else f"    {name}: {_value(before)} -> {_value(after)}")


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    if isinstance(value, float):
        return f"{value:g}"
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else clean(str(value))
