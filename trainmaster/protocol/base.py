"""Base models: strict for what people write, lenient for what agents say.

People's mistakes are caught (unknown fields are errors with their path); agents of a newer or older version may send
fields that this side does not know, so these are ignored.
"""

from datetime import datetime
from typing import Annotated, Any

from pydantic import AfterValidator, AwareDatetime, BaseModel, BeforeValidator, ConfigDict, PlainSerializer
from pydantic.alias_generators import to_camel


def _format_time(value: datetime) -> str:
    return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")


Timestamp = Annotated[AwareDatetime, PlainSerializer(_format_time, return_type=str, when_used="json")]
"""A moment, RFC 3339 in UTC with milliseconds when written as JSON."""


class Strict(BaseModel):
    """A model of what people write: camelCase on the wire, frozen, unknown fields refused."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        use_enum_values=False,
        allow_inf_nan=False,
    )

    def to_wire(self) -> dict[str, Any]:
        """The JSON form without defaults, so that stored specs stay small and keep their meaning across versions."""
        return self.model_dump(mode="json", by_alias=True, exclude_defaults=True)


class Lenient(BaseModel):
    """A model of what processes say to each other: unknown fields are ignored, so that versions may differ."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True, allow_inf_nan=False
    )


def bounded(most: int) -> BeforeValidator:
    """Return a validator that refuses a list or mapping of more than ``most`` entries before any of them is looked at."""

    def check(value: object) -> object:
        if isinstance(value, list | tuple | dict) and len(value) > most:
            raise ValueError(f"has {len(value)} entries, at most {most} are allowed")
        return value

    return BeforeValidator(check)


def _name_check(limit: int, what: str) -> AfterValidator:
    def check(value: str) -> str:
        if not value or len(value) > limit:
            raise ValueError(f"{what} must have 1 to {limit} characters, this one has {len(value)}")
        body = value.replace("-", "a")
        if not (body.isascii() and body.isalnum() and body == body.lower()) or value[0] == "-" or value[-1] == "-":
            raise ValueError(f"{what} may hold a-z, 0-9 and '-', and neither begins nor ends with '-'; got {value!r}")
        return value

    return AfterValidator(check)


Name24 = Annotated[str, _name_check(24, "a name")]
Name12 = Annotated[str, _name_check(12, "a role name")]
Name40 = Annotated[str, _name_check(40, "a name")]


def _path_check(value: str) -> str:
    parts = value.split("/") if len(value) <= 200 else []
    if not value or not 1 <= len(parts) <= 10:
        raise ValueError("a queue path has 1 to 10 parts joined by '/' and at most 200 characters")
    for part in parts:
        body = part.replace("-", "a").replace("_", "a")
        if not part or not (body.isascii() and body.isalnum() and body == body.lower()):
            raise ValueError(f"each part of a queue path may hold a-z, 0-9, '-' and '_'; got {part!r} in {value!r}")
    return value


QueuePath = Annotated[str, AfterValidator(_path_check)]
