"""Price books, as admins write them: the cost of clusters."""

from decimal import Decimal
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    StringConstraints,
    field_validator,
    model_validator,
)

from trainmaster.protocol.base import Name40, Strict, bounded, example, text_schema
from trainmaster.protocol.jobs import ResourceName
from trainmaster.protocol.json_limits import shown
from trainmaster.protocol.quantities import Quantity, parse_resources
from trainmaster.protocol.quota import parse_flavor

NANOS = 10**9
"""Units per unit of currency: money is counted in whole billionths, so that sums are exact."""
_PLACES = 9
_DECIMAL = f"^[0-9]+([.][0-9]{{1,{_PLACES}}})?$"


def _no_float(value: Any) -> Any:
    """Return a float as its shortest decimal text: YAML reads 0.1 as a float."""
    if isinstance(value, bool):
        raise ValueError(f"must be a number, not {shown(value)}")  # noqa: TRY004 - pydantic reports these alone
    return repr(value) if isinstance(value, float) else value


Money = Annotated[
    Decimal,
    BeforeValidator(_no_float),
    Field(ge=0, le=Decimal(10**9), decimal_places=_PLACES, allow_inf_nan=False),
    # Without the sign that a zero may have.
    PlainSerializer(lambda value: format(abs(value).normalize(), "f"), return_type=str, when_used="json"),
    text_schema(_DECIMAL, 40, "12.5", also={"type": "number", "minimum": 0, "maximum": 10**9}),
]
"""An amount of the installation's currency, with at most nine decimal places."""
Factor = Annotated[
    Decimal,
    BeforeValidator(_no_float),
    Field(gt=0, le=Decimal(10**6), decimal_places=_PLACES, allow_inf_nan=False),
    PlainSerializer(lambda value: format(value.normalize(), "f"), return_type=str, when_used="json"),
    text_schema(_DECIMAL, 40, "1.07", also={"type": "number", "exclusiveMinimum": 0, "maximum": 10**6}),
]
PriceFactor = Annotated[
    Decimal,
    BeforeValidator(_no_float),
    Field(ge=0, le=Decimal(1000), decimal_places=_PLACES, allow_inf_nan=False),
    # Without the sign that a zero may have.
    PlainSerializer(lambda value: format(abs(value).normalize(), "f"), return_type=str, when_used="json"),
    text_schema(_DECIMAL, 40, "1.5", also={"type": "number", "minimum": 0, "maximum": 1000}),
]
"""What the cost of a run is multiplied by for its charge; 0: nothing is charged."""


def to_nanos(value: Decimal) -> int:
    """Return the amount in billionths. It has at most nine decimal places, so nothing is rounded."""
    return int(value.scaleb(_PLACES))


def _device(text: str) -> str:
    resource, product, kind = parse_flavor(text)
    if "/" not in resource:
        raise ValueError(f"{text!r} is no device such as nvidia.com/gpu; cpu and memory have prices of their own")
    if kind:
        raise ValueError(f"a price is not narrowed by the kind of a cluster; write {text.partition('@')[0]!r}")
    return f"{resource}@product={product}" if product else resource


Device = Annotated[
    str,
    Field(max_length=200),
    AfterValidator(_device),
    text_schema(
        "^[a-zA-Z0-9._-]*/[a-zA-Z0-9./_-]*(@product=[^,]+)?$", 200, "nvidia.com/gpu", "nvidia.com/gpu@product=H100"
    ),
]


class PricesSpec(Strict):
    """Prices per hour. A resource that is not named costs nothing; on spot nodes, the ordinary price."""

    cpu: Money | None = None
    """Price of one core."""
    memory: Money | None = None
    """Price of one GiB of memory."""
    devices: Annotated[dict[Device, Money], bounded(200)] = Field(default_factory=dict)
    """Price of one device, such as ``nvidia.com/gpu``; ``nvidia.com/gpu@product=H100`` for one product of it."""


InstanceType = Annotated[str, StringConstraints(min_length=1, max_length=63)]


class InstancePricesSpec(Strict):
    """Price of whole nodes of an instance type, which is divided among what they have in proportion to the prices of the book."""

    on_demand: Money | None = None
    """Price of an ordinary node for an hour."""
    spot: Money | None = None
    """Price of a node that the provider may take back for an hour."""
    resources: Annotated[dict[ResourceName, Quantity], Field(min_length=1), bounded(50)]
    """Resources that a node offers to pods, such as ``cpu``, ``memory`` and ``nvidia.com/gpu``."""

    @field_validator("resources")
    @classmethod
    def _parse(cls, value: dict[str, str]) -> dict[str, str]:
        if not parse_resources(value):
            raise ValueError("at least one amount has to be above 0")
        return value

    @model_validator(mode="after")
    def _has_a_price(self) -> Self:
        if self.on_demand is None and self.spot is None:
            raise ValueError("give onDemand, spot or both")
        return self


class PriceBookSpec(Strict):
    """Prices of the clusters that name the book. A change applies from the time it is made."""

    model_config = example(
        kind="PriceBook",
        name="cloud",
        onDemand={"cpu": "0.04", "memory": "0.005", "devices": {"nvidia.com/gpu": "2.5"}},
        spot={"devices": {"nvidia.com/gpu": "0.9"}},
        egress="0.09",
    )

    kind: Literal["PriceBook"] = "PriceBook"
    """Kind of this document."""
    name: Name40
    """Name of the price book."""
    on_demand: PricesSpec = PricesSpec()
    """Prices on ordinary nodes."""
    spot: PricesSpec | None = None
    """Prices on nodes that the provider may take back."""
    instances: Annotated[dict[InstanceType, InstancePricesSpec], bounded(1000)] = Field(default_factory=dict)
    """Prices of whole nodes by instance type, the node label ``node.kubernetes.io/instance-type``. They come before other prices."""
    egress: Money | None = None
    """Price of a GiB that leaves the cluster. Used in choosing a cluster for jobs whose data is elsewhere."""
    exchange_rate: Factor = Decimal(1)
    """Exchange rate: one unit of these prices' currency in the installation's currency."""
    description: Annotated[str, StringConstraints(max_length=1000)] = ""
    """Text for people."""

    @model_validator(mode="after")
    def _can_divide(self) -> Self:
        """Check that the price of a whole node can be divided among its resources."""
        named = {"cpu": self.on_demand.cpu, "memory": self.on_demand.memory}
        named |= {parse_flavor(name)[0]: price for name, price in self.on_demand.devices.items() if price}
        for instance, prices in self.instances.items():
            if not any(named.get(name) for name in parse_resources(prices.resources)):
                raise ValueError(
                    f"instances.{instance}: the price of a node is divided in proportion to the prices in onDemand, and none of"
                    f" {', '.join(sorted(prices.resources))} has one there"
                )
        return self
