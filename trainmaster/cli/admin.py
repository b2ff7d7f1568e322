"""``queues`` and ``keys``: what admins look after."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from trainmaster.cli import completion, config
from trainmaster.cli.confirm import agreed
from trainmaster.cli.effects import show_warnings
from trainmaster.cli.errors import UsageError
from trainmaster.cli.output import (
    Format,
    OutputOption,
    SecretOutputOption,
    age,
    data_of,
    note,
    now,
    print_data,
    print_table,
)
from trainmaster.cli.refresh import WatchOption, repeated
from trainmaster.cli.time_arguments import seconds_of
from trainmaster.protocol.permissions import NEED_QUEUES
from trainmaster.protocol.states import KeyRole

if TYPE_CHECKING:
    from datetime import datetime

    from trainmaster.client.http import Client
    from trainmaster.protocol.answers import KeyView, QueueView
    from trainmaster.protocol.quota import QuotaSpec

_WAITING = ("held", "queued", "dispatched", "running")
_OVER = ("succeeded", "failed", "cancelled")

queues_app = typer.Typer(help="Show the tree of queues; ask what other quotas would have done.")
keys_app = typer.Typer(help="List, make and revoke API keys.")


def register(app: typer.Typer) -> None:
    app.add_typer(queues_app, name="queues")
    app.add_typer(keys_app, name="keys")


@queues_app.callback(invoke_without_command=True)
def queues(ctx: typer.Context, watch: WatchOption = False, output: OutputOption = Format.TABLE) -> None:
    """Show the tree of queues. Counts are of the queue and all below it."""
    if ctx.invoked_subcommand is not None:
        return
    with config.connect(ctx) as client:
        repeated(lambda: _list_queues(client, output), watch=watch)


def _list_queues(client: "Client", output: Format) -> None:
    is_whole = output is not Format.TABLE and not output.is_listing
    found = client.queues(usage=is_whole, ended=is_whole)
    if output.is_data:
        print_data([data_of(queue) for queue in found], output)
        return
    if not found:
        note("there is no queue that you may use; an admin makes them with: trainmaster apply -f FILE")
        return
    wide = output is Format.WIDE
    states = (*_WAITING, *_OVER) if wide else _WAITING
    columns = ["QUEUE", "WEIGHT", "QUOTA", *(state.upper() for state in states)]
    columns += ["IN USE", "SHARE", "KINDS", "CLASS", "MAX QUEUED", "MAX RUNNING"] if wide else []
    ordered = sorted(found, key=lambda queue: queue.path.split("/"))
    print_table(columns, [_queue_row(queue, found, states, wide=wide) for queue in ordered])
    if wide and any(queue.usage is None for queue in ordered):
        note("usage is not shown: no leading scheduler answered")
    show_warnings(("Queue", queue.path, warning) for queue in ordered for warning in queue.warnings)


def _queue_row(queue: "QueueView", every: "Sequence[QueueView]", states: Sequence[str], *, wide: bool) -> list[object]:
    below = [other for other in every if other.path == queue.path or other.path.startswith(f"{queue.path}/")]
    name = "  " * queue.path.count("/") + queue.path + ("" if queue.state == "open" else f" ({queue.state})")
    row: list[object] = [name, f"{queue.weight:g}", _quotas(queue, wide=wide)]
    row += [sum(other.jobs.get(state, 0) for other in below) for state in states]
    if wide:
        row += ["?", "?"] if queue.usage is None else [amounts_of(queue.usage.used), f"{queue.usage.share:.1%}"]
        row += [", ".join(queue.allowed_kinds), queue.default_priority_class or "-"]
        row += ["-" if most is None else most for most in (queue.max_queued, queue.max_running)]
    return row


def _quotas(queue: "QueueView", *, wide: bool) -> str:
    return ", ".join(f"{flavor} {_quota(quota, wide=wide)}" for flavor, quota in queue.resources.items()) or "-"


def _quota(quota: "QuotaSpec", *, wide: bool) -> str:
    """Return guarantee and limit as short text; the wide form adds the bounds of borrowing and lending."""
    if quota.guaranteed is None:
        text = f"<= {quota.limit}" if quota.limit is not None else "-"
    else:
        text = f"{quota.guaranteed}.." + (quota.limit or "")
    said = (("borrows", quota.borrowing_limit), ("lends", quota.lending_limit), ("weight", quota.weight))
    more = [
        f"{word} {value:g}" if isinstance(value, float) else f"{word} {value}"
        for word, value in said
        if value is not None
    ]
    return f"{text} ({', '.join(more)})" if wide and more else text


def amounts_of(amounts: dict[str, str]) -> str:
    """Return amounts of resources as a table's cell."""
    return ", ".join(f"{name} {amount}" for name, amount in amounts.items()) or "-"


