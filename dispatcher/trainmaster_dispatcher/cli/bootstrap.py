"""``admin bootstrap``: the first keys and tenants of an installation whose processes start by themselves, as in containers."""

import asyncio
import secrets
from collections.abc import Sequence
from pathlib import Path

from trainmaster.cli.documents import read_documents, validated
from trainmaster.cli.errors import UsageError
from trainmaster.protocol.bursting import BurstPolicySpec
from trainmaster.protocol.prices import PriceBookSpec
from trainmaster.protocol.resource_kinds import Document
from trainmaster.protocol.states import KeyRole
from trainmaster.protocol.tenants import ClusterSpec, DatasetSpec, KeySpec, PriorityClassSpec, QueueSpec
from trainmaster_dispatcher.cli.embedded import private_file
from trainmaster_dispatcher.services.bootstrap import Declared, make_what_is_missing
from trainmaster_dispatcher.services.settings import Settings

_KINDS: dict[str | None, type[Declared]] = {
    "PriorityClass": PriorityClassSpec,
    "Queue": QueueSpec,
    "PriceBook": PriceBookSpec,
    "Dataset": DatasetSpec,
    "BurstPolicy": BurstPolicySpec,
    "Cluster": ClusterSpec,
}


def read_declared(files: Sequence[str]) -> list[Declared]:
    """What the files declare. Raises UsageError and ProblemError."""
    return [_declared(document) for document in (read_documents(files, {}) if files else [])]


def _declared(document: Document) -> Declared:
    kind = _KINDS.get(document.kind)
    if kind is None:
        raise UsageError(
            f"{document.place}: {document.value.get('kind')!r} is not one of {', '.join(map(str, _KINDS))}"
        )
    return validated(kind, document.value, document.place)


def make_installation(settings: Settings, declared: Sequence[Declared], out: Path) -> list[str]:
    """Make what is missing, with its keys in ``out``; a sentence for each thing made. Raises UsageError and ProblemError.

    Each key has a folder of its own, so that a process can be given one key and no other.
    """
    clusters = [spec.name for spec in declared if isinstance(spec, ClusterSpec)]
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
