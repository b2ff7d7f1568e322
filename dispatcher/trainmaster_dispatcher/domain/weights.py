"""How much each score counts in the choice of a cluster."""

from typing import NamedTuple

from trainmaster.protocol.scoring import PROFILES, Profile, ProfileName


class Weights(NamedTuple):
    """In the order of ``scheduling.scores.SCORES``."""

    kind: float
    packing: float
    money: float
    wait: float = 0.0
    data: float = 0.0
    reliability: float = 0.0
    affinity: float = 0.0
    topology: float = 0.0
    spread: float = 0.0
    sparing: float = 0.0

    @property
    def fixed(self) -> float:
        """What counts of the scores that do not depend on the room of a cluster, if they were as good as can be."""
        return self.wait + self.data + self.reliability + self.affinity


def weights_of(profile: Profile | None) -> Weights | None:
    """The weights of a profile; None where nothing is said."""
    if profile is None:
        return None
    spec = PROFILES[profile] if isinstance(profile, ProfileName) else profile
    return Weights(**spec.model_dump())


BALANCED = Weights(**PROFILES[ProfileName.BALANCED].model_dump())
"""What counts where nobody says anything."""
