"""What an API object is here, and the small questions that every part asks of one."""

from datetime import UTC, datetime
from typing import Any

import orjson

Object = dict[str, Any]
"""An object as JSON has it. What the store holds is never changed in place: copy before changing."""


def copied(value: Object) -> Object:
    """Return a copy that shares nothing with the original; only JSON comes through."""
    copy: Object = orjson.loads(orjson.dumps(value))
    return copy


def without_nulls(value: Any) -> Any:
    """Return a copy without the fields that are null: for a typed server they do not exist."""
    if isinstance(value, dict):
        return {name: without_nulls(part) for name, part in value.items() if part is not None}
    return [without_nulls(part) for part in value] if isinstance(value, list) else value


def rfc3339(moment: datetime) -> str:
    """Return the form of ``metav1.Time``: whole seconds in UTC."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def rfc3339_nano(moment: datetime) -> str:
    """Return the form before each line of a log that is asked for with timestamps; always nine digits, so that it sorts."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z")


def parse_time(text: str) -> datetime:
    """Parse a time. Raises ValueError. Digits beyond microseconds are cut off."""
    return datetime.fromisoformat(text)


def now() -> datetime:
    return datetime.now(UTC)


def is_deleting(value: Object) -> bool:
    return value["metadata"].get("deletionTimestamp") is not None


def is_finished(pod: Object) -> bool:
    """Return whether no container of the pod will run again."""
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def node_of(pod: Object) -> str:
    """Return the name of the node that the pod is bound to; empty if it is not bound."""
    name: str = pod["spec"].get("nodeName") or ""
    return name


def set_condition(status: Object, kind: str, value: str, reason: str = "", message: str = "") -> None:
    """Change or add a condition; the time of transition moves only when its status does."""
    conditions = status.setdefault("conditions", [])
    condition = next((one for one in conditions if one["type"] == kind), None)
    if condition is None:
        condition = {"type": kind}
        conditions.append(condition)
    if condition.get("status") != value:
        condition["lastTransitionTime"] = rfc3339(now())
    condition["status"] = value
    for name, text in (("reason", reason), ("message", message)):
        condition.pop(name, None)
        if text:
            condition[name] = text
