"""A reservation of more nodes than any of its clusters has is noticed."""

from typing import Any

import pytest

from trainmaster.protocol.agent import CapacityReport
from trainmaster.protocol.tenants import ReservationSpec
from trainmaster_dispatcher.domain.reserved_nodes import shortage


def report(*groups: tuple[int, dict[str, str]], pool: int = 0) -> CapacityReport:
    listed = [
        {"name": f"n{number}", "count": count, "free": {"cpu": 1000}, "labels": labels}
        for number, (count, labels) in enumerate(groups)
    ]
    pools = [{"name": "p", "count": pool, "most": pool + 2, "free": {"cpu": 1000}}] if pool else []
    return CapacityReport.model_validate({"groups": listed, "pools": pools, "runtime": "r", "scheduler": "s"})


REPORTS = {"a": report((3, {"gpu": "h100"}), (2, {})), "b": report((2, {"gpu": "h100"}), pool=2)}


def reservation(nodes: int, **fields: Any) -> ReservationSpec:
    window = {"start": "2036-01-01T00:00:00Z", "end": "2036-01-02T00:00:00Z"}
    return ReservationSpec.model_validate({"name": "r", "queue": "q", "nodes": nodes, **window, **fields})


@pytest.mark.parametrize(
    ("nodes", "fields", "said"),
    [
        (5, {}, ""),
        (6, {}, "reserves 6 nodes on each of its clusters, and none of them has as many: the most has a, 5"),
        (4, {"clusters": ["b"]}, ""),
        (5, {"clusters": ["b"]}, "the most has b, 4"),
        (3, {"nodeSelector": {"gpu": "h100"}}, ""),
        (4, {"nodeSelector": {"gpu": "h100"}}, "4 nodes with the labels of its nodeSelector"),
        (1, {"nodeSelector": {"gpu": "a100"}}, "they have none"),
        (1000, {"clusters": ["silent"]}, ""),
        (5, {"clusters": ["b", "silent"]}, "the most has b, 4"),
    ],
)
def test_what_no_cluster_has_is_said(nodes: int, fields: dict[str, Any], said: str) -> None:
    found = shortage(reservation(nodes, **fields), REPORTS)
    assert (said in found) if said else not found


def test_nothing_is_said_before_any_cluster_has_reported() -> None:
    assert shortage(reservation(1000), {}) == ""
