"""That a cluster refuses what a job's members run, as its agent told when the job was submitted."""

import hashlib
from dataclasses import dataclass

import orjson

from trainmaster.protocol.agent import ReportedAdmission


@dataclass(frozen=True, slots=True)
class ClusterRefusal:
    """Holds while the cluster's agent checks by the policy with this fingerprint."""

    cluster: str
    fingerprint: str
    fields: tuple[str, ...]
    """What it refuses, by path: the first few."""


def fingerprint_of(admission: ReportedAdmission | None) -> str:
    """A short text that differs where what an agent checks by differs; empty where it checks nothing."""
    if admission is None:
        return ""
    whole = orjson.dumps(admission.model_dump(mode="json", by_alias=True), option=orjson.OPT_SORT_KEYS)
    return hashlib.blake2b(whole, digest_size=6).hexdigest()
