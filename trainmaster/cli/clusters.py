"""``clusters``: the list, and a cluster's life from its joining to its removal."""

import shlex
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from trainmaster.cli import completion, config
from trainmaster.cli.admin import amounts_of
from trainmaster.cli.confirm import Yes, agreed
from trainmaster.cli.errors import UsageError
from trainmaster.cli.output import (
    Format,
    OutputOption,
    SecretOutputOption,
    age,
    data_of,
    hint,
    note,
    now,
    print_data,
    print_table,
)
from trainmaster.cli.overrides import pairs_of
from trainmaster.cli.refresh import WatchOption, repeated
from trainmaster.cli.watch import timeout_of
from trainmaster.client.address import checked_address
from trainmaster.protocol.states import ClusterKind, Exit

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from trainmaster.client.http import Client
    from trainmaster.protocol.answers import AgentKey, ClusterView

RELEASE = NAMESPACE = "trainmaster-agent"
CHART = "deploy/charts/agent"
_OWN_MACHINE = ("localhost", "127.0.0.1", "::1", "0.0.0.0")  # noqa: S104 - told apart, not bound

clusters_app = typer.Typer(help="List clusters, let them join, close, drain and remove them.")

ClusterName = Annotated[str, typer.Argument(metavar="NAME", show_default=False, autocompletion=completion.clusters)]
UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="Address at which the cluster reaches the dispatcher; by default the one that this command uses.",
    ),
]


def register(app: typer.Typer) -> None:
    app.add_typer(clusters_app, name="clusters")


@clusters_app.callback(invoke_without_command=True)
def clusters(ctx: typer.Context, watch: WatchOption = False, output: OutputOption = Format.TABLE) -> None:
    """List clusters; with a sub-command, let one join, close, drain or remove it."""
    if ctx.invoked_subcommand is not None:
        return
    with config.connect(ctx) as client:
        repeated(lambda: _list_clusters(client, output), watch=watch)


def _list_clusters(client: "Client", output: Format) -> None:
    found = client.clusters()
    if output.is_data:
        print_data([data_of(cluster) for cluster in found], output)
        return
    if not found:
        note(
            "the clusters that this key was made for were removed; an admin makes a new key for those that joined again"
            if client.whoami().role == "owner"
            else "there is no cluster; an admin lets one join with: trainmaster clusters join NAME"
        )
        return
    wide = output is Format.WIDE
    columns = ["NAME", "KIND", "STATE", "NODES", "CAPACITY", "RUNS", "LAST CONTACT"]
    columns += ["POOLS", "REGION", "PROVIDER", "RUNTIME", "SCHEDULER", "AGENT", "LABELS"] if wide else []
    moment = now()
    print_table(columns, [_cluster_row(cluster, moment, wide=wide) for cluster in found])
    for cluster in found:
        if cluster.closed:
            note(f"{cluster.name}: its agent can start nothing there now: {cluster.closed}")
        for pool in cluster.pools:
            if pool.blocked:
                note(f"{cluster.name}: its pool {pool.name} gets no more nodes now: {pool.blocked}")
        for sentence in _troubles(cluster, wide=wide):
            note(sentence)
        for left_out in cluster.not_counted if wide else ():
            note(f"{cluster.name}: not counted: {left_out}")


def _troubles(cluster: "ClusterView", *, wide: bool) -> list[str]:
    """Return sentences on the cluster's nodes in trouble; ``wide``: one for each that is named, too."""
    health = cluster.health
    if health is None:
        return []
    counts = [
        f"{many} {what}"
        for many, what in (
            (health.not_ready, "not ready"),
            (health.flapping, "flapping"),
            (health.device_errors, "with device errors"),
        )
        if many
    ]
    if not counts:
        return []
    named = [f"{cluster.name}: node {one.node}: {one.trouble}" for one in health.troubled] if wide else []
    more = "" if wide or not health.troubled else "; -o wide names nodes"
    return [f"{cluster.name}: nodes in trouble: {', '.join(counts)}{more}", *named]


def _cluster_row(cluster: "ClusterView", moment: "datetime", *, wide: bool) -> list[object]:
    row: list[object] = [cluster.name, cluster.cluster_kind, _state(cluster), cluster.nodes]
    row += [amounts_of(cluster.capacity), _runs(cluster), age(cluster.last_contact, moment)]
    if wide:
        labels = ", ".join(f"{key}={value}" for key, value in cluster.labels.items())
        pools = ", ".join(f"{pool.name} {pool.nodes}/{pool.most}" for pool in cluster.pools)
        texts = (
            pools,
            cluster.region,
            cluster.provider,
            cluster.runtime,
            cluster.scheduler,
            cluster.agent_version,
            labels,
        )
        row += [text or "-" for text in texts]
    return row


def _state(cluster: "ClusterView") -> str:
    """Return the cluster's state; if its agent can start nothing, also whether an admin has closed it."""
    if cluster.state in ("cordoned", "draining", "drained") or not (cluster.cordoned or cluster.draining):
        return cluster.state
    return f"{cluster.state} ({'draining' if cluster.draining else 'cordoned'})"


