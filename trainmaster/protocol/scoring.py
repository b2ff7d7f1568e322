"""How the best of the clusters that fit is found: profiles, which are weights of scores."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from trainmaster.protocol.base import Strict

Weight = Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False)]


class ProfileName(StrEnum):
    """Profiles that are always there."""

    BALANCED = "balanced"
    CHEAPEST = "cheapest"
    FASTEST = "fastest"


class WeightsSpec(Strict):
    """A profile of one's own: how much each score counts. What is not named counts nothing."""

    kind: Weight = 0.0
    """Private clusters before edge and public ones."""
    packing: Weight = 0.0
    """Clusters that it leaves fullest."""
    money: Weight = 0.0
    """Clusters where it costs least."""
    wait: Weight = 0.0
    """Clusters where it starts soonest."""
    data: Weight = 0.0
    """Clusters where most of its data is."""
    reliability: Weight = 0.0
    """Clusters that have not returned or lost runs lately."""
    affinity: Weight = 0.0
    """Clusters that the job prefers."""
    topology: Weight = 0.0
    """Clusters where it is spread over the fewest domains of the level that it prefers."""
    spread: Weight = 0.0
    """Clusters where few of the runs of its queue are."""
    sparing: Weight = 0.0
    """Clusters where it takes devices of a common product, if it may have any."""

    @model_validator(mode="after")
    def _weighs_something(self) -> Self:
        if not any(self.model_dump().values()):
            raise ValueError(f"give at least one of {', '.join(type(self).model_fields)} a weight above 0")
        return self


def _named_or_weighed(value: Any) -> Any:
    if (isinstance(value, str) and value not in set(ProfileName)) or not isinstance(value, str | Mapping | WeightsSpec):
        raise ValueError(f"a profile is one of {', '.join(ProfileName)}, or weights such as {{money: 5, packing: 1}}")
    return value


Profile = Annotated[
    Annotated[ProfileName, Tag("name")] | Annotated[WeightsSpec, Tag("weights")],
    Discriminator(lambda value: "name" if isinstance(value, str) else "weights"),
    BeforeValidator(_named_or_weighed),
]
PROFILES = {
    ProfileName.BALANCED: WeightsSpec(
        kind=2, packing=1, money=1, wait=1, data=1, reliability=0.5, affinity=1, topology=0.5, sparing=1
    ),
    ProfileName.CHEAPEST: WeightsSpec(packing=0.1, money=10, reliability=0.1, affinity=0.1, sparing=0.1),
    ProfileName.FASTEST: WeightsSpec(
        packing=0.1, wait=10, data=1, reliability=1, affinity=0.1, topology=1, sparing=0.1
    ),
}
