"""Role bindings: the rights of people who sign in with an account of the installation's OpenID Connect issuer."""

from typing import Annotated, Literal, Self

from pydantic import StringConstraints, model_validator

from trainmaster.protocol.base import Name40, QueuePath, Strict, bounded, example
from trainmaster.protocol.permissions import NEED_QUEUES, TAKE_QUEUES
from trainmaster.protocol.states import KeyRole

LONGEST_USER_NAME = 100
LONGEST_GROUP_NAME = 300
UserName = Annotated[str, StringConstraints(min_length=1, max_length=LONGEST_USER_NAME)]
GroupName = Annotated[str, StringConstraints(min_length=1, max_length=LONGEST_GROUP_NAME)]


class RoleBindingSpec(Strict):
    """A role for people who sign in through OpenID Connect. A person has the rights of all bindings that name the user or a group."""

    model_config = example(
        kind="RoleBinding", name="vision", groups=["vision-team"], role="submitter", queues=["research/vision"]
    )

    kind: Literal["RoleBinding"] = "RoleBinding"
    """Kind of this document."""
    name: Name40
    """Name of the role binding."""
    users: Annotated[tuple[UserName, ...], bounded(1000)] = ()
    """Names of users, exactly as the tokens of the issuer have them."""
    groups: Annotated[tuple[GroupName, ...], bounded(1000)] = ()
    """Names of groups, exactly as the tokens of the issuer have them."""
    role: Literal[
        KeyRole.ADMIN,
        KeyRole.OPERATOR,
        KeyRole.AUDITOR,
        KeyRole.FINANCE,
        KeyRole.QUEUE_ADMIN,
        KeyRole.SUBMITTER,
        KeyRole.USER,
        KeyRole.VIEWER,
        KeyRole.OWNER,
    ]
    """Role of these people. ``user`` is the older name of ``submitter``."""
    queues: Annotated[tuple[QueuePath, ...], bounded(1000)] = ()
    """Queues, with all below them, for which these people have the role. The roles queue-admin, submitter and viewer need at least
    one; operator, auditor and finance are for the whole installation without any; admin and owner have none.
    """
    clusters: Annotated[tuple[Name40, ...], bounded(1000)] = ()
    """Clusters that these people may look after; only for the role owner, which needs at least one."""
    description: Annotated[str, StringConstraints(max_length=1000)] = ""
    """Text for people."""

    @model_validator(mode="after")
    def _binds_somebody_to_something(self) -> Self:
        if not self.users and not self.groups:
            raise ValueError("needs at least one name in users or in groups")
        if self.role in NEED_QUEUES and not self.queues:
            raise ValueError(f"the role {self.role} needs at least one name in queues")
        if self.role not in TAKE_QUEUES and self.queues:
            raise ValueError(f"the role {self.role} is for no queues, so queues has to be empty")
        if self.role is KeyRole.OWNER and not self.clusters:
            raise ValueError(f"the role {self.role} needs at least one name in clusters")
        if self.role is not KeyRole.OWNER and self.clusters:
            raise ValueError(f"only the role {KeyRole.OWNER} has clusters, this binding is for {self.role}")
        return self
