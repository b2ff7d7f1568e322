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


class WeightsSpec(Strict):
    """A profile of one's own: how much each score counts. What is not named counts nothing."""

    kind: Weight = 0.0
    """Private clusters before edge and public ones."""
    packing: Weight = 0.0
    """Clusters that it leaves fullest."""
    money: Weight = 0.0
    """Clusters where it costs least."""

    @model_validator(mode="after")
    def _weighs_something(self) -> Self:
        if not any((self.kind, self.packing, self.money)):
            raise ValueError("give at least one of kind, packing and money a weight above 0")
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
    ProfileName.BALANCED: WeightsSpec(kind=2, packing=1, money=1),
    ProfileName.CHEAPEST: WeightsSpec(packing=0.1, money=10),
}
