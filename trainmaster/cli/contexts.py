"""``login``, ``logout``, ``contexts``, ``whoami``, ``dashboard``, ``token``, ``kubeconfig``: the dispatcher in use, its
page, and the key or account for it.
"""

import math
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from trainmaster import __version__
from trainmaster.cli import completion, config
from trainmaster.cli.errors import UsageError, tell
from trainmaster.cli.output import Format, OutputOption, data_of, note, print_data, print_pairs, print_table
from trainmaster.client.address import checked_address
from trainmaster.client.config import (
    CONFIG_VARIABLE,
    Contexts,
    checked_key,
    is_this_machine,
    read_contexts,
    write_contexts,
)
from trainmaster.protocol.states import Exit, KeyRole

if TYPE_CHECKING:
    from trainmaster.client.http import Client
    from trainmaster.protocol.answers import Identity

EXEC_VERSION = "client.authentication.k8s.io/v1"
"""The API version of credentials that kubectl asks a program for."""

contexts_app = typer.Typer(help="List, choose and remove contexts: dispatchers with a key for each.")

ContextName = Annotated[str, typer.Argument(metavar="NAME", show_default=False, autocompletion=completion.contexts)]


def register(app: typer.Typer) -> None:
    for command in (login, logout, whoami, dashboard, token, kubeconfig):
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
    oidc: Annotated[
        bool, typer.Option("--oidc", help="Sign in with your company's account, in a browser, in place of a key.")
    ] = False,
    issuer: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="With --oidc: whose account, where there are several issuers.", show_default=False
        ),
    ] = None,
) -> None:
    """Store the key for a dispatcher, once the dispatcher has accepted it, and use both from now on. With --oidc, sign in."""
    contexts = read_contexts()
    flags = config.flags_of(ctx)
    address = _address(url or flags.url or _current(contexts, flags.context))
    # With an address, a context is made: another one may have a key for the same address, such as an admin's.
    in_use = "" if url or flags.url else flags.context or contexts.current
    chosen = name or in_use or urlsplit(address).netloc
    before = contexts.by_name.get(chosen)
    if oidc:
        if key_file is not None or flags.key is not None:
            raise UsageError("--oidc signs in with an account, so it goes with neither --key nor --key-file")
        _sign_in(address, chosen, issuer)
        return
    if issuer is not None:
        raise UsageError("--issuer names whose account to sign in with, so it goes with --oidc")
    origin, key = ("--key", flags.key) if flags.key is not None else _read_key(key_file, address)
    key = checked_key(key, origin)
    with config.open_client(config.Context(address, key)) as client:
        identity = _owner_of(client, f"the key of {origin}")
    write_contexts(contexts.having(chosen, config.Context(address, key)))
    print(f"{chosen}  logged in at {address} as {identity.name} ({identity.role})")
    note(f"the key is in {config.config_path()}, which only you may read")
    if before is not None and before.key and before.key != key:
        note(f"it replaces the key of this context for {before.url}; with --name NAME both are kept")


def _sign_in(address: str, name: str, issuer: str | None) -> None:
    """Sign in with the issuer of a dispatcher, and store the tokens once the dispatcher has accepted them."""
    from trainmaster.client.sign_in import DeviceFlow, terms_of

    terms = terms_of(address, issuer)
    if terms.others and issuer is None:
        note(f"signing in at {terms.issuer}; --issuer NAME chooses another one: {', '.join(terms.others)}")
    flow = DeviceFlow(terms)
    code = flow.begin()
    note(f"open {code.address} in a browser and enter the code {code.code}")
    if code.whole_address:
        note(f"  or open {code.whole_address}")
    context = flow.finish(code, address)
    with config.open_client(config.Context(address, context.id_token)) as client:
        identity = _owner_of(client, f"the token of {context.issuer}")
    contexts = read_contexts()
    present = contexts.by_name.get(name)
    if present is not None and present.url.rstrip("/") == address.rstrip("/"):
        context = replace(context, kubernetes=present.kubernetes, authority=present.authority)
    write_contexts(contexts.having(name, context))
    print(f"{name}  signed in at {address} as {identity.name} ({identity.role})")
    note(f"the tokens are in {config.config_path()}, which only you may read")
    if present is not None and present.key:
        note(f"they replace the key of this context for {present.url}; with --name NAME both are kept")


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


def _owner_of(client: "Client", credential: str) -> "Identity":
    """Return whose the credential of a client is; end the command where the dispatcher does not accept it."""
    from trainmaster.protocol.errors import Code, ProblemError

    try:
        return client.whoami()
    except ProblemError as error:
        if error.code is not Code.UNAUTHENTICATED:
            raise
        tell(error.detail)
        note(f"  {client.url} does not accept {credential}; nothing was stored")
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
    """Delete the key or the tokens of a context from this machine. A key stays valid: an admin revokes it."""
    contexts = read_contexts()
    chosen = name or contexts.current
    if not chosen:
        raise UsageError("no context is in use: name one, as 'trainmaster contexts' lists them")
    present = contexts.named(chosen)
    left = Contexts({**contexts.by_name, chosen: config.Context(present.url, "")}, contexts.current)
    write_contexts(left)
    print(f"{chosen}  logged out of {present.url}")