def _runs(cluster: "ClusterView") -> str:
    """Return the cluster's live runs, which only admins and its owners see."""
    if "live_runs" not in cluster.model_fields_set:
        return "-"
    parts = [
        f"{many} {what}"
        for many, what in (
            (cluster.stopping_runs, "stopping"),
            (cluster.orphaned_runs, "orphaned"),
            (cluster.quarantined_runs, "quarantined besides"),
        )
        if many
    ]
    return f"{cluster.live_runs} ({', '.join(parts)})" if parts else str(cluster.live_runs)


@clusters_app.command()
def cordon(ctx: typer.Context, name: ClusterName) -> None:
    """Close a cluster: nothing new starts there, and live runs continue."""
    with config.connect(ctx) as client:
        client.cordon(name)
    print(f"{name}  cordoned")


@clusters_app.command()
def uncordon(ctx: typer.Context, name: ClusterName) -> None:
    """Open a cluster for new jobs again; also ends a drain."""
    with config.connect(ctx) as client:
        client.cordon(name, on=False)
    print(f"{name}  open")


@clusters_app.command()
def join(
    ctx: typer.Context,
    name: ClusterName,
    kind: Annotated[
        ClusterKind | None, typer.Option(help="Kind of the cluster, if it is new; private by default.")
    ] = None,
    url: UrlOption = None,
    label: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Label of the cluster; may be repeated.")
    ] = None,
    output: SecretOutputOption = Format.TABLE,
) -> None:
    """Make a cluster, unless it exists, and a key for its agent; print the command that installs the agent."""
    from trainmaster.cli.documents import validated
    from trainmaster.protocol.tenants import JoinSpec

    spec = validated(JoinSpec, {"name": name, "clusterKind": kind, "labels": pairs_of(label, "--label")})
    with config.connect(ctx) as client:
        address = _reachable(url, client.url)
        made = client.join_cluster(spec)
    command = _helm("install", "--create-namespace", cluster=name, url=address, joinToken=made.key.key)
    _print_key(made, command, output)
    if not output.is_data and made.other_keys:
        note(
            f"the agent of {name} has other keys, which stay valid; to give the new one to an agent that is installed already:"
        )
        note(f"  {_helm('upgrade', '--reuse-values', joinToken='KEY')}")


@clusters_app.command()
def rotate(
    ctx: typer.Context,
    name: ClusterName,
    revoke_old: Annotated[
        bool,
        typer.Option(
            "--revoke-old", help="Revoke the old keys at once: the agent is cut off until it has the new one."
        ),
    ] = False,
    output: SecretOutputOption = Format.TABLE,
) -> None:
    """Make another key for a cluster's agent; print the command that gives the key to the agent."""
    with config.connect(ctx) as client:
        made = client.rotate_cluster_key(name, revoke_old=revoke_old)
    _print_key(made, _helm("upgrade", "--reuse-values", joinToken=made.key.key), output)


def _print_key(made: "AgentKey", command: str, output: Format) -> None:
    if output.is_data:
        print_data(data_of(made) | {"command": command}, output)
        return
    print(command)
    what = f"cluster {made.cluster} was made; " if made.created else ""
    note(f"{what}key {made.key.id} ({made.key.name}): save it now, it is not shown again")
    note("an agent that runs without Helm gets it as its --key or in its --key-file, which it reads when it starts")
    if made.revoked:
        note(f"revoked: {', '.join(f'key {key}' for key in made.revoked)}")
    if made.other_keys:
        note("once the agent uses the new key, revoke the old one:")
        hint(*((f"key {key}", f"keys revoke {key}") for key in made.other_keys))


def _reachable(url: str | None, own: str) -> str:
    """Return the dispatcher's address for the agent; warn where pods cannot reach it."""
    address = checked_address(url or own)
    if urlsplit(address).hostname in _OWN_MACHINE:
        note(
            f"warning: {address} is this machine, which pods cannot reach; give an address that they can reach with --url"
        )
    return address


def _helm(verb: str, option: str, **values: str) -> str:
    words = ["helm", verb, RELEASE, CHART, "--namespace", NAMESPACE, option]
    for name, value in values.items():
        words += ["--set", f"{name}={value.replace(',', chr(92) + ',')}"]
    return shlex.join(words)


