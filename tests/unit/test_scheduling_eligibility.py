"""Eligible node groups: the index finds the groups that the rule of the cluster model allows, with few evaluations."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.unit.building import StateBuilder, gang, nodes, role, simple
from trainmaster.protocol.agent import NodeGroup, Taint
from trainmaster.protocol.jobs import AffinityTerm, JobSpec, Toleration
from trainmaster_dispatcher.domain.shapes import RoleShape
from trainmaster_dispatcher.scheduling.packing.eligibility import LabelIndex, allows

KEYS, VALUES = st.sampled_from(("zone", "product", "generation")), st.sampled_from(("a", "b", "1", "7", ""))
TAINTS = st.builds(
    Taint, key=KEYS, value=VALUES, effect=st.sampled_from(("NoSchedule", "PreferNoSchedule", "NoExecute"))
)


def _term(key: str, operator: str, values: list[str], number: int) -> AffinityTerm:
    by_operator: dict[str, tuple[str, ...]] = {
        "Exists": (),
        "DoesNotExist": (),
        "Gt": (str(number),),
        "Lt": (str(number),),
    }
    wanted: Any = operator
    return AffinityTerm(key=key, operator=wanted, values=by_operator.get(operator, tuple(values)))


TERMS = st.builds(
    _term,
    KEYS,
    st.sampled_from(("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")),
    st.lists(VALUES, min_size=1, max_size=3),
    st.integers(-2, 8),
)
TOLERATIONS = st.builds(
    Toleration,
    key=st.one_of(st.just(""), KEYS),
    operator=st.sampled_from(("Exists", "Equal")),
    value=VALUES,
    effect=st.sampled_from(("", "NoSchedule", "NoExecute")),
)
GROUPS = st.lists(
    st.tuples(st.dictionaries(KEYS, VALUES, max_size=3), st.lists(TAINTS, max_size=2).map(tuple)), max_size=8
).map(lambda found: [nodes(1, f"g{at}", labels=labels, taints=taints) for at, (labels, taints) in enumerate(found)])
ROLES = st.builds(
    lambda selector, affinity, tolerations: role(
        node_selector=tuple(sorted(selector.items())), affinity=tuple(affinity), tolerations=tuple(tolerations)
    ),
    st.dictionaries(KEYS, VALUES, max_size=2),
    st.lists(TERMS, max_size=3),
    st.lists(TOLERATIONS, max_size=2),
)


@given(GROUPS, st.lists(ROLES, min_size=1, max_size=3))
def test_the_index_finds_what_the_rule_allows(groups: list[NodeGroup], roles: list[RoleShape]) -> None:
    index = LabelIndex({group.name: group for group in groups})
    for one in roles:
        assert index.allowing(one) == tuple(group.name for group in groups if allows(one, group))


def test_terms_are_evaluated_once_for_each_value_of_their_label(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluated: Counter[str] = Counter()
    whole = AffinityTerm.admits

    def admits(self: AffinityTerm, value: str | None) -> bool:
        evaluated[self.key] += 1
        return whole(self, value)

    monkeypatch.setattr(AffinityTerm, "admits", admits)
    zones, terms, shapes = 5, 95, 20
    builder = StateBuilder().cluster("c", *[nodes(1, f"g{at}", labels={"zone": f"z{at % zones}"}) for at in range(300)])
    for number in range(shapes):
        hidden = (AffinityTerm(key=f"k{number}", operator="NotIn", values=("x",)),)
        mean = hidden + tuple(
            AffinityTerm(key="zone", operator="NotIn", values=(f"n{number}-{at}",)) for at in range(terms)
        )
        builder.jobs(1, f"mean{number}-", gang(role(affinity=mean)))
    builder.job("quiet", simple())
    assert len(builder.cycle().plan.starts) == shapes + 1
    assert evaluated["zone"] <= shapes * terms * zones
    assert sum(evaluated.values()) <= shapes * (terms * zones + 1)


def _spec(roles: int, terms: int, values: int) -> dict[str, Any]:
    term = {"key": "zone", "operator": "NotIn", "values": [f"v{at}" for at in range(values)]}
    template = {"command": ["true"], "nodeAffinity": [term] * terms}
    return {"name": "j", "queue": "q", "roles": [{"name": f"r{at}", "template": template} for at in range(roles)]}


def test_terms_and_their_values_are_bounded_over_all_roles_of_a_job() -> None:
    JobSpec.model_validate(_spec(4, 25, 20))
    with pytest.raises(
        ValidationError, match="the roles have 101 terms of nodeAffinity together, at most 100 are allowed"
    ):
        JobSpec.model_validate(_spec(1, 100, 1) | {"roles": _spec(1, 100, 1)["roles"] + _spec(2, 1, 1)["roles"][1:]})
    with pytest.raises(
        ValidationError, match="nodeAffinity of the roles has 2001 values together, at most 2000 are allowed"
    ):
        JobSpec.model_validate(_spec(3, 1, 667))
    JobSpec.model_validate(_spec(2, 1, 1000))
