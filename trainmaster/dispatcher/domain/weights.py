"""How much each score counts in the choice of a cluster."""

from typing import NamedTuple

from trainmaster.protocol.scoring import PROFILES, Profile, ProfileName


class Weights(NamedTuple):
    """In the order of ``scheduling.scores.SCORES``."""

    kind: float
    packing: float
    money: float


def weights_of(profile: Profile | None) -> Weights | None:
    """The weights of a profile; None where nothing is said."""
    if profile is None:
        return None
    spec = PROFILES[profile] if isinstance(profile, ProfileName) else profile
    return Weights(spec.kind, spec.packing, spec.money)


BALANCED = Weights(*PROFILES[ProfileName.BALANCED].model_dump().values())
"""What counts where nobody says anything."""
