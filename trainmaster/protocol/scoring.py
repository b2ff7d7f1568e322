"""The choice of the best of the clusters that fit: scores by name, and profiles, which are weights of scores."""

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import BeforeValidator, Field, create_model, model_validator

from trainmaster.protocol.base import Strict

Weight = Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False)]


class ProfileName(StrEnum):
    """Profiles that are always there."""

    BALANCED = "balanced"
    CHEAPEST = "cheapest"
    FASTEST = "fastest"


_BALANCED, _CHEAPEST, _FASTEST = ProfileName
_REGISTRY: Mapping[str, tuple[str, Mapping[ProfileName, float]]] = {
    "kind": ("Private clusters before edge and public ones.", {_BALANCED: 2}),
    "packing": ("Clusters that it leaves fullest.", {_BALANCED: 1, _CHEAPEST: 0.1, _FASTEST: 0.1}),
    "money": ("Clusters where it costs least.", {_BALANCED: 1, _CHEAPEST: 10}),
    "wait": ("Clusters where it starts soonest.", {_BALANCED: 1, _FASTEST: 10}),
    "data": ("Clusters where most of its data is.", {_BALANCED: 1, _FASTEST: 1}),
    "reliability": (
        "Clusters that have not returned or lost runs lately.",
        {_BALANCED: 0.5, _CHEAPEST: 0.1, _FASTEST: 1},
    ),
    "affinity": ("Clusters that the job prefers.", {_BALANCED: 1, _CHEAPEST: 0.1, _FASTEST: 0.1}),
    "topology": (
        "Clusters where it is spread over the fewest domains of the level that it prefers.",
        {_BALANCED: 0.5, _FASTEST: 1},
    ),
    "spread": ("Clusters where few of the runs of its queue are.", {}),
    "sparing": (
        "Clusters where it takes devices of a common product, if it may have any.",
        {_BALANCED: 1, _CHEAPEST: 0.1, _FASTEST: 0.1},
    ),
    "predecessors": (
        "Clusters where most of the jobs ran that it starts after.",
        {_BALANCED: 1, _CHEAPEST: 0.1, _FASTEST: 1},
    ),
}
"""The scores: the clusters that each prefers, and its weights in the profiles that count it. The dispatcher has a module of each name,
which measures it."""
SCORE_WEIGHTS: Mapping[str, Mapping[ProfileName, float]] = {name: weights for name, (_, weights) in _REGISTRY.items()}


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
        **{name: (Weight, Field(0.0, description=description)) for name, (description, _) in _REGISTRY.items()},
    )


def _named_or_weighed(value: Any) -> Any:
    """Return the model for a mapping: of a union, mistakes would be those of each of its types."""
    if isinstance(value, Mapping):
        return WeightsSpec.model_validate(value)
    if (isinstance(value, str) and value not in set(ProfileName)) or not isinstance(value, str | WeightsSpec):
        raise ValueError(f"a profile is one of {', '.join(ProfileName)}, or weights such as {{money: 5, packing: 1}}")
    return value


Profile = Annotated[ProfileName | WeightsSpec, BeforeValidator(_named_or_weighed)]
PROFILES = {
    profile: WeightsSpec(**{name: counts[profile] for name, counts in SCORE_WEIGHTS.items() if profile in counts})
    for profile in ProfileName
}
