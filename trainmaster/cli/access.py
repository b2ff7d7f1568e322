"""``can-i``, ``who-can``, ``people``: who may do what."""

from typing import TYPE_CHECKING, Annotated

import typer

from trainmaster.cli import completion, config
from trainmaster.cli.errors import UsageError
from trainmaster.cli.output import Format, OutputOption, age, data_of, note, now, print_data, print_table
from trainmaster.protocol.permissions import MEANINGS, Permission, permissions_of
from trainmaster.protocol.states import Exit

if TYPE_CHECKING:
    from trainmaster.client.http import Client


def register(app: typer.Typer) -> None:
    app.command()(can_i)
    app.command()(who_can)
    app.command()(people)


def can_i(
    ctx: typer.Context,
    permission: Annotated[
        Permission | None, typer.Argument(metavar="PERMISSION", help="Such as jobs.submit.", show_default=False)
    ] = None,
    queue: Annotated[
        str | None,
        typer.Option("--queue", "-q", help="In this queue.", show_default=False, autocompletion=completion.queues),
    ] = None,
    output: OutputOption = Format.TABLE,
) -> None:
    """Say whether you have a permission; ends with 15 where you do not. Without one: list all that you have."""
    with config.connect(ctx) as client:
        if permission is None:
            if queue is not None:
                raise UsageError("--queue goes with a permission, such as jobs.submit")
            _list_permissions(client, output)
            return
        found = client.can_i(permission, queue)
    if output.is_data:
        print_data(data_of(found), output)
    else:
        print(f"{'yes' if found.allowed else 'no'}: {found.why}")
    if not found.allowed:
        raise typer.Exit(Exit.DENIED)


def _list_permissions(client: "Client", output: Format) -> None:
    identity = client.whoami()
    rows = []
    for one in identity.permissions:
        permission = Permission(one)
        grants = [one for one in identity.roles if permission in permissions_of(one.role, for_queues=bool(one.queues))]
        is_everywhere = any(not grant.queues for grant in grants)
        where = sorted({queue for grant in grants for queue in grant.queues}) or list(identity.clusters)
        rows.append({"permission": one, "for": [] if is_everywhere else where, "meaning": MEANINGS[permission]})
    if output.is_data:
        print_data(rows, output)
        return
    columns = ["PERMISSION", "FOR", "MEANING"]
    print_table(columns, [[row["permission"], ", ".join(row["for"]) or "all", row["meaning"]] for row in rows])


def who_can(
    ctx: typer.Context,
    permission: Annotated[Permission, typer.Argument(metavar="PERMISSION", help="Such as jobs.submit.")],
    queue: Annotated[
        str | None,
        typer.Option("--queue", "-q", help="In this queue.", show_default=False, autocompletion=completion.queues),
    ] = None,
    output: OutputOption = Format.TABLE,
) -> None:
    """List who has a permission: users and groups by role bindings, and API keys."""
    with config.connect(ctx) as client:
        found = client.who_can(permission, queue)
    if output.is_data:
        print_data(data_of(found), output)
        return
    columns = ["KIND", "NAME", "ROLE", "FOR", "BY"]
    rows = [
        [
            one.kind,
            one.name,
            one.role,
            ", ".join(one.queues) or "all",
            f"key {one.key_id}" if one.role_binding is None else one.role_binding,
        ]
        for one in found.subjects
    ]
    if rows:
        print_table(columns, rows)
    if found.others:
        many = "1 other" if found.others == 1 else f"{found.others} others"
        note(f"and {many}, by roles for more than your queues")
    elif not rows:
        note("nobody")


def people(ctx: typer.Context, output: OutputOption = Format.TABLE) -> None:
    """List the people who have signed in, with their groups and roles. ``-o wide`` lists the groups as well."""
    with config.connect(ctx) as client:
        found = client.people()
    if output.is_data:
        print_data(data_of(found), output)
        return
    moment = now()
    columns = ["ID", "NAME", "ROLES", "GROUPS", "LAST USED", "STATE"]
    rows = [
        [
            one.id,
            one.name,
            ", ".join(one.roles) or "-",
            ", ".join(one.groups) or "-",
            age(one.last_used_at, moment),
            "valid" if one.revoked_at is None else f"revoked {age(one.revoked_at, moment)}",
        ]
        for one in found.people
    ]
    if rows:
        print_table(columns, rows)
    else:
        note("nobody has signed in")
    if output is Format.WIDE and found.groups:
        print()
        listed = [[one.name, one.people, ", ".join(one.role_bindings) or "-"] for one in found.groups]
        print_table(["GROUP", "PEOPLE", "ROLE BINDINGS"], listed)
