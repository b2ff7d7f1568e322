"""Calls about declared state as a whole: documents that are applied together, the history of objects, and the way back."""

from enum import StrEnum
from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict, Field, RootModel, StringConstraints

from trainmaster.protocol.base import Lenient, Strict, Timestamp, bounded, example, worded_pattern
from trainmaster.protocol.resource_kinds import Kind

MOST_DOCUMENTS = 1_000
"""The most documents of one call."""

ApplierName = Annotated[
    str,
    StringConstraints(
        min_length=1, max_length=100, pattern=worded_pattern(r"^[ -~]+$", "letters, digits, spaces and signs of ASCII")
    ),
]
"""The name under which documents are applied, such as ``platform``: printable ASCII."""


def _any_document(documents: tuple[dict[str, Any], ...]) -> tuple[dict[str, Any], ...]:
    if not documents:
        raise ValueError("give at least one document")
    return documents


class ApplySpec(Strict):
    """Documents to apply together: all of them or none."""

    model_config = example(
        documents=[{"kind": "Queue", "path": "research", "weight": 2}, {"kind": "Cluster", "name": "west"}],
        applier="platform",
        dryRun=True,
    )

    documents: Annotated[tuple[dict[str, Any], ...], bounded(MOST_DOCUMENTS, least=1), AfterValidator(_any_document)]
    """Declared objects, each with its ``kind``, and only the fields that the applier wants to set."""
    applier: ApplierName | None = None
    """Name under which fields are owned; by default that of the API key."""
    dry_run: bool = False
    """True to change nothing, and to answer as the real call would."""
    replace: bool = False
    """True to reset the fields that a document leaves out to their defaults."""
    force: bool = False
    """True to take over fields that other appliers own, and to remove objects of which they own fields."""
    prune: ApplierName | None = None
    """Name of an applier whose objects are removed if no document names them: those that it has created, or was the last to apply."""


class ApplyOutcome(StrEnum):
    """Effect on an object."""

    CREATED = "created"
    CHANGED = "changed"
    UNCHANGED = "unchanged"
    REMOVED = "removed"


class ChangedField(Lenient):
    """A field before and after a change."""

    field: str
    """Path of the field, such as ``resources.cpu.limit``."""
    before: Any = None
    """Value before the change; null where it had none."""
    after: Any = None
    """Value after the change; null where it has none."""


class AppliedObject(Lenient):
    """An object, and what happened to it."""

    kind: Kind
    """Kind of the object."""
    name: str
    """Name of the object; the path of a queue."""
    outcome: ApplyOutcome
    """Effect on the object."""
    fields: tuple[ChangedField, ...] = ()
    """Fields that differ."""


class ApplyWarning(Lenient):
    """A warning about an object as it is after the change."""

    kind: Kind
    """Kind of the object."""
    name: str
    """Name of the object; the path of a queue."""
    message: str
    """Sentence for people."""


class ApplyAnswer(Lenient):
    """Effects of documents that were applied. A dry run has the same answer, and changes nothing."""

    model_config = example(
        dryRun=True,
        applier="platform",
        objects=[
            {
                "kind": "Queue",
                "name": "research",
                "outcome": "changed",
                "fields": [{"field": "weight", "before": 1.0, "after": 2.0}],
            }
        ],
        warnings=[],
    )

    dry_run: bool
    """True if nothing was changed."""
    applier: str
    """Name under which the documents were applied."""
    objects: tuple[AppliedObject, ...]
    """Objects of the documents, those that changed as a consequence, and removed ones."""
    warnings: tuple[ApplyWarning, ...] = ()
    """Warnings, such as about queues whose guarantees exceed what the clusters have."""


class MergePatch(RootModel[Annotated[dict[str, Any], bounded(200)]]):
    """A JSON merge patch (RFC 7396) of an object as it is declared: null sets a field back to its default."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"description": "since May"}]})


class RevisionView(Lenient):
    """An object as it was after a change."""

    revision: int
    """Number of the revision, from 1."""
    at: Timestamp
    """Time of the change."""
    actor: str
    """Name of the API key that made the change; empty where it was not recorded."""
    applier: str
    """Name under which the documents were applied; empty for none."""
    action: str
    """Action, such as ``put``, ``patch``, ``apply``, ``prune``, ``delete`` or ``rollback``; ``unrecorded`` where it is not known."""
    fields: tuple[ChangedField, ...] = ()
    """Fields that differ from the revision before; empty for the oldest one that is kept."""
    spec: dict[str, Any] | None = None
    """The whole specification; null where the change has removed the object."""


class HistoryPage(Lenient):
    """A page of an object's revisions, the latest first."""

    model_config = example(
        kind="Queue",
        name="research",
        revisions=[
            {
                "revision": 2,
                "at": "2026-11-24T08:00:00.000Z",
                "actor": "admin",
                "applier": "platform",
                "action": "apply",
                "fields": [{"field": "weight", "before": 1.0, "after": 2.0}],
                "spec": {"kind": "Queue", "path": "research", "weight": 2.0},
            }
        ],
    )

    kind: Kind
    """Kind of the object."""
    name: str
    """Name of the object; the path of a queue."""
    revisions: tuple[RevisionView, ...]
    """Revisions of the page."""
    next: int | None = None
    """Cursor of the next page; null on the last."""


class RollbackSpec(Strict):
    """An object, and the revision to return it to."""

    model_config = example(kind="Queue", name="research", revision=1)

    kind: Kind
    """Kind of the object."""
    name: Annotated[str, StringConstraints(min_length=1, max_length=200)]
    """Name of the object; the path of a queue."""
    revision: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    """Number of the revision; by default the last one that differs from the object as it is."""
    dry_run: bool = False
    """True to change nothing, and to answer as the real call would."""


class RollbackAnswer(Lenient):
    """Effect of a rollback."""

    model_config = example(
        dryRun=False,
        revision=1,
        object={
            "kind": "Queue",
            "name": "research",
            "outcome": "changed",
            "fields": [{"field": "weight", "before": 2.0, "after": 1.0}],
        },
    )

    dry_run: bool
    """True if nothing was changed."""
    revision: int
    """Number of the revision whose specification the object has now."""
    object: AppliedObject
    """The object, and what happened to it."""
