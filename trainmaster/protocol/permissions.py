"""Permissions, and the roles that have them: the one table that the api enforces, OpenAPI shows and the tests execute.

It imports no model: the command line reads it before pydantic is needed.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from trainmaster.protocol.resource_kinds import Kind
from trainmaster.protocol.states import KeyRole


class Permission(StrEnum):
    """A right to a group of calls. Each call needs one."""

    ACCOUNT = "account"
    JOBS_LIST = "jobs.list"
    JOBS_READ = "jobs.read"
    JOBS_SUBMIT = "jobs.submit"
    JOBS_CHANGE = "jobs.change"
    JOBS_MANAGE = "jobs.manage"
    JOBS_CONNECT = "jobs.connect"
    QUEUES_READ = "queues.read"
    QUEUES_WRITE = "queues.write"
    SCHEDULING_WRITE = "scheduling.write"
    POLICIES_READ = "policies.read"
    POLICIES_WRITE = "policies.write"
    CLUSTERS_READ = "clusters.read"
    CLUSTERS_OPERATE = "clusters.operate"
    CLUSTERS_WRITE = "clusters.write"
    PRICES_READ = "prices.read"
    PRICES_WRITE = "prices.write"
    USAGE_READ = "usage.read"
    ACCESS_READ = "access.read"
    ACCESS_WRITE = "access.write"
    KEYS_READ = "keys.read"
    KEYS_REVOKE = "keys.revoke"
    KEYS_WRITE = "keys.write"
    AUDIT_READ = "audit.read"
    SIMULATIONS_READ = "simulations.read"
    SIMULATIONS_RUN = "simulations.run"
    HEALTH_READ = "health.read"
    AGENT = "agent"


MEANINGS: Final[Mapping[Permission, str]] = {
    Permission.ACCOUNT: "See the own account and its rights, sign out, and choose what to be notified of.",
    Permission.JOBS_LIST: "List jobs, and see their states, runs and what they use; an owner of clusters those there.",
    Permission.JOBS_READ: "Read all of jobs, groups, workflows, schedules, sessions and artifacts: output, events, reasons, results.",
    Permission.JOBS_SUBMIT: "Submit jobs, workflows and schedules, upload files, and read the secret that signs a queue's webhooks.",
    Permission.JOBS_CHANGE: "Cancel, suspend, resume, retry and change jobs: the own ones, and others where the queue lets users.",
    Permission.JOBS_MANAGE: "Change the jobs of other users as well, whatever jobActions of the queue says.",
    Permission.JOBS_CONNECT: "Open terminals, ports and sessions of running jobs.",
    Permission.QUEUES_READ: "See queues, priority classes, reservations and datasets.",
    Permission.QUEUES_WRITE: "Make, change and remove queues; with a role for some queues, those below them.",
    Permission.SCHEDULING_WRITE: "Make, change and remove priority classes, reservations and datasets.",
    Permission.POLICIES_READ: "See burst policies and what was spent by them.",
    Permission.POLICIES_WRITE: "Make, change and remove burst policies, and preview them.",
    Permission.CLUSTERS_READ: "See clusters with their contact and capacity.",
    Permission.CLUSTERS_OPERATE: "Cordon and drain clusters, and make and rotate the keys of their agents.",
    Permission.CLUSTERS_WRITE: "Declare, change and remove clusters, and declare their runs lost.",
    Permission.PRICES_READ: "See price books.",
    Permission.PRICES_WRITE: "Make, change and remove price books.",
    Permission.USAGE_READ: "Report usage, cost and shares.",
    Permission.ACCESS_READ: "See role bindings: those of the own queues, and those that name the caller.",
    Permission.ACCESS_WRITE: "Make, change and remove role bindings; with a role for some queues, those for queues of these alone.",
    Permission.KEYS_READ: "List API keys, without their secrets, and people; an owner those of the agents of the own clusters.",
    Permission.KEYS_REVOKE: "Revoke API keys and people; an owner the keys of the agents of the own clusters.",
    Permission.KEYS_WRITE: "Make API keys, and restore people.",
    Permission.AUDIT_READ: "Read the audit and the history of declared objects; an owner what was done to the own clusters.",
    Permission.SIMULATIONS_READ: "See simulations and their reports.",
    Permission.SIMULATIONS_RUN: "Export the workload, and run and remove simulations.",
    Permission.HEALTH_READ: "See the checks of the installation that concern the caller.",
    Permission.AGENT: "Make the calls of a cluster's agent.",
}
"""The meaning of each permission, for the documentation."""

_ALL = frozenset(Permission) - {Permission.AGENT}
_READ = frozenset(
    {
        Permission.ACCOUNT,
        Permission.JOBS_LIST,
        Permission.JOBS_READ,
        Permission.QUEUES_READ,
        Permission.POLICIES_READ,
        Permission.CLUSTERS_READ,
        Permission.PRICES_READ,
        Permission.USAGE_READ,
        Permission.ACCESS_READ,
        Permission.HEALTH_READ,
    }
)
_SUBMIT = _READ | {Permission.JOBS_SUBMIT, Permission.JOBS_CHANGE, Permission.JOBS_CONNECT}

ROLE_PERMISSIONS: Final[Mapping[KeyRole, frozenset[Permission]]] = {
    KeyRole.ADMIN: _ALL,
    KeyRole.OPERATOR: _READ
    | {
        Permission.JOBS_CHANGE,
        Permission.JOBS_MANAGE,
        Permission.CLUSTERS_OPERATE,
        Permission.CLUSTERS_WRITE,
        Permission.KEYS_READ,
        Permission.AUDIT_READ,
        Permission.SIMULATIONS_READ,
        Permission.SIMULATIONS_RUN,
    },
    KeyRole.AUDITOR: _READ | {Permission.KEYS_READ, Permission.AUDIT_READ, Permission.SIMULATIONS_READ},
    KeyRole.FINANCE: frozenset(
        {
            Permission.ACCOUNT,
            Permission.QUEUES_READ,
            Permission.CLUSTERS_READ,
            Permission.POLICIES_READ,
            Permission.PRICES_READ,
            Permission.PRICES_WRITE,
            Permission.USAGE_READ,
            Permission.HEALTH_READ,
        }
    ),
    KeyRole.QUEUE_ADMIN: _SUBMIT
    | {Permission.JOBS_MANAGE, Permission.QUEUES_WRITE, Permission.POLICIES_WRITE, Permission.ACCESS_WRITE},
    KeyRole.SUBMITTER: _SUBMIT,
    KeyRole.USER: _SUBMIT,
    KeyRole.VIEWER: _READ,
    KeyRole.OWNER: frozenset(
        {
            Permission.ACCOUNT,
            Permission.JOBS_LIST,
            Permission.CLUSTERS_READ,
            Permission.CLUSTERS_OPERATE,
            Permission.KEYS_READ,
            Permission.KEYS_REVOKE,
            Permission.AUDIT_READ,
            Permission.HEALTH_READ,
        }
    ),
    KeyRole.AGENT: frozenset({Permission.AGENT}),
}
"""Permissions of each role."""

OF_QUEUES: Final = _SUBMIT | {
    Permission.JOBS_MANAGE,
    Permission.QUEUES_WRITE,
    Permission.POLICIES_WRITE,
    Permission.ACCESS_WRITE,
}
"""Permissions that a role has also where it is for some queues: there alone. The others are for the whole installation."""

NEED_QUEUES: Final = frozenset({KeyRole.QUEUE_ADMIN, KeyRole.SUBMITTER, KeyRole.USER, KeyRole.VIEWER})
"""Roles that are for some queues, with all below these."""
TAKE_QUEUES: Final = NEED_QUEUES | {KeyRole.OPERATOR, KeyRole.AUDITOR, KeyRole.FINANCE}
"""Roles that may be for some queues; those that need none are for the whole installation otherwise."""
OF_PEOPLE: Final = tuple(role for role in KeyRole if role is not KeyRole.AGENT)
"""Roles that can be bound to people."""


def roles_with(permission: Permission) -> str:
    """Return the roles that have a permission, in messages."""
    return ", ".join(role for role, has in ROLE_PERMISSIONS.items() if permission in has and role is not KeyRole.USER)


def permissions_of(role: KeyRole, *, for_queues: bool) -> frozenset[Permission]:
    """Return the permissions of a role, in the whole installation or, with ``for_queues``, in some queues."""
    found = ROLE_PERMISSIONS[role]
    return found & OF_QUEUES if for_queues else found


KIND_READ: Final[Mapping[Kind, Permission]] = {
    "PriorityClass": Permission.QUEUES_READ,
    "Queue": Permission.QUEUES_READ,
    "PriceBook": Permission.PRICES_READ,
    "Cluster": Permission.CLUSTERS_READ,
    "Dataset": Permission.QUEUES_READ,
    "BurstPolicy": Permission.POLICIES_READ,
    "Reservation": Permission.QUEUES_READ,
    "RoleBinding": Permission.ACCESS_READ,
}
"""The permission to see declared objects of a kind."""
KIND_WRITE: Final[Mapping[Kind, Permission]] = {
    "PriorityClass": Permission.SCHEDULING_WRITE,
    "Queue": Permission.QUEUES_WRITE,
    "PriceBook": Permission.PRICES_WRITE,
    "Cluster": Permission.CLUSTERS_WRITE,
    "Dataset": Permission.SCHEDULING_WRITE,
    "BurstPolicy": Permission.POLICIES_WRITE,
    "Reservation": Permission.SCHEDULING_WRITE,
    "RoleBinding": Permission.ACCESS_WRITE,
}
"""The permission to make, change and remove declared objects of a kind."""
