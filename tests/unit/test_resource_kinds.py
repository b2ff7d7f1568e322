"""The kinds of declared objects: what both sides say of a kind fits its model."""

import pytest

from trainmaster.protocol.base import Strict
from trainmaster.protocol.resource_kinds import KINDS, Kind, ResourceKind
from trainmaster_dispatcher.services import declared_kinds

each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def fields(kind: ResourceKind[Strict]) -> dict[str, str]:
    """Return the names of a kind's fields, by how they are written."""
    return {field.alias or name: name for name, field in kind.spec.model_fields.items()}


@each_kind
def test_the_model_has_the_word_of_the_kind_and_its_key(kind: ResourceKind[Strict]) -> None:
    assert kind.spec.model_fields["kind"].default == kind.kind
    assert kind.spec.model_fields[kind.key].is_required()


@each_kind
def test_columns_are_fields_of_the_model(kind: ResourceKind[Strict]) -> None:
    assert {column.field for column in kind.columns} <= fields(kind).keys()


def test_the_dispatcher_has_each_kind() -> None:
    known: dict[Kind, object] = {one.kind.kind: one.kind for one in declared_kinds.KINDS}
    assert known == KINDS, "KINDS of services/declared_kinds.py has each kind"


def test_a_list_has_its_objects_where_clients_look() -> None:
    for one in declared_kinds.KINDS:
        assert (one.list_view is None) == (not one.kind.lists)
        if one.list_view is not None:
            assert [field.alias for field in one.list_view.model_fields.values()] == [one.kind.member]
