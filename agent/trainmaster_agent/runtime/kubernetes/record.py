"""The record of a run: a ConfigMap named after the run in the agent's namespace.

It has the whole specification, variables included, so it is never in a namespace for jobs: a pod can mount any ConfigMap of its own
namespace, and none of another one.

``start`` is written once. ``progress`` changes with each decision that a restarted agent could not derive from the pods
themselves: a stop, other sizes, restarts, the verdict. Each write names the resource version that it changes, so that an agent whose
Lease has passed to another one cannot overwrite that one's changes.
"""

import base64
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
from pydantic import ValidationError

from trainmaster.protocol.agent import RunEnd, StartRun, StopRun
from trainmaster.protocol.states import RunState
from trainmaster_agent.kube.pods import LABEL_RUN, moment

LABEL_AGENT = "trainmaster.dev/agent"
LABEL_JOB = "trainmaster.dev/job"
LABEL_RECORD = "trainmaster.dev/anchor"  # what earlier releases called a record
ALIVE, TOMBSTONE, MOVED = "true", "over", "moved"
"""Values of the record's label: the second once the run's end is settled and all but the record may be removed. The third is that of
an emptied record of an older release, in the namespace of the jobs: it owns the pods that were created under it."""
ACCEPTED_AT = "trainmaster.dev/accepted-at"
"""Annotation of a moved record: creation time of the older one, as the API server writes it."""
MANAGED_BY = ("app.kubernetes.io/managed-by", "trainmaster")

_PLAIN = 200_000
"""The most bytes of a specification that is stored in readable form; a ConfigMap holds 1 MiB."""


Again = tuple[float, str]


class UnreadableRecordError(Exception):
    """A ConfigMap with our labels does not hold a run."""


@dataclass(frozen=True, slots=True)
class RecordedEnd:
    """The run's end. Its members may still have to leave."""

    state: RunState
    message: str = ""
    end: RunEnd | None = None
    results: Mapping[str, Any] | None = None
    """Results of the run, once every member is gone."""
    results_error: str = ""

    def to_json(self) -> dict[str, Any]:
        end = None if self.end is None else self.end.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        left: dict[str, Any] = {"results": self.results} if self.results is not None else {}
        left |= {"results_error": self.results_error} if self.results_error else {}
        return {"state": self.state, "message": self.message, "end": end, **left}

    @staticmethod
    def read(data: Mapping[str, Any]) -> "RecordedEnd":
        end = None if data.get("end") is None else RunEnd.model_validate(data["end"])
        left = data.get("results"), data.get("results_error", "")
        return RecordedEnd(RunState(data["state"]), data.get("message", ""), end, *left)


@dataclass(slots=True)
class Progress:
    """Decisions since the run was accepted. Times are seconds of the epoch."""

    generation: int = 1
    sizes: dict[str, int] | None = None
    """Members by role, once the run was resized."""
    created: bool = False
    """Whether all members of this round have been created: one that is missing later was taken away."""
    round: int = 0
    """Round of members: rises when all members are replaced; their pods carry it."""
    gang_restarts: int = 0
    not_before: float = 0.0
    """Time from which the members of this round may be created."""
    restarts: dict[str, int] = field(default_factory=dict)
    """Restarts by member (``role-index``)."""
    oom_kills: dict[str, int] = field(default_factory=dict)
    """Earlier lives by member that were ended for lack of memory: their pods are gone."""
    again: dict[str, Again] = field(default_factory=dict)
    """Members to recreate: the earliest time, and the uid of the pod whose end was judged."""
    done: list[str] = field(default_factory=list)
    """Members that have succeeded and whose pods are gone."""
    said: dict[str, int] = field(default_factory=dict)
    """By member: bytes of output of its earlier lives, as far as somebody has read it. The next life's offsets begin there."""
    running_since: float | None = None
    not_told: dict[str, str] = field(default_factory=dict)
    """By member: why the checkpoint signal did not reach it."""
    stop: StopRun | None = None
    stopped_at: float = 0.0
    verdict: RecordedEnd | None = None
    ended_at: float | None = None
    """Set once every member is gone: the run is over."""

    def dump(self) -> str:
        """Return compact JSON without fields at their initial values."""
        data = {name: getattr(self, name) for name in _PLAIN_FIELDS if getattr(self, name) != getattr(_FRESH, name)}
        if self.stop is not None:
            data["stop"] = self.stop.model_dump(mode="json", by_alias=True)
        if self.verdict is not None:
            data["verdict"] = self.verdict.to_json()
        return orjson.dumps(data, option=orjson.OPT_SORT_KEYS).decode()

    @staticmethod
    def load(text: str) -> "Progress":
        data = orjson.loads(text)
        progress = Progress(**{name: data[name] for name in _PLAIN_FIELDS if name in data})
        progress.again = {name: (at, uid) for name, (at, uid) in progress.again.items()}
        if data.get("stop"):
            progress.stop = StopRun.model_validate(data["stop"])
        if data.get("verdict"):
            progress.verdict = RecordedEnd.read(data["verdict"])
        return progress


