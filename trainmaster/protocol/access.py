"""Answers about rights: what the caller may do, who may do something, and the people and groups that were seen."""

from typing import Literal

from trainmaster.protocol.base import Lenient, Timestamp, example
from trainmaster.protocol.permissions import Permission
from trainmaster.protocol.states import KeyRole


class GrantView(Lenient):
    """A role of somebody, and what it is for."""

    model_config = example(role="submitter", queues=["research/vision"], roleBinding="vision")

    role: KeyRole
    """The role."""
    queues: tuple[str, ...] = ()
    """Queues that it is for, with all below them; empty: the whole installation, or the clusters of an owner."""
    role_binding: str | None = None
    """Role binding that gives it; None: the role of an API key."""


class PermissionAnswer(Lenient):
    """Verdict on a permission of the caller, and the roles that give it."""

    model_config = example(
        permission="jobs.submit",
        queue="research/vision",
        allowed=True,
        why="by the role submitter for research/vision, of the role binding vision",
        grants=[{"role": "submitter", "queues": ["research/vision"], "roleBinding": "vision"}],
    )

    permission: Permission
    """The permission."""
    queue: str | None = None
    """Queue of the question; None: any queue, or the whole installation."""
    allowed: bool
    """True where the caller has it."""
    why: str
    """Reason for the answer."""
    grants: tuple[GrantView, ...] = ()
    """Roles that give it."""


class SubjectView(Lenient):
    """A user, a group or an API key with a permission."""

    model_config = example(kind="group", name="vision-team", role="submitter", queues=["research/vision"])

    kind: Literal["user", "group", "key"]
    """Kind of the subject."""
    name: str
    """Name of the subject."""
    key_id: int | None = None
    """Number of the API key."""
    role: KeyRole
    """Role that gives the permission."""
    queues: tuple[str, ...] = ()
    """Queues that the role is for, with all below them; empty: the whole installation."""
    role_binding: str | None = None
    """Role binding that gives the role; None: the role of an API key."""


class WhoCan(Lenient):
    """All who have a permission."""

    permission: Permission
    """The permission."""
    queue: str | None = None
    """Queue of the question; None: any queue, or the whole installation."""
    subjects: tuple[SubjectView, ...] = ()
    """Those who have it, as far as the caller may know them."""
    others: int = 0
    """Number of further ones, whom the caller may not know."""


class PersonSeen(Lenient):
    """A person who has signed in."""

    model_config = example(
        id=12, name="ana@example.com", issuer="https://sso.example.com", groups=["vision-team"], roles=["submitter"]
    )

    id: int
    """Number of the person, as ``keys`` lists it."""
    name: str
    """Name of the user."""
    issuer: str
    """OpenID Connect issuer of the account."""
    groups: tuple[str, ...] = ()
    """Groups in the token that was last seen."""
    roles: tuple[KeyRole, ...] = ()
    """Roles that role bindings give now."""
    email: str | None = None
    """Address for e-mail that the issuer has verified."""
    last_used_at: Timestamp | None = None
    """Time of the last call, to the minute."""
    revoked_at: Timestamp | None = None
    """Time from which the account is locked out."""


class GroupSeen(Lenient):
    """A group of people who have signed in, or one that a role binding names."""

    model_config = example(name="vision-team", people=3, roleBindings=["vision"])

    name: str
    """Name of the group."""
    people: int = 0
    """Number of people who had it in their last token."""
    role_bindings: tuple[str, ...] = ()
    """Role bindings that name it."""


class Directory(Lenient):
    """Users and groups that were seen."""

    people: tuple[PersonSeen, ...] = ()
    """People who have signed in, by name."""
    groups: tuple[GroupSeen, ...] = ()
    """Groups, by name."""