@keys_app.callback(invoke_without_command=True)
def keys(ctx: typer.Context, output: OutputOption = Format.TABLE) -> None:
    """List API keys and people, or make and revoke them."""
    if ctx.invoked_subcommand is None:
        list_keys(ctx, output)


@keys_app.command("list")
def list_keys(ctx: typer.Context, output: OutputOption = Format.TABLE) -> None:
    """List API keys, without their secrets, and people who have signed in."""
    with config.connect(ctx) as client:
        found = client.keys()
    if output.is_data:
        print_data([data_of(key) for key in found], output)
        return
    moment = now()
    columns = ["ID", "NAME", "ROLE", "FOR", "BEGINS", "STATE", "MADE", "LAST USED"]
    print_table(columns, [_key_row(key, moment) for key in found])


def _key_row(key: "KeyView", moment: "datetime") -> list[object]:
    if key.revoked_at is not None:
        state = f"revoked {age(key.revoked_at, moment)}"
    elif key.expires_at is not None:
        word = "expired" if key.expires_at <= moment else "until"
        state = f"{word} {key.expires_at.astimezone():%Y-%m-%d %H:%M}"
    else:
        state = "valid"
    return [
        key.id,
        key.name,
        key.role,
        _for(key),
        key.hint if key.issuer is None else "person",
        state,
        age(key.created_at, moment),
        age(key.last_used_at, moment),
    ]


def _for(key: "KeyView") -> str:
    what = (
        ", ".join(key.queues or key.clusters)
        or key.cluster
        or ("all" if key.role not in (*NEED_QUEUES, KeyRole.OWNER) else "-")
    )
    return f"{what}; on behalf of {', '.join(key.on_behalf_of)}" if key.on_behalf_of else what


@keys_app.command("make")
def make_key(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", show_default=False)],
    role: Annotated[KeyRole, typer.Option(help="Role of the key.")] = KeyRole.SUBMITTER,
    queue: Annotated[
        list[str] | None,
        typer.Option(help="A queue for which the key has the role, with all below it; may be repeated."),
    ] = None,
    cluster: Annotated[
        list[str] | None,
        typer.Option(
            help="For owners: a cluster that the key may look after; may be repeated. For agents: the agent's cluster.",
            autocompletion=completion.clusters,
        ),
    ] = None,
    on_behalf_of: Annotated[
        list[str] | None,
        typer.Option(
            metavar="USER",
            help="A user for whom the key may submit jobs, or the beginning of names and *; may be repeated.",
        ),
    ] = None,
    expires_in: Annotated[
        str | None, typer.Option(metavar="TIME", help="How long the key is valid, such as 90d; without it, for ever.")
    ] = None,
    output: SecretOutputOption = Format.TABLE,
) -> None:
    """Make an API key. Its secret is shown only once."""
    from trainmaster.cli.documents import validated
    from trainmaster.protocol.tenants import KeySpec

    if expires_in is not None:
        seconds_of(expires_in, "--expires-in")
    fields: dict[str, object] = {"name": name, "role": role, "queues": queue or [], "expiresIn": expires_in}
    fields["onBehalfOf"] = on_behalf_of or []
    if role is KeyRole.OWNER:
        fields["clusters"] = cluster or []
    elif cluster and len(cluster) > 1:
        raise UsageError(f"--cluster is given {len(cluster)} times, and only an owner's key has several clusters")
    else:
        fields["cluster"] = cluster[0] if cluster else None
    spec = validated(KeySpec, fields)
    with config.connect(ctx) as client:
        made = client.make_key(spec)
    if output.is_data:
        print_data(data_of(made), output)
        return
    print(made.key)
    note(f"key {made.id} ({made.name}, {made.role}): save it now, it is not shown again")


