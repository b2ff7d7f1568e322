"""Bodies of changes by the Kubernetes API: objects and patches, read by their media type, and what they make of an object. Pure."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from enum import StrEnum
from typing import Any, NamedTuple

import jsonpatch
import jsonpointer
import orjson
import yaml

from trainmaster.protocol.errors import Code, Mistake, ProblemError
from trainmaster.protocol.validation_errors import UNKNOWN_FIELD
from trainmaster.protocol.yaml_text import load, place_of
from trainmaster_dispatcher.api.kube import protobuf
from trainmaster_dispatcher.domain import strategic_merge
from trainmaster_dispatcher.domain.declared_fields import is_too_deep, merge_patched
from trainmaster_dispatcher.domain.strategic_merge import StrategicMergeError
from trainmaster_dispatcher.services.submission_parsing import mistaken, parse_json

Wire = dict[str, Any]
_MOST_MARKS = 300_000
_MOST_BYTES = 1024 * 1024
_MOST_OPERATIONS = 1_000
_JSON, _YAML = "application/json", "application/yaml"


class PatchType(StrEnum):
    """Media types of patches. A strategic merge patch needs types that only built-in kinds of Kubernetes have."""

    JSON = "application/json-patch+json"
    MERGE = "application/merge-patch+json"
    APPLY = "application/apply-patch+yaml"
    STRATEGIC = "application/strategic-merge-patch+json"


PATCH_TYPES = (PatchType.JSON, PatchType.MERGE, PatchType.APPLY)
"""The types of patches of all kinds."""


def media_type(header: str) -> str:
    return header.split(";")[0].strip().lower()


def read_object(body: bytes, content_type: str) -> Wire:
    """Return the object in a body. Raises ProblemError UNSUPPORTED_MEDIA_TYPE, MALFORMED_BODY or BODY_TOO_LARGE."""
    kind = media_type(content_type) or _JSON
    if kind not in (_JSON, _YAML, protobuf.MEDIA_TYPE):
        raise _unsupported(kind, (_JSON, _YAML, protobuf.MEDIA_TYPE))
    if kind == protobuf.MEDIA_TYPE:
        return _mapping(_decoded(body))
    return _mapping(_read(body, is_yaml=kind == _YAML))


def read_patch(body: bytes, content_type: str, types: Sequence[PatchType] = PATCH_TYPES) -> tuple[PatchType, Any]:
    """Return the type of a patch, and the patch. Raises ProblemError as ``read_object`` does."""
    kind = media_type(content_type)
    if kind not in types:
        raise _unsupported(kind, types)
    patch = _read(body, is_yaml=kind == PatchType.APPLY)
    if kind != PatchType.JSON:
        return PatchType(kind), _mapping(patch)
    if not isinstance(patch, list) or len(patch) > _MOST_OPERATIONS or not all(isinstance(one, dict) for one in patch):
        message = f"a JSON patch has to be a list of at most {_MOST_OPERATIONS} operations, each an object"
        raise ProblemError(Code.MALFORMED_BODY, message)
    if is_too_deep(patch):
        raise ProblemError(Code.INVALID_SPEC, "mappings and lists are nested too deep")
    return PatchType.JSON, patch


def yaml_or_json(body: bytes) -> Any:
    """Return what is in a body, whichever of these it is, or protobuf. Raises ProblemError MALFORMED_BODY or BODY_TOO_LARGE."""
    return _read(body, is_yaml=True)


def read_options(body: bytes) -> Wire:
    """Return the options in the body of a deletion, which may be empty. Raises ProblemError."""
    return _mapping(_read(body, is_yaml=False)) if body.strip() else {}


def _unsupported(kind: str, known: Sequence[str]) -> ProblemError:
    return ProblemError(
        Code.UNSUPPORTED_MEDIA_TYPE,
        "the body of the request was in an unknown format - accepted media types include: "
        f"{', '.join(known)}; not {kind[:100] or 'none'!r}",
    )


def _read(body: bytes, *, is_yaml: bool) -> Any:
    if len(body) > _MOST_BYTES:
        raise ProblemError(Code.BODY_TOO_LARGE, f"an object may have at most {_MOST_BYTES} bytes, not {len(body)}")
    if body.startswith(protobuf.MAGIC):
        return _decoded(body)
    if not is_yaml or body.lstrip()[:1] in (b"{", b"["):
        return parse_json(body, _MOST_MARKS)
    try:
        return parse_json(orjson.dumps(load(body.decode())), _MOST_MARKS)
    except orjson.JSONEncodeError as error:
        raise ProblemError(Code.INVALID_SPEC, f"the body has what JSON has not: {error}") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise ProblemError(Code.MALFORMED_BODY, f"the body is not YAML: {place_of(error)}") from error
    except UnicodeDecodeError as error:
        raise ProblemError(Code.MALFORMED_BODY, "the body is not YAML: it is not text in UTF-8") from error


def _decoded(body: bytes) -> Any:
    """Return the object in a body in protobuf, with the bounds that JSON has. Raises ProblemError."""
    if len(body) > _MOST_BYTES:
        raise ProblemError(Code.BODY_TOO_LARGE, f"an object may have at most {_MOST_BYTES} bytes, not {len(body)}")
    return parse_json(orjson.dumps(protobuf.decode(body)), _MOST_MARKS)


def _mapping(value: Any) -> Wire:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ProblemError(Code.MALFORMED_BODY, "the body has to be an object")
    if is_too_deep(value):
        raise ProblemError(Code.INVALID_SPEC, "mappings and lists are nested too deep")
    return value


def patched(kind: PatchType, before: Wire, patch: Any) -> Wire:
    """Return an object after a patch: a merge patch, a strategic one, or a JSON patch (RFC 6902).

    Raises ProblemError INVALID_SPEC or MALFORMED_BODY.
    """
    if kind is PatchType.MERGE:
        return _mapping(merge_patched(before, patch))
    if kind is PatchType.STRATEGIC:
        try:
            return _mapping(strategic_merge.merged(before, patch))
        except StrategicMergeError as error:
            raise ProblemError(Code.INVALID_SPEC, f"the patch cannot be applied: {error}") from error
    try:
        return _mapping(_json_patched(before, patch))
    except jsonpatch.JsonPatchTestFailed as error:
        raise ProblemError(Code.INVALID_SPEC, f"a test of the patch fails: {str(error)[:300]}") from error
    except (
        jsonpatch.JsonPatchException,
        jsonpointer.JsonPointerException,
        TypeError,
        AttributeError,
        LookupError,
    ) as error:
        raise ProblemError(Code.INVALID_SPEC, f"the patch cannot be applied: {str(error)[:300]}") from error


def _json_patched(before: Wire, patch: list[Wire]) -> Any:
    """Return an object after the operations of a patch. Copies may double it each time, so its size is looked at after each."""
    after: Any = deepcopy(before)
    for operation in patch:
        after = jsonpatch.apply_patch(after, [operation])
        if operation.get("op") == "copy" and (is_too_deep(after) or len(orjson.dumps(after)) > _MOST_BYTES):
            raise ProblemError(Code.BODY_TOO_LARGE, f"after the patch, the object has more than {_MOST_BYTES} bytes")
    return after


class Desired(NamedTuple):
    """The fields of an object that a body sets. ``version``, ``uid``: of the object that it says it is about."""

    name: str
    prefix: str
    namespace: str
    labels: dict[str, str]
    annotations: dict[str, str]
    spec: Wire
    version: str
    uid: str
    owners: tuple[Wire, ...] = ()
    """Schedules that it names as its owners."""

    def fields(self) -> Wire:
        """Return what is managed of it."""
        metadata = {key: value for key, value in (("labels", self.labels), ("annotations", self.annotations)) if value}
        return {**({"metadata": metadata} if metadata else {}), **({"spec": self.spec} if self.spec else {})}


def fields_of(item: Wire | None) -> Wire:
    """Return what is managed of an object; of none, nothing."""
    if item is None:
        return {}
    metadata = {key: item["metadata"][key] for key in _MAPPINGS if item["metadata"].get(key)}
    return {**({"metadata": metadata} if metadata else {}), "spec": item.get("spec", {})}


_METADATA = frozenset(
    (
        *(
            "name",
            "generateName",
            "namespace",
            "labels",
            "annotations",
            "uid",
            "resourceVersion",
            "generation",
            "selfLink",
        ),
        *("creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "managedFields", "finalizers"),
        "ownerReferences",
    )
)
_OWNERS = (("batch/v1", "CronJob"), ("trainmaster.dev/v1", "Schedule"))
_MOST_ANNOTATION_BYTES = 256 * 1024
_LONGEST_NAME = 253
_TEXTS = ("name", "generateName", "namespace", "uid", "resourceVersion")
_MAPPINGS = ("labels", "annotations")


def desired(value: Wire, group_version: str, kind: str) -> Desired:
    """Return what an object in a body wants. Raises ProblemError INVALID_SPEC with each mistake."""
    mistakes = [
        Mistake(path=field, message=f"must be {expected!r} at this address, not {str(value.get(field))[:100]!r}")
        for field, expected in (("apiVersion", group_version), ("kind", kind))
        if value.get(field) != expected
    ]
    mistakes += [
        Mistake(path=field, message=f"{UNKNOWN_FIELD}; there are: metadata, spec, status")
        for field in sorted(value.keys() - {"apiVersion", "kind", "metadata", "spec", "status"})
    ]
    metadata, spec = (value.get(field) or {} for field in ("metadata", "spec"))
    mistakes += [
        Mistake(path=field, message="must be an object")
        for field, part in (("metadata", metadata), ("spec", spec))
        if not isinstance(part, Mapping)
    ]
    if mistakes or (mistakes := _mistakes_in(metadata)):
        raise mistaken(*mistakes)
    texts = {field: metadata.get(field) or "" for field in _TEXTS}
    labels, annotations = (dict(metadata.get(field) or {}) for field in _MAPPINGS)
    return Desired(
        texts["name"],
        texts["generateName"],
        texts["namespace"],
        labels,
        annotations,
        dict(spec),
        texts["resourceVersion"],
        texts["uid"],
        tuple(metadata.get("ownerReferences") or ()),
    )


def _is_schedule(owner: object) -> bool:
    """Return whether an owner is a schedule, which own the jobs that they make."""
    if not isinstance(owner, Mapping) or not all(isinstance(owner.get(field), str) for field in ("name", "uid")):
        return False
    return (owner.get("apiVersion"), owner.get("kind")) in _OWNERS


def _mistakes_in(metadata: Mapping[str, Any]) -> list[Mistake]:
    found = [(field, UNKNOWN_FIELD) for field in sorted(metadata.keys() - _METADATA)]
    if metadata.get("finalizers"):
        found.append(("finalizers", "objects of this API have none; leave it out"))
    owners = metadata.get("ownerReferences") or []
    if not isinstance(owners, list) or not all(_is_schedule(one) for one in owners) or len(owners) > 1:
        found.append(
            ("ownerReferences", "objects of this API are owned by a CronJob or Schedule, or by none; leave it out")
        )
    for field in _TEXTS:
        text = metadata.get(field) or ""
        if not isinstance(text, str) or len(text) > _LONGEST_NAME:
            found.append((field, f"must be a text of at most {_LONGEST_NAME} characters"))
    for field in _MAPPINGS:
        items = metadata.get(field) or {}
        if not isinstance(items, Mapping) or not all(isinstance(one, str) for one in items.values()):
            found.append((field, "must have texts as values; a number or true needs quotes"))
        elif sum(len(key) + len(text) for key, text in items.items()) > _MOST_ANNOTATION_BYTES:
            found.append((field, f"have more than {_MOST_ANNOTATION_BYTES} bytes in all"))
    return [Mistake(path=f"metadata.{field}", message=message) for field, message in found]