_PLAIN_FIELDS = (
    "generation",
    "sizes",
    "created",
    "round",
    "gang_restarts",
    "not_before",
    "restarts",
    "oom_kills",
    "again",
    "done",
    "said",
    "not_told",
    "running_since",
    "stopped_at",
    "ended_at",
)
_FRESH = Progress()


@dataclass(slots=True)
class KubeRunRecord:
    """A run as stored in its record."""

    start: StartRun
    namespace: str
    """Namespace of its members; the record itself is in the agent's namespace."""
    term: int
    """Term of the agent that accepted it; sequence numbers count from there."""
    progress: Progress = field(default_factory=Progress)
    uid: str = ""
    version: str = ""
    accepted_at: float = 0.0
    owner_uid: str = ""
    """Uid of its members' namespace; empty while that is unknown."""
    was_moved: bool = False
    """Whether an older release created its record, which remains emptied in the namespace of its members."""

    def to_config_map(self, agent: str, home: str) -> dict[str, Any]:
        """Return the record as it is first written; ``home`` is the agent's namespace."""
        run = self.start
        raw = orjson.dumps(run.model_dump(mode="json", by_alias=True, exclude_defaults=True))
        body: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": run.run,
                "namespace": home,
                "labels": {**run_labels(agent, run), LABEL_RECORD: ALIVE},
            },
            "data": {"term": str(self.term), "namespace": self.namespace, "progress": self.progress.dump()},
        }
        if len(raw) <= _PLAIN:
            body["data"]["start"] = raw.decode()
        else:
            body["binaryData"] = {"start.z": base64.b64encode(zlib.compress(raw)).decode()}
        return body

    def owner(self) -> dict[str, Any]:
        """Return the ownerReference of the run's objects: the namespace that they are in.

        An owner has to be in the same namespace or in none, and one owner per run would cost one more write per run. The agent removes
        what is left of ended runs. ``controller`` marks the pod for ``kubectl drain`` as managed; without it a
        drain refuses. ``blockOwnerDeletion`` is left out: setting it takes permission to change the owner's finalizers, and nothing
        waits for dependents here.
        """
        return {
            "apiVersion": "v1",
            "kind": "Namespace",
            "name": self.namespace,
            "uid": self.owner_uid,
            "controller": True,
        }

    def take(self, stored: Mapping[str, Any]) -> None:
        """Note how the API server has stored the record."""
        metadata = stored["metadata"]
        self.uid, self.version = metadata["uid"], metadata["resourceVersion"]
        moved = (metadata.get("annotations") or {}).get(ACCEPTED_AT)
        self.was_moved = moved is not None
        self.accepted_at = moment(moved or metadata.get("creationTimestamp")) or self.accepted_at


def run_labels(agent: str, run: StartRun) -> dict[str, str]:
    """Return the labels of every object of a run."""
    return {MANAGED_BY[0]: MANAGED_BY[1], LABEL_AGENT: agent, LABEL_RUN: run.run, LABEL_JOB: run.job}


def read_record(config_map: Mapping[str, Any]) -> KubeRunRecord:
    """Parse a record. Raises UnreadableRecordError."""
    metadata, data = config_map["metadata"], config_map.get("data") or {}
    try:
        plain = data.get("start")
        raw = plain.encode() if plain else zlib.decompress(base64.b64decode(config_map["binaryData"]["start.z"]))
        record = KubeRunRecord(
            start=StartRun.model_validate_json(raw),
            namespace=data["namespace"],
            term=int(data["term"]),
            progress=Progress.load(data.get("progress") or "{}"),
        )
    except (KeyError, TypeError, ValueError, ValidationError, zlib.error) as error:
        where = f"{metadata['namespace']}/{metadata['name']}"
        raise UnreadableRecordError(f"ConfigMap {where} does not hold a run: {error}") from error
    record.take(config_map)
    return record
