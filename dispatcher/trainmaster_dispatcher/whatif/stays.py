"""Runs that had nodes in a simulation, and what they cost."""

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from trainmaster.protocol.device_parts import device_of, is_device, is_part, part_in_thousandths, part_resource
from trainmaster.protocol.placement import MemberPlacement
from trainmaster.protocol.states import RunState
from trainmaster_dispatcher.domain.prices import INSTANCE_LABEL, MICROS, PricedResource, PriceHistory, Tariff, is_spot
from trainmaster_dispatcher.domain.usage import UsagePart, UsageSpan, Used, by_group, usage_of

Groups = Mapping[str, tuple[str, Mapping[str, str]]]
"""By node group: its product and its labels."""
Needs = Mapping[str, Mapping[str, int]]
"""By role: the needs of a member, or of those that share devices."""


class Stay(NamedTuple):
    """A run that had nodes: where, its beginning and end, what it held, and how it ended.

    ``sizes`` and ``placement`` count members that share devices as one.
    """

    number: int
    cluster: str
    placed_at: float
    ended_at: float
    sizes: Mapping[str, int]
    placement: MemberPlacement
    state: RunState

    def amounts(self, needs: Needs, groups: Groups) -> dict[PricedResource, int]:
        """Return what the run held, by priced resource."""
        found: dict[PricedResource, int] = defaultdict(int)
        for (group, role), count in by_group(self.sizes, self.placement).items():
            product, labels = groups.get(group, ("", {}))
            for resource, amount in needs[role].items():
                name, each = resource, amount
                if is_part(resource):
                    name, each = part_resource(device_of(resource)), part_in_thousandths(resource, amount, 0)
                place = PricedResource(
                    *(name, product if is_device(name) else "", is_spot(labels), labels.get(INSTANCE_LABEL, ""))
                )
                found[place] += each * count
        return dict(found)

    def used(self, amounts: Mapping[PricedResource, int], tariff: Tariff) -> dict[UsagePart, Used]:
        """Return what the run used and its cost, by hour, as the dispatcher counts it."""
        stretch = UsageSpan(round(self.placed_at * MICROS), round(self.ended_at * MICROS), amounts)
        return usage_of([stretch], PriceHistory([0], [tariff]))
