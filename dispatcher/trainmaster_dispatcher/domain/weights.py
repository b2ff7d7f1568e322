"""The weight of each score in the choice of a cluster."""

from typing import Any, Self

from trainmaster.protocol.scoring import PROFILES, SCORE_WEIGHTS, Profile, ProfileName

_PLACES = {name: place for place, name in enumerate(SCORE_WEIGHTS)}


class Weights(tuple[float, ...]):
    """A weight for each score, in the order of ``protocol.scoring.SCORE_WEIGHTS``; what is not given counts nothing.

    A tuple, as it is part of keys that are hashed all the time.
    """

    __slots__ = ()

    def __new__(cls, *weights: float, **named: float) -> Self:
        given = dict(zip(_PLACES, weights, strict=False))
        if len(weights) > len(_PLACES) or not given.keys().isdisjoint(named) or not named.keys() <= _PLACES.keys():
            raise TypeError(f"weights are for {', '.join(_PLACES)}, each once; got {weights}, {named}")
        given |= named
        return super().__new__(cls, (given.get(name, 0.0) for name in _PLACES))

    def __getnewargs__(self) -> tuple[Any, ...]:
        return tuple(self)

    def __repr__(self) -> str:
        return f"Weights({', '.join(f'{name}={weight!r}' for name, weight in zip(_PLACES, self, strict=True))})"


def weights_of(profile: Profile | None) -> Weights | None:
    """Return the weights of a profile; None if nothing is specified."""
    if profile is None:
        return None
    spec = PROFILES[profile] if isinstance(profile, ProfileName) else profile
    return Weights(**spec.model_dump())


BALANCED = Weights(**PROFILES[ProfileName.BALANCED].model_dump())
"""The default weights."""
