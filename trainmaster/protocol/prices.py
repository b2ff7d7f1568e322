"""Price books, as admins write them: the cost of clusters."""

from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, StringConstraints

from trainmaster.protocol.base import Name40, Strict, bounded, example, text_schema
from trainmaster.protocol.json_limits import shown
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
    egress: Money | None = None
    """Price of a GiB that leaves the cluster. Used in choosing a cluster for jobs whose data is elsewhere."""
    exchange_rate: Factor = Decimal(1)
    """Exchange rate: one unit of these prices' currency in the installation's currency."""
    description: Annotated[str, StringConstraints(max_length=1000)] = ""
    """Text for people."""