def whoami(ctx: typer.Context, output: OutputOption = Format.TABLE) -> None:
    """Show the key or the account in use, its rights, and the versions of this program and the dispatcher."""
    with config.connect(ctx) as client:
        identity, address = client.whoami(), client.url
    if output.is_data:
        print_data(data_of(identity) | {"url": address, "clientVersion": __version__}, output)
        return
    print_pairs(_pairs(identity, address))


def dashboard(
    ctx: typer.Context,
    opens: Annotated[bool, typer.Option("--open/--no-open", help="Open it in a browser as well.")] = True,
) -> None:
    """Print the address of the dispatcher's page for browsers, and open it."""
    address = f"{config.load(config.flags_of(ctx)).url.rstrip('/')}/"
    print(address, flush=True)
    if opens:
        import webbrowser

        if not webbrowser.open(address):
            note("no browser was found on this machine; open the address in one")


def token(
    ctx: typer.Context,
    exec_credential: Annotated[
        bool, typer.Option("--exec-credential", help="As kubectl and client libraries of Kubernetes read it.")
    ] = False,
) -> None:
    """Print the token in use, a new one if it ends soon; or the key, where nobody has signed in."""
    from trainmaster.client.sign_in import end_of, is_token, lasting

    context = config.load(config.flags_of(ctx))
    found = lasting(context.key, context.url)
    if not exec_credential:
        print(found)
        return
    status: dict[str, object] = {"token": found}
    if is_token(found) and (end := end_of(found)) != math.inf:
        status["expirationTimestamp"] = f"{datetime.fromtimestamp(end, UTC):%Y-%m-%dT%H:%M:%SZ}"
    print_data({"apiVersion": EXEC_VERSION, "kind": "ExecCredential", "status": status}, Format.JSON)


def kubeconfig(
    ctx: typer.Context,
    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace", "-n", help="Namespace in use: that of a queue, such as research-vision.", show_default=False
        ),
    ] = None,
    through_exec: Annotated[
        bool,
        typer.Option("--exec", help="Let kubectl ask this program for the key, so that the file has no secret in it."),
    ] = False,
) -> None:
    """Print a kubeconfig by which kubectl speaks with the dispatcher. Has the key in it; of a sign-in, kubectl asks for tokens."""
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
    user = _exec_user(context) if through_exec or context.id_token else {"token": context.key}
    if context.token_file and not through_exec:
        user = {"tokenFile": str(Path(context.token_file).absolute())}
    print_data(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": name, "cluster": cluster}],
            "users": [{"name": name, "user": user}],
            "contexts": [{"name": name, "context": used}],
            "current-context": name,
        },
        Format.YAML,
    )


def _exec_user(context: config.Context) -> dict[str, object]:
    """Return the user of a kubeconfig whose credential kubectl asks this program for. Raises UsageError without a stored one."""
    import os

    contexts = read_contexts()
    stored = [
        name for name, one in contexts.by_name.items() if one.credential == context.key and one.url == context.url
    ]
    name = next((name for name in (contexts.current, *stored) if name in stored), None)
    if name is None:
        raise UsageError(
            f"kubectl would ask for the key of a context, and none has this one: trainmaster login {context.url}"
        )
    plugin: dict[str, object] = {
        "apiVersion": EXEC_VERSION,
        "command": "trainmaster",
        "args": ["--context", name, "token", "--exec-credential"],
        "interactiveMode": "IfAvailable",
        "installHint": "kubectl gets its credential from the command line of Trainmaster: pip install trainmaster",
    }
    if os.environ.get(CONFIG_VARIABLE):
        plugin["env"] = [{"name": CONFIG_VARIABLE, "value": str(config.config_path().absolute())}]
    return {"exec": plugin}


_RIGHTS = {
    KeyRole.ADMIN: "everything",
    KeyRole.OPERATOR: "clusters, and the jobs of all users",
    KeyRole.AUDITOR: "reads all, changes nothing",
    KeyRole.FINANCE: "usage, cost and prices",
    KeyRole.QUEUE_ADMIN: "these queues and those below them, with their jobs, people and burst policies",
    KeyRole.SUBMITTER: "jobs of these queues and of those below them",
    KeyRole.USER: "jobs of these queues and of those below them",
    KeyRole.VIEWER: "reads what is in these queues and in those below them",
    KeyRole.OWNER: "these clusters, their agents' keys, and what runs there",
    KeyRole.AGENT: "the calls of a cluster's agent",
}


def _pairs(identity: "Identity", address: str) -> list[tuple[str, object]]:
    words = _RIGHTS[identity.role]
    until = identity.expires_at
    who: list[tuple[str, object]] = [("key", f"{identity.name} (id {identity.id})")]
    if identity.issuer is not None:
        who = [("user", f"{identity.name} (id {identity.id}), signed in at {identity.issuer}")]
        who.append(("groups", ", ".join(identity.groups) or "none"))
    return [
        *who,
        ("role", f"{identity.role}: {words}"),
        ("also", ", ".join(one.role for one in identity.roles if one.role is not identity.role)),
        ("clusters", ", ".join(identity.clusters) or "none any more: they were removed")
        if identity.role == "owner"
        else ("queues", ", ".join(identity.queues) or "all"),
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
    rows: list[dict[str, object]] = [
        {
            "name": name,
            "url": one.url,
            "isCurrent": name == found.current,
            "hasKey": bool(one.key),
            "issuer": one.issuer or None,
        }
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
    credential = f"account of {row['issuer']}" if row["issuer"] else "stored" if row["hasKey"] else "-"
    return [name, row["url"] or "-", credential]


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