@clusters_app.command()
def drain(
    ctx: typer.Context,
    name: ClusterName,
    let_finish: Annotated[
        bool, typer.Option("--let-finish", help="Stop nothing: running jobs run to their end.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until nothing runs there any more.")] = False,
    timeout: Annotated[
        str | None, typer.Option(metavar="TIME", help="With --wait: wait no longer than this, such as 10m.")
    ] = None,
    output: OutputOption = Format.TABLE,
) -> None:
    """Close a cluster and stop what runs there; those jobs are queued again and start elsewhere.

    Members get the time of their checkpoint and stopGrace, and no retry is used.
    """
    if timeout is not None and not wait:
        raise UsageError("--timeout bounds --wait; give both")
    seconds = None if timeout is None else timeout_of(timeout)
    with config.connect(ctx) as client:
        done = client.drain(name, let_finish=let_finish)
        if not done.reachable and done.live_runs:
            note(f"{name} is not in contact: its runs are stopped when its agent is back")
            hint(("if nothing runs there any more", f"clusters declare-lost {name}"))
        left = (
            _print_drain(client.watch_drain(name, seconds), done.live_runs)
            if wait and done.live_runs
            else done.live_runs
        )
    if output.is_data:
        print_data(data_of(done) | {"liveRuns": left}, output)
    elif left:
        print(f"{name}  draining: {_many(done.stopped)} asked to stop, {_many(left)} left")
    else:
        print(f"{name}  drained")
    if left and wait:
        raise typer.Exit(Exit.NOT_FINISHED)


def _print_drain(views: "Iterator[ClusterView]", left: int) -> int:
    """Print the progress of a drain; return the number of runs left."""
    for view in views:
        left = view.live_runs
        note(f"{view.name}: {_many(left)} left" + (f", {view.stopping_runs} stopping" if view.stopping_runs else ""))
    return left


def _many(runs: int) -> str:
    return "1 run" if runs == 1 else f"{runs} runs"


@clusters_app.command("declare-lost")
def declare_lost(
    ctx: typer.Context,
    name: ClusterName,
    force: Annotated[bool, typer.Option("--force", help="Do it even if the cluster's agent is in contact.")] = False,
    orphans: Annotated[bool, typer.Option("--orphans", help="Only runs of which its agent has no record.")] = False,
    yes: Yes = False,
    output: OutputOption = Format.TABLE,
) -> None:
    """Declare that nothing runs on a cluster any more: its jobs are queued again at once, whatever their onDisconnect.

    A job that does still run there will run twice. The cluster stays closed until it is uncordoned. With --orphans only those runs
    are lost that were sent to an agent which another one has replaced; the cluster stays open.
    """
    with config.connect(ctx) as client:
        view = client.cluster(name)
        runs, what = (view.orphaned_runs, f"those orphans of {name}") if orphans else (view.live_runs, f"{name}")
        question = (
            f"are you sure that nothing of {what} runs any more? {_many(runs)} will be lost and queued again;"
            " what does still run there runs twice, until its agent is back and has stopped it"
        )
        if not agreed(question, yes=yes):
            return
        done = client.declare_lost(name, force=force, orphans=orphans)
    if output.is_data:
        print_data(data_of(done), output)
        return
    if orphans:
        print(f"{name}  given up: {_many(done.lost)}")
        return
    print(f"{name}  declared lost: {_many(done.lost)}")
    hint(("when it is back", f"clusters uncordon {name}"), ("if it is gone for good", f"clusters remove {name}"))


@clusters_app.command()
def quarantined(
    ctx: typer.Context,
    name: ClusterName,
    stop: Annotated[list[str] | None, typer.Option(metavar="RUN", help="Stop this run; may be repeated.")] = None,
    stop_all: Annotated[bool, typer.Option("--stop-all", help="Stop all of them.")] = False,
    yes: Yes = False,
    output: OutputOption = Format.TABLE,
) -> None:
    """List, or stop, runs that continue although the store, restored from a backup, does not contain them."""
    with config.connect(ctx) as client:
        if stop or stop_all:
            if stop_all and not agreed(f"stop {_many(len(client.quarantined_runs(name)))} of {name}?", yes=yes):
                return
            stopping = client.stop_quarantined(name, () if stop_all else stop or ())
            print(f"{name}  {_many(len(stopping))} will be stopped, within two leases of its agent")
            return
        found = client.quarantined_runs(name)
    if output.is_data:
        print_data([data_of(run) for run in found], output)
        return
    if not found:
        note(f"no run of {name} is quarantined")
        return
    print_table(
        ["RUN", "STATE", "SINCE"],
        [[run.run, "stopping" if run.stopping else run.state, age(run.since)] for run in found],
    )


@clusters_app.command()
def remove(
    ctx: typer.Context,
    name: ClusterName,
    force: Annotated[bool, typer.Option("--force", help="Declare its runs lost first.")] = False,
    yes: Yes = False,
) -> None:
    """Remove a cluster with its agent's keys. Its past runs stay in the history of their jobs."""
    with config.connect(ctx) as client:
        lost = client.cluster(name).live_runs if force else 0
        more = (
            f"; are you sure that nothing of it runs any more? {_many(lost)} will be lost and queued again"
            if lost
            else ""
        )
        if not agreed(f"remove cluster {name} and the keys of its agent{more}?", yes=yes):
            return
        client.remove_cluster(name, force=force)
    print(f"{name}  removed")
    note(
        f"to uninstall its agent: helm uninstall {RELEASE} --namespace {NAMESPACE}; where it runs without Helm, stop its process"
    )
