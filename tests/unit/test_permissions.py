"""The table of roles and permissions, as the code and the documentation have it."""

import re
from pathlib import Path

import pytest

from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.protocol.permissions import (
    KIND_READ,
    KIND_WRITE,
    MEANINGS,
    NEED_QUEUES,
    OF_QUEUES,
    ROLE_PERMISSIONS,
    Permission,
    permissions_of,
)
from trainmaster.protocol.resource_kinds import KINDS
from trainmaster.protocol.role_bindings import RoleBindingSpec
from trainmaster.protocol.states import KeyRole
from trainmaster_dispatcher.domain.role_bindings import Grant, rights_of, union_of
from trainmaster_dispatcher.store.keys import Caller

PAGE = Path(__file__).resolve().parents[2] / "docs/reference/roles.md"
READS = re.compile(r"\.(read|list)$|^account$")


def test_each_role_permission_and_kind_is_in_the_table() -> None:
    assert set(ROLE_PERMISSIONS) == set(KeyRole)
    assert set(MEANINGS) == set(Permission)
    assert set(KIND_READ) == set(KIND_WRITE) == set(KINDS)


@pytest.mark.parametrize("role", [KeyRole.AUDITOR, KeyRole.VIEWER])
def test_who_only_reads_has_no_permission_to_change(role: KeyRole) -> None:
    assert all(READS.search(one) for one in ROLE_PERMISSIONS[role])


def test_who_reads_jobs_may_see_what_they_have_cost() -> None:
    """Answers on a job have its cost by the right to see the usage of its queue, which submitters have, too."""
    for role, has in ROLE_PERMISSIONS.items():
        assert Permission.JOBS_READ not in has or Permission.USAGE_READ in has, role
    assert Permission.USAGE_READ in OF_QUEUES


def test_nobody_but_an_admin_gives_rights_everywhere() -> None:
    for role in set(KeyRole) - {KeyRole.ADMIN, KeyRole.AGENT}:
        whole = permissions_of(role, for_queues=False) if role not in NEED_QUEUES else frozenset()
        assert whole.isdisjoint({Permission.ACCESS_WRITE, Permission.KEYS_WRITE, Permission.QUEUES_WRITE}), role


def test_the_page_shows_the_table() -> None:
    lines = PAGE.read_text().splitlines()
    (head,) = [number for number, line in enumerate(lines) if line.startswith("| permission | admin |")]
    roles = [KeyRole(one.strip()) for one in lines[head].strip("|").split("|")[1:]]
    assert set(roles) == set(KeyRole) - {KeyRole.USER, KeyRole.AGENT}
    found: dict[KeyRole, set[Permission]] = {role: set() for role in roles}
    for line in lines[head + 2 :]:
        if not line.startswith("| `"):
            break
        name, *marks = [one.strip() for one in line.strip("|").split("|")]
        for role, mark in zip(roles, marks, strict=True):
            if mark:
                found[role].add(Permission(name.strip("`")))
    assert found == {role: set(ROLE_PERMISSIONS[role]) for role in roles}
    for permission in set(Permission) - {Permission.AGENT}:
        scoped = "yes" if permission in OF_QUEUES else "no"
        assert f"| `{permission}` | {scoped} | {MEANINGS[permission]} |" in lines


# -- the union of bindings


def bound(role: str, *queues: str, name: str = "b", groups: tuple[str, ...] = ("g",)) -> RoleBindingSpec:
    return RoleBindingSpec.model_validate({"name": name, "groups": groups, "role": role, "queues": queues})


def test_roles_add_up_and_the_first_of_them_names_the_person() -> None:
    rights = union_of([bound("viewer", "a"), bound("submitter", "b"), bound("finance"), bound("viewer", "c")])
    assert rights is not None
    assert rights.role is KeyRole.FINANCE
    assert set(rights.grants) == {
        Grant(KeyRole.FINANCE),
        Grant(KeyRole.SUBMITTER, ("b",)),
        Grant(KeyRole.VIEWER, ("a", "c")),
    }
    assert rights.queues == ("b",)
    assert rights.every_queue == ("a", "b", "c")


def test_a_role_for_the_whole_installation_covers_the_same_role_for_some_queues() -> None:
    rights = union_of([bound("auditor", "a"), bound("auditor")])
    assert rights is not None
    assert rights.grants == (Grant(KeyRole.AUDITOR),)


def test_an_owner_with_another_role_has_that_one() -> None:
    owner = RoleBindingSpec.model_validate({"name": "o", "users": ["u"], "role": "owner", "clusters": ["east"]})
    assert rights_of([owner], "u", ()) is not None
    both = rights_of([owner, bound("viewer", "a")], "u", ["g"])
    assert both is not None
    assert (both.role, both.clusters) == (KeyRole.VIEWER, ())
    assert rights_of([owner], "v", ["g"]) is None


# -- callers


@pytest.mark.parametrize("role", sorted(set(KeyRole) - {KeyRole.OWNER, KeyRole.AGENT, KeyRole.ADMIN}))
@pytest.mark.parametrize("permission", list(Permission))
def test_a_caller_with_a_permission_may_use_just_the_queues_of_its_role(role: KeyRole, permission: Permission) -> None:
    caller = Caller(1, "x", role, grants=(Grant(role, ("a",)),))
    if permission not in permissions_of(role, for_queues=True):
        assert not caller.has(permission)
        with pytest.raises(ProblemError) as error:
            caller.with_permission(permission)
        assert error.value.code is Code.FORBIDDEN
        return
    narrowed = caller.with_permission(permission)
    assert [narrowed.may_use(queue) for queue in ("a", "a/x", "ab", "b")] == [True, True, False, False]
    assert caller.has(permission, "a/x")
    assert not caller.has(permission, "ab")


@pytest.mark.parametrize("role", sorted(NEED_QUEUES))
def test_a_role_for_queues_gives_nothing_without_any(role: KeyRole) -> None:
    caller = Caller(1, "x", role)
    assert not any(map(caller.has, Permission))


def test_an_agent_and_an_owner_have_none_of_the_rights_of_people() -> None:
    agent = Caller(1, "x", KeyRole.AGENT, cluster_id=1, cluster="east")
    assert [one for one in Permission if agent.has(one)] == [Permission.AGENT]
    owner = Caller(1, "x", KeyRole.OWNER, clusters=("east",))
    assert not owner.has(Permission.JOBS_READ)
    assert not owner.with_permission(Permission.JOBS_LIST).has_every_queue


def test_an_admin_has_all_but_the_calls_of_agents() -> None:
    admin = Caller(1, "x", KeyRole.ADMIN)
    assert {one for one in Permission if admin.has(one)} == set(Permission) - {Permission.AGENT}
    with pytest.raises(ProblemError):
        admin.with_permission(Permission.AGENT)
