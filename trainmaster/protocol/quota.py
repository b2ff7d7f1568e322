"""Quotas of queues: flavors such as ``nvidia.com/gpu@product=H100``, and the quantities of each."""

from typing import Annotated, Self

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, model_validator

from trainmaster.protocol.base import Strict, text_schema
from trainmaster.protocol.device_parts import parse_counted
from trainmaster.protocol.jobs import ResourceName
from trainmaster.protocol.quantities import Quantity
from trainmaster.protocol.states import ClusterKind

_NAME: TypeAdapter[str] = TypeAdapter(ResourceName)
_ATTRIBUTES = ("product", "kind")


def parse_flavor(text: str) -> tuple[str, str, str]:
    """Return resource, product and kind of a flavor; the last two are empty if it does not name them. Raises ValueError."""
    resource, at, narrowing = text.partition("@")
    _NAME.validate_python(resource)
    found: dict[str, str] = {}
    for part in narrowing.split(",") if at else ():
        name, equals, value = part.partition("=")
        if name not in _ATTRIBUTES or not equals or not value:
            raise ValueError(
                f"must be a flavor, such as cpu, cpu@kind=public or nvidia.com/gpu@product=H100; got {text!r}"
            )
        if name in found:
            raise ValueError(f"{name} is given twice in {text!r}")
        found[name] = value
    if "kind" in found and found["kind"] not in set(ClusterKind):
        raise ValueError(f"{found['kind']!r} is no kind of cluster; there are {', '.join(ClusterKind)}")
    if "product" in found and "/" not in resource:
        raise ValueError(f"product narrows devices such as nvidia.com/gpu; {resource} has none")
    return resource, found.get("product", ""), found.get("kind", "")


def canonical_flavor(text: str) -> str:
    """Return the name of a flavor with its attributes in canonical order. Raises ValueError."""
    resource, product, kind = parse_flavor(text)
    parts = [f"product={product}"] * bool(product) + [f"kind={kind}"] * bool(kind)
    return f"{resource}@{','.join(parts)}" if parts else resource


_KIND = f"kind=({'|'.join(ClusterKind)})"
_PRODUCT = "product=[^,]+"
_DEVICE = "[a-zA-Z0-9._-]*/[a-zA-Z0-9./_-]*"
FlavorName = Annotated[
    str,
    Field(max_length=200),
    AfterValidator(canonical_flavor),
    text_schema(
        f"^([a-zA-Z0-9./_-]+(@{_KIND})?|{_DEVICE}@({_PRODUCT}(,{_KIND})?|{_KIND},{_PRODUCT}))$",
        200,
        "cpu",
        "cpu@kind=public",
        "nvidia.com/gpu@product=H100",
    ),
]
"""The name of a flavor, with its attributes in canonical order."""


class QuotaSpec(Strict):
    """Quota of a queue and all below it for one flavor. Quantities that are left out do not restrict."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1})

    guaranteed: Quantity | None = None
    """Amount that the queue gets on demand, even by preemption of borrowers. More than the clusters have is a warning."""
    limit: Quantity | None = None
    """The most that the queue uses at a time."""
    borrowing_limit: Quantity | None = None
    """The most usage beyond the guarantee."""
    lending_limit: Quantity | None = None
    """The most of the unused guarantee that others may borrow; by default all of it."""
    weight: Annotated[float, Field(ge=0.000_001, le=1_000_000)] | None = None
    """Weight for this flavor, instead of the queue's."""

    def amount(self, name: str, resource: str) -> int | None:
        """Return the quantity ``name`` in the resource's unit, of a device in thousandths; None if it was not given."""
        text = getattr(self, name)
        return None if text is None else parse_counted(resource, text)

    def check(self, resource: str) -> Self:
        """Check that the quantities are consistent. Raises ValueError."""
        guaranteed = self.amount("guaranteed", resource) or 0
        limit, lending = self.amount("limit", resource), self.amount("lending_limit", resource)
        self.amount("borrowing_limit", resource)
        if limit is not None and guaranteed > limit:
            raise ValueError(f"guaranteed {self.guaranteed} is more than limit {self.limit}")
        if lending is not None and lending > guaranteed:
            raise ValueError(f"lendingLimit {self.lending_limit} is more than guaranteed ({self.guaranteed or 0})")
        return self

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not self.model_fields_set:
            raise ValueError("give guaranteed, limit, borrowingLimit, lendingLimit or weight")
        return self
