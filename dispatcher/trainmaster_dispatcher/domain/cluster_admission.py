"""The refusal by a cluster of what a job's members run, as its agent reported it when the job was submitted."""

import hashlib
from dataclasses import dataclass

import orjson

from trainmaster.protocol.agent import ReportedAdmission


@dataclass(frozen=True, slots=True)
class ClusterRefusal:
    """A refusal, valid while the cluster's agent checks by the policy with this fingerprint."""

    cluster: str
    fingerprint: str
    fields: tuple[str, ...]
    """The paths of the first few refused fields."""


def fingerprint_of(admission: ReportedAdmission | None) -> str:
    """Return a short text that differs if the agent's policy differs; empty if it checks nothing."""
    if admission is None:
        return ""
    whole = orjson.dumps(admission.model_dump(mode="json", by_alias=True), option=orjson.OPT_SORT_KEYS)
    return hashlib.blake2b(whole, digest_size=6).hexdigest()