@keys_app.command("rotate")
def rotate_key(
    ctx: typer.Context,
    key_id: Annotated[
        int | None,
        typer.Argument(
            metavar="ID", min=1, show_default=False, help="Without it, the key in use.", autocompletion=completion.keys
        ),
    ] = None,
    overlap: Annotated[str, typer.Option(metavar="TIME", help="How long the old secret stays valid.")] = "1h",
    expires_in: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="How long the new key is valid; without it, as long as the old one was to be."
        ),
    ] = None,
    output: SecretOutputOption = Format.TABLE,
) -> None:
    """Make a new secret for an API key, which is shown only once. The old one stays valid for an hour, unless --overlap says else."""
    keeps = seconds_of(overlap, "--overlap")
    lives = None if expires_in is None else seconds_of(expires_in, "--expires-in")
    with config.connect(ctx) as client:
        wanted = client.whoami().id if key_id is None else key_id
        made = client.rotate_key(wanted, overlap=keeps, expires_in=lives)
    if output.is_data:
        print_data(data_of(made), output)
        return
    print(made.key)
    note(
        f"key {made.id} ({made.name}, {made.role}): save it now, it is not shown again; key {wanted} ends in {overlap}"
    )


@keys_app.command("revoke")
def revoke_key(
    ctx: typer.Context,
    key_id: Annotated[int, typer.Argument(metavar="ID", min=1, show_default=False, autocompletion=completion.keys)],
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask for confirmation.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Revoke even the last valid key of an admin.")] = False,
) -> None:
    """Revoke an API key; it becomes invalid within two seconds. Asks first for the key in use; the last admin's key needs --force."""
    with config.connect(ctx) as client:
        own = client.whoami()
        question = f"key {key_id} ({own.name}) is the one in use: this program can do nothing more with it. Revoke it?"
        if (own.id == key_id or force) and not agreed(
            question if own.id == key_id else _last_question(key_id), yes=yes
        ):
            return
        client.revoke_key(key_id, force=force)
    print(f"key {key_id}  revoked")


@keys_app.command("email")
def set_key_email(
    ctx: typer.Context,
    key_id: Annotated[int, typer.Argument(metavar="ID", min=1, show_default=False, autocompletion=completion.keys)],
    email: Annotated[str | None, typer.Argument(metavar="[ADDRESS]", show_default=False)] = None,
) -> None:
    """Set the e-mail address of an API key's user; without ADDRESS, remove it. That of a person is the issuer's."""
    with config.connect(ctx) as client:
        client.set_key_email(key_id, email)
    print(f"key {key_id}  {email or 'no address'}")


@keys_app.command("restore")
def restore_person(
    ctx: typer.Context, key_id: Annotated[int, typer.Argument(metavar="ID", min=1, show_default=False)]
) -> None:
    """Let the tokens of a person who was revoked count again. An API key that was revoked stays so."""
    with config.connect(ctx) as client:
        client.restore_person(key_id)
    print(f"person {key_id}  restored")


def _last_question(key_id: int) -> str:
    return f"if key {key_id} is the last one of an admin, nobody administers this installation any more. Revoke it?"
