"""The callers that an api process serves: apis for users and for agents can be scaled apart. This module imports no framework."""

from enum import StrEnum


class Audience(StrEnum):
    """The callers of an api. Addresses of other audiences do not exist in it."""

    ALL = "all"
    USERS = "users"
    AGENTS = "agents"

    def includes(self, other: "Audience") -> bool:
        return self in (Audience.ALL, other)
