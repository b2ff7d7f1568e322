"""What admins say of a queue's share of a resource: a line such as ``nvidia.com/gpu@product=H100``, and how much of it."""

from typing import Annotated, Self

from pydantic import AfterValidator, Field, TypeAdapter, model_validator

from trainmaster.protocol.base import Strict
from trainmaster.protocol.jobs import ResourceName
from trainmaster.protocol.quantities import Quantity, parse_quantity
from trainmaster.protocol.states import ClusterKind

_NAME: TypeAdapter[str] = TypeAdapter(ResourceName)
_ATTRIBUTES = ("product", "kind")


def parse_line(text: str) -> tuple[str, str, str]:
    """Resource, product and kind of a line; the last two are empty where it is not narrowed by them. Raises ValueError."""
    resource, at, narrowing = text.partition("@")
    _NAME.validate_python(resource)
    found: dict[str, str] = {}
    for part in narrowing.split(",") if at else ():
        name, equals, value = part.partition("=")
        if name not in _ATTRIBUTES or not equals or not value:
            raise ValueError(f"a line is narrowed as in cpu@kind=public or nvidia.com/gpu@product=H100; got {text!r}")
        if name in found:
            raise ValueError(f"{name} is there twice in {text!r}")
        found[name] = value
    if "kind" in found and found["kind"] not in set(ClusterKind):
        raise ValueError(f"{found['kind']!r} is no kind of cluster; there are {', '.join(ClusterKind)}")
    if "product" in found and "/" not in resource:
        raise ValueError(f"product narrows devices such as nvidia.com/gpu; {resource} has none")
    return resource, found.get("product", ""), found.get("kind", "")


def _canonical(text: str) -> str:
    resource, product, kind = parse_line(text)
    parts = [f"product={product}"] * bool(product) + [f"kind={kind}"] * bool(kind)
    return f"{resource}@{','.join(parts)}" if parts else resource


LineName = Annotated[str, Field(max_length=200), AfterValidator(_canonical)]
"""The name of a line, with its attributes in one order."""


class QuotaSpec(Strict):
    """What a queue and all below it may have of a line. What is left out does not restrict."""

    guaranteed: Quantity | None = None
    """What the queue has when it asks, even if others must give it back. More than the clusters have is a warning."""
    limit: Quantity | None = None
    """The most that is used at a time."""
    borrowing_limit: Quantity | None = None
    """The most beyond what is guaranteed."""
    lending_limit: Quantity | None = None
    """How much of what is guaranteed others may use while this queue does not; all of it when nothing is said."""
    weight: Annotated[float, Field(ge=0.000_001, le=1_000_000)] | None = None
    """In place of the queue's weight, for this line."""

    def amount(self, name: str, resource: str) -> int | None:
        """One of the quantities in the unit of the resource; None where it was not given."""
        text = getattr(self, name)
        return None if text is None else parse_quantity(resource, text)

    def check(self, resource: str) -> Self:
        """Raises ValueError when the quantities do not go together."""
        guaranteed = self.amount("guaranteed", resource) or 0
        limit, lending = self.amount("limit", resource), self.amount("lending_limit", resource)
        self.amount("borrowing_limit", resource)
        if limit is not None and guaranteed > limit:
            raise ValueError(f"guaranteed {self.guaranteed} is more than limit {self.limit}")
        if lending is not None and lending > guaranteed:
            raise ValueError(f"lendingLimit {self.lending_limit} is more than is guaranteed ({self.guaranteed or 0})")
        return self

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not self.model_fields_set:
            raise ValueError("give guaranteed, limit, borrowingLimit, lendingLimit or weight")
        return self
