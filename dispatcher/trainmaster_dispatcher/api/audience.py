"""Whom an api process serves: apis for users and for agents can be scaled apart. No framework is imported here."""

from enum import StrEnum


class Audience(StrEnum):
    """Who may call an api. What is at the addresses of the others is not there."""

    ALL = "all"
    USERS = "users"
    AGENTS = "agents"

    def includes(self, other: "Audience") -> bool:
        return self in (Audience.ALL, other)
