"""Managed fields and server-side apply."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from trainmaster_dispatcher.domain import managed_fields as managed
from trainmaster_dispatcher.domain.declared_fields import leaves

NOW, LATER = "2026-11-28T08:00:00Z", "2026-11-28T09:00:00Z"
VALUES = st.recursive(
    st.integers(0, 3),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=3),
    max_leaves=6,
)
OBJECTS = st.dictionaries(st.sampled_from("xyz"), VALUES, max_size=3)


def apply(before: Any, wanted: Any, managers: managed.Managers, name: str, *, force: bool = False) -> Any:
    return managed.applied(before, wanted, managers, name, NOW, is_forced=force)


def test_a_field_of_another_manager_conflicts_unless_it_is_equal() -> None:
    first = apply({}, {"spec": {"weight": 1, "state": "open"}}, {}, "one")
    equal = apply(first.value, {"spec": {"weight": 1}}, first.managers, "two")
    assert set(equal.managers) == {"Apply:one", "Apply:two"}
    found = apply(equal.value, {"spec": {"weight": 2}}, equal.managers, "two")
    assert found == [managed.FieldConflict(("spec", "weight"), ("one",))]
    assert managed.conflict_message(found) == "Apply failed with 1 conflict: conflict with 'one': .spec.weight"
    forced = apply(equal.value, {"spec": {"weight": 2}}, equal.managers, "two", force=True)
    assert forced.value == {"spec": {"weight": 2, "state": "open"}}
    assert forced.managers["Apply:one"].fields == {("spec", "state")}


def test_what_a_manager_states_no_more_is_given_up_unless_another_has_it() -> None:
    one = apply({}, {"spec": {"a": 1, "b": 2}}, {}, "one")
    two = apply(one.value, {"spec": {"b": 2}}, one.managers, "two")
    left = apply(two.value, {"spec": {}}, two.managers, "one")
    assert left.value == {"spec": {"b": 2}}
    assert left.managers["Apply:one"].fields == frozenset()


def test_an_update_takes_the_fields_that_it_changes() -> None:
    one = apply({}, {"spec": {"a": 1, "b": 2}}, {}, "one")
    after = {"spec": {"a": 5, "b": 2}}
    changed = managed.updated(one.value, after, one.managers, "editor", LATER)
    assert changed.managers["Apply:one"].fields == {("spec", "b")}
    assert changed.managers["Update:editor"] == managed.Managed(frozenset({("spec", "a")}), LATER)
    same = managed.updated(after, after, changed.managers, "editor", "later still")
    assert same.managers == changed.managers


def test_an_equal_apply_changes_nothing_not_even_a_time() -> None:
    one = apply({}, {"spec": {"a": 1}}, {}, "one")
    again = managed.applied(one.value, {"spec": {"a": 1}}, one.managers, "one", LATER, is_forced=False)
    assert isinstance(again, managed.ManagedObject)
    assert (again.value, again.managers) == (one.value, one.managers)


@given(OBJECTS, OBJECTS)
def test_an_apply_by_force_sets_what_it_states_and_is_idempotent(before: Any, wanted: Any) -> None:
    done = apply(before, wanted, {}, "one", force=True)
    stated = {path: value for path, value in leaves(wanted).items() if value != {}}
    assert stated.items() <= leaves(done.value).items()
    assert apply(done.value, wanted, done.managers, "one") == done


@given(OBJECTS)
def test_managers_are_read_as_they_are_written(value: Any) -> None:
    made = managed.updated({}, value, {}, "kubectl", NOW)
    written = managed.write(made.managers, "trainmaster.dev/v1")
    assert managed.read(written) == {key: one for key, one in made.managers.items() if one.fields}
    assert all(one["fieldsType"] == "FieldsV1" and one["time"] == NOW for one in written)


def test_entries_that_mean_nothing_are_left_out() -> None:
    assert managed.read(None) == {}
    assert managed.read([{"manager": "a", "operation": "Other", "fieldsV1": {}}, {"operation": "Apply"}]) == {}
    assert managed.name_of("", "kubectl/v1.36 (linux)") == "kubectl"
    assert managed.name_of("", "") == "unknown"
    assert len(managed.name_of("x" * 500, "")) == 128
