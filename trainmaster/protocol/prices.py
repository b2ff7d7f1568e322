"""What clusters cost: price books, as admins write them."""

from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, StringConstraints

from trainmaster.protocol.base import Name40, Strict, bounded
from trainmaster.protocol.quota import parse_line

NANOS = 10**9
"""Money is counted in billionths of the installation's currency, as whole numbers, so that sums are exact."""
_PLACES = 9


def _no_float(value: Any) -> Any:
    """YAML gives 0.1 as a float; its shortest form is what was written."""
    return repr(value) if isinstance(value, float) else value


Money = Annotated[
    Decimal,
    BeforeValidator(_no_float),
    Field(ge=0, le=Decimal(10**9), decimal_places=_PLACES, allow_inf_nan=False),
    PlainSerializer(lambda value: format(value.normalize(), "f"), return_type=str, when_used="json"),
]
"""An amount of the installation's currency, at most nine places behind the point."""
Factor = Annotated[
    Decimal,
    BeforeValidator(_no_float),
    Field(gt=0, le=Decimal(10**6), decimal_places=_PLACES, allow_inf_nan=False),
    PlainSerializer(lambda value: format(value.normalize(), "f"), return_type=str, when_used="json"),
]


def to_nanos(value: Decimal) -> int:
    """The amount in billionths. It has at most nine places, so nothing is rounded."""
    return int(value.scaleb(_PLACES))


def _device(text: str) -> str:
    resource, product, kind = parse_line(text)
    if "/" not in resource:
        raise ValueError(f"{text!r} is no device such as nvidia.com/gpu; cpu and memory have prices of their own")
    if kind:
        raise ValueError(f"a price is not narrowed by the kind of a cluster; write {text.partition('@')[0]!r}")
    return f"{resource}@product={product}" if product else resource


Device = Annotated[str, Field(max_length=200), AfterValidator(_device)]


class PricesSpec(Strict):
    """Prices per hour. What is not named costs nothing; on spot nodes, as much as on others."""

    cpu: Money | None = None
    """Of one core."""
    memory: Money | None = None
    """Of one GiB."""
    devices: Annotated[dict[Device, Money], bounded(200)] = Field(default_factory=dict)
    """Of one device, such as ``nvidia.com/gpu``; ``nvidia.com/gpu@product=H100`` for one product of it."""


class PriceBookSpec(Strict):
    """What clusters that name it charge. A change holds from the moment when it is made."""

    kind: Literal["PriceBook"] = "PriceBook"
    name: Name40
    on_demand: PricesSpec = PricesSpec()
    spot: PricesSpec | None = None
    """On nodes that the provider may take back."""
    egress: Money | None = None
    """Of a GiB that leaves the cluster. It counts in the choice of a cluster for jobs whose data is elsewhere."""
    exchange_rate: Factor = Decimal(1)
    """What one unit of the currency of these prices is in the installation's currency."""
    description: Annotated[str, StringConstraints(max_length=1000)] = ""
