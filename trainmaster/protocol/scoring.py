"""The choice of the best of the clusters that fit: scores by name, and profiles, which are weights of scores."""

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import BeforeValidator, Discriminator, Field, Tag, create_model, model_validator

from trainmaster.protocol.base import Strict

Weight = Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False)]


class ProfileName(StrEnum):
    """Profiles that are always there."""

    BALANCED = "balanced"
    CHEAPEST = "cheapest"
    FASTEST = "fastest"


_BALANCED, _CHEAPEST, _FASTEST = ProfileName
SCORE_WEIGHTS: Mapping[str, Mapping[ProfileName, float]] = {
    # Private clusters before edge and public ones.
    "kind": {_BALANCED: 2},
    # Clusters that it leaves fullest.
    "packing": {_BALANCED: 1, _CHEAPEST: 0.1, _FASTEST: 0.1},
    # Clusters where it costs least.
    "money": {_BALANCED: 1, _CHEAPEST: 10},
    # Clusters where it starts soonest.
    "wait": {_BALANCED: 1, _FASTEST: 10},
    # Clusters where most of its data is.
    "data": {_BALANCED: 1, _FASTEST: 1},
    # Clusters that have not returned or lost runs lately.
    "reliability": {_BALANCED: 0.5, _CHEAPEST: 0.1, _FASTEST: 1},
    # Clusters that the job prefers.
    "affinity": {_BALANCED: 1, _CHEAPEST: 0.1, _FASTEST: 0.1},
    # Clusters where it is spread over the fewest domains of the level that it prefers.
    "topology": {_BALANCED: 0.5, _FASTEST: 1},
    # Clusters where few of the runs of its queue are.
    "spread": {},
    # Clusters where it takes devices of a common product, if it may have any.
    "sparing": {_BALANCED: 1, _CHEAPEST: 0.1, _FASTEST: 0.1},
}
"""The scores, each with its weights in the profiles that count it. The dispatcher has a module of each name, which measures it."""


class _Weighed(Strict):
    """The rules of a profile, whatever scores there are."""

    @model_validator(mode="after")
    def _weighs_something(self) -> Self:
        if not any(self.model_dump().values()):
            raise ValueError(f"give at least one of {', '.join(type(self).model_fields)} a weight above 0")
        return self


if TYPE_CHECKING:

    class WeightsSpec(_Weighed):
        """A profile of one's own, with a field for each score."""

        def __init__(self, **weights: float) -> None: ...

else:
    WeightsSpec = create_model(
        "WeightsSpec",
        __base__=_Weighed,
        __doc__="A profile of one's own: how much each score counts. What is not named counts nothing.",
        __module__=__name__,
        **dict.fromkeys(SCORE_WEIGHTS, (Weight, 0.0)),
    )


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
    profile: WeightsSpec(**{name: counts[profile] for name, counts in SCORE_WEIGHTS.items() if profile in counts})
    for profile in ProfileName
}
