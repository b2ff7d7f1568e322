"""``admin bootstrap``: the first keys and tenants of an installation whose processes start by themselves, as in containers."""

import asyncio
import secrets
from collections.abc import Sequence
from pathlib import Path

from trainmaster.cli.documents import read_documents
from trainmaster.cli.errors import UsageError
from trainmaster.protocol import documents
from trainmaster.protocol.documents import Item
from trainmaster.protocol.resource_kinds import KINDS
from trainmaster.protocol.states import KeyRole
from trainmaster.protocol.tenants import KeySpec
from trainmaster_dispatcher.cli.embedded import private_file
from trainmaster_dispatcher.services.bootstrap import make_what_is_missing
from trainmaster_dispatcher.services.settings import Settings


def read_declared(files: Sequence[str]) -> list[Item]:
    """Return what the files declare, in an order in which it can be made. Raises UsageError and ProblemError."""
    found = read_documents(files, {}) if files else []
    for document in found:
        if document.kind not in KINDS:
            raise UsageError(f"{document.place}: kind {documents.no_kind(document, tuple(KINDS))}")
    return documents.read_declared(found)


def make_installation(settings: Settings, declared: Sequence[Item], out: Path) -> list[str]:
    """Create what is missing, with its keys in ``out``; return a sentence for each created object. Raises UsageError
    and ProblemError.

    Each key has a folder of its own, so that a process can be given one key and no other.
    """
    clusters = [item.name for item in declared if item.kind == "Cluster"]
    wanted = [KeySpec(name="admin", role=KeyRole.ADMIN)]
    wanted += [KeySpec(name=f"agent-{name}", role=KeyRole.AGENT, cluster=name) for name in clusters]
    # The file comes first: a key that is stored but written nowhere would be lost when this process dies in between.
    try:
        keys = [(spec, _kept_secret(out / spec.name / "key")) for spec in wanted]
    except OSError as error:
        raise UsageError(f"cannot keep keys in {out}: {error}") from error
    return asyncio.run(make_what_is_missing(settings, declared, keys))


def _kept_secret(path: Path) -> str:
    secret = path.read_text().strip() if path.exists() else ""
    if not secret:
        secret = "tmk_" + secrets.token_urlsafe(32)
        private_file(path, secret)
    return secret
