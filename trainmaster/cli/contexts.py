"""``login``, ``logout``, ``contexts`` and ``whoami``: which dispatcher is used, with which key."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from trainmaster import __version__
from trainmaster.cli import completion, config
from trainmaster.cli.errors import UsageError, tell
from trainmaster.cli.output import Format, OutputOption, data_of, note, print_data, print_pairs, print_table
from trainmaster.client.address import checked_address
from trainmaster.client.config import Contexts, checked_key, is_this_machine, read_contexts, write_contexts
from trainmaster.protocol.states import Exit

if TYPE_CHECKING:
    from trainmaster.client.http import Client
    from trainmaster.protocol.answers import Identity

contexts_app = typer.Typer(help="List, choose and remove contexts: dispatchers with a key for each.")

ContextName = Annotated[str, typer.Argument(metavar="NAME", show_default=False, autocompletion=completion.contexts)]


def register(app: typer.Typer) -> None:
    for command in (login, logout, whoami, kubeconfig):
        app.command()(command)
    app.add_typer(contexts_app, name="contexts")


def login(
    ctx: typer.Context,
    url: Annotated[
        str | None,
        typer.Argument(metavar="URL", help="Address of the dispatcher; by default the one in use.", show_default=False),
    ] = None,
    key_file: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="File with the key; - is stdin. Without it, the key is asked for, or read from stdin."
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the context; by default the host of the address.", show_default=False)
    ] = None,
) -> None:
    """Store the key for a dispatcher, once the dispatcher has accepted it, and use both from now on."""
    contexts = read_contexts()
    flags = config.flags_of(ctx)
    address = _address(url or flags.url or _current(contexts, flags.context))
    origin, key = ("--key", flags.key) if flags.key is not None else _read_key(key_file, address)
    key = checked_key(key, origin)
    with config.open_client(config.Context(address, key)) as client:
        identity = _owner_of_key(client, origin)
    # With an address, a context is made: another one may have a key for the same address, such as an admin's.
    in_use = "" if url or flags.url else flags.context or contexts.current
    chosen = name or in_use or urlsplit(address).netloc
    before = contexts.by_name.get(chosen)
    write_contexts(contexts.having(chosen, config.Context(address, key)))
    print(f"{chosen}  logged in at {address} as {identity.name} ({identity.role})")
    note(f"the key is in {config.config_path()}, which only you may read")
    if before is not None and before.key and before.key != key:
        note(f"it replaces the key of this context for {before.url}; with --name NAME both are kept")


def _current(contexts: Contexts, name: str | None) -> str:
    present = contexts.named(name) if name else contexts.by_name.get(contexts.current)
    if present is None or not present.url:
        raise UsageError("which dispatcher? trainmaster login URL")
    return present.url


def _address(text: str) -> str:
    """Return an address of a dispatcher; without a scheme, ``https://`` is meant. Raises ConfigurationError."""
    if "://" in text:
        return checked_address(text)
    checked = checked_address(f"https://{text}")
    return checked.replace("https://", "http://", 1) if is_this_machine(checked) else checked


def _owner_of_key(client: "Client", origin: str) -> "Identity":
    """Return whose the key is; end the command where the dispatcher does not accept it."""
    from trainmaster.protocol.errors import Code, ProblemError

    try:
        return client.whoami()
    except ProblemError as error:
        if error.code is not Code.UNAUTHENTICATED:
            raise
        tell(error.detail)
        note(f"  {client.url} does not accept the key of {origin}; nothing was stored")
        raise typer.Exit(Exit.DENIED) from error


def _read_key(file: str | None, address: str) -> tuple[str, str]:
    """Return the key from a file, a prompt that does not show it, or stdin, after where it is from. Raises UsageError."""
    if file is None and sys.stdin.isatty():
        return "the prompt", str(typer.prompt(f"API key for {address}", hide_input=True, err=True))
    try:
        if file is None or file == "-":
            return "stdin", sys.stdin.readline()
        return file, Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{file or 'stdin'} does not hold an API key, which looks like tmk_...: it is no text"
        ) from error


def logout(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="Context; by default the one in use.",
            show_default=False,
            autocompletion=completion.contexts,
        ),
    ] = None,
) -> None:
    """Delete the key of a context from this machine. The key stays valid: an admin revokes it."""
    contexts = read_contexts()
    chosen = name or contexts.current
    if not chosen:
        raise UsageError("no context is in use: name one, as 'trainmaster contexts' lists them")
    present = contexts.named(chosen)
    left = Contexts({**contexts.by_name, chosen: config.Context(present.url, "")}, contexts.current)
    write_contexts(left)
    print(f"{chosen}  logged out of {present.url}")


def whoami(ctx: typer.Context, output: OutputOption = Format.TABLE) -> None:
    """Show the key in use, its rights, and the versions of this program and the dispatcher."""
    with config.connect(ctx) as client:
        identity, address = client.whoami(), client.url
    if output.is_data:
        print_data(data_of(identity) | {"url": address, "clientVersion": __version__}, output)
        return
    print_pairs(_pairs(identity, address))


def kubeconfig(
    ctx: typer.Context,
    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace", "-n", help="Namespace in use: that of a queue, such as research-vision.", show_default=False
        ),
    ] = None,
) -> None:
    """Print a kubeconfig by which kubectl speaks with the dispatcher. It has your key in it."""
    import os
    from base64 import b64encode

    from trainmaster.cli.yaml_files import read_text

    context = config.load(config.flags_of(ctx))
    server = context.kubernetes or context.url
    if not server.startswith("https://"):
        raise UsageError(
            f"kubectl sends a key over https alone, and {server} is not; the dispatcher needs an address of https://"
        )
    cluster = {"server": server}
    if authority := context.authority or os.environ.get("SSL_CERT_FILE"):
        cluster["certificate-authority-data"] = b64encode(read_text(authority).encode()).decode()
    name = "trainmaster"
    used = {"cluster": name, "user": name} | ({"namespace": namespace} if namespace else {})
    print_data(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": name, "cluster": cluster}],
            "users": [{"name": name, "user": {"token": context.key}}],
            "contexts": [{"name": name, "context": used}],
            "current-context": name,
        },
        Format.YAML,
    )


def _pairs(identity: "Identity", address: str) -> list[tuple[str, object]]:
    rights = {"admin": "everything", "owner": "these clusters, their agents' keys, and what runs there"}
    words = rights.get(identity.role, "jobs of these queues and of those below them")
    until = identity.expires_at
    return [
        ("key", f"{identity.name} (id {identity.id})"),
        ("role", f"{identity.role}: {words}"),
        ("clusters", ", ".join(identity.clusters) or "none any more: they were removed")
        if identity.role == "owner"
        else ("queues", ", ".join(identity.queues)),
        ("on behalf of", ", ".join(identity.on_behalf_of)),
        ("expires", f"{until.astimezone():%Y-%m-%d %H:%M}" if until is not None else "never"),
        ("dispatcher", address),
        ("versions", f"dispatcher {identity.version}, this program {__version__}"),
    ]


@contexts_app.callback(invoke_without_command=True)
def contexts(ctx: typer.Context, output: OutputOption = Format.TABLE) -> None:
    """List contexts; with a sub-command, choose or remove one."""
    if ctx.invoked_subcommand is not None:
        return
    found = read_contexts()
    rows = [
        {"name": name, "url": one.url, "isCurrent": name == found.current, "hasKey": bool(one.key)}
        for name, one in found.by_name.items()
    ]
    if output.is_data:
        print_data(rows, output)
    elif not rows:
        note("there is no context; trainmaster login URL makes one")
    else:
        print_table(["CONTEXT", "DISPATCHER", "KEY"], [_row(row, found.current) for row in rows])


def _row(row: dict[str, object], current: str) -> list[object]:
    name = f"{row['name']} (in use)" if row["name"] == current else row["name"]
    return [name, row["url"] or "-", "stored" if row["hasKey"] else "-"]


@contexts_app.command()
def use(name: ContextName) -> None:
    """Use a context from now on."""
    found = read_contexts()
    present = found.named(name)
    write_contexts(Contexts(found.by_name, name))
    print(f"{name}  in use: {present.url}")


@contexts_app.command()
def remove(name: ContextName) -> None:
    """Remove a context with its key from this machine. The key stays valid: an admin revokes it."""
    found = read_contexts()
    found.named(name)
    write_contexts(found.without(name))
    print(f"{name}  removed")
    if name == found.current:
        note("it was in use; trainmaster contexts use NAME chooses another one")
