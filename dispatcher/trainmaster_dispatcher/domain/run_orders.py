"""Run orders: what a run has to do beyond its specification, as ``runs.orders`` stores it. They never say why it was chosen.

That is in ``runs.decision``, for people alone. Releases before schema 0024 stored both in ``runs.decision``, and one of them may run
beside this release during an upgrade:

* rows that it leases have no orders: these are read from the keys of the decision (version 0);
* rows that this release leases have the same keys in the decision as well (``for_earlier_release``).

The next release does not run beside such a release. It may stop writing the keys (with a migration that raises
``schema_compatibility.oldest_release`` to 0024), and it may stop reading version 0 once no live run is without orders.
"""

from collections.abc import Mapping
from typing import Any, Final, Literal

import orjson
from pydantic import ValidationError

from trainmaster.protocol.base import Closed
from trainmaster.protocol.errors import TrainmasterError
from trainmaster.protocol.validation_errors import mistakes_of, worded

VERSION: Final = 1
"""The version that this release writes. Another version may be written once the previous release reads it."""
_EARLIER = 0
"""The version that the store gives to a decision that holds orders, see above."""


class UnreadableOrdersError(TrainmasterError):
    """The orders of a run are stored in a form that this release does not read."""


class NarrowedDevice(Closed):
    """A device whose product is bound: members that take the resource go to nodes with these labels alone."""

    resource: str
    selector: dict[str, str]


class BindingTerm(Closed):
    """One required expression of node affinity."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


class BurstTerms(Closed):
    """The terms of a run by a burst policy. ``limit_seconds``: its time limit if its specification has none."""

    limit_seconds: float
    binding: tuple[BindingTerm, ...] = ()
    """The node affinity that keeps its members on the nodes that the policy allows."""


class RunOrders(Closed):
    """The orders of a run beyond its specification, its sizes and its places."""

    version: Literal[1] = VERSION
    narrowed: NarrowedDevice | None = None
    awaits_seconds: float = 0.0
    """The additional seconds that the run may wait for its nodes, beyond the placement timeout of its cluster."""
    burst: BurstTerms | None = None

    def stored(self) -> dict[str, Any]:
        """Return the JSON form that ``read_orders`` reads."""
        return _NO_ORDERS_STORED if self is NO_ORDERS else {"version": self.version, **self.to_wire()}

    def for_earlier_release(self) -> dict[str, Any]:
        """Return the keys of a decision in which the release before schema 0024 looks for orders, ``burst`` as an addition."""
        keys: dict[str, Any] = {}
        if self.narrowed is not None:
            keys["narrowed"] = self.narrowed.to_wire()
        if self.awaits_seconds:
            keys["awaitsSeconds"] = self.awaits_seconds
        if self.burst is not None:
            binding = [[term.key, term.operator, list(term.values)] for term in self.burst.binding]
            keys["burst"] = {"limitSeconds": self.burst.limit_seconds, "binding": binding}
        return keys


NO_ORDERS = RunOrders()
"""The orders of most runs: the specification is complete without them."""
_NO_ORDERS_STORED: dict[str, Any] = {"version": VERSION}


def read_orders(text: str) -> RunOrders:
    """Return the orders that the store gives as JSON text. Raises UnreadableOrdersError."""
    try:
        data = orjson.loads(text)
        version = data["version"]
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise UnreadableOrdersError("the stored orders of the run cannot be read: they name no version") from error
    if version not in (_EARLIER, VERSION) or isinstance(version, bool):
        raise UnreadableOrdersError(
            f"the stored orders of the run have version {str(version)[:20]}, this release reads version {VERSION}"
        )
    try:
        # From text, as JSON knows no tuples, which a strict reading of values would insist on.
        return RunOrders.model_validate_json(text if version else orjson.dumps(_of_earlier(data)), strict=True)
    except ValidationError as error:
        first = mistakes_of(error)[0]
        raise UnreadableOrdersError(f"the stored orders of the run cannot be read: {worded(first)}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise UnreadableOrdersError(
            "the stored orders of the run cannot be read: their earlier form is wrong"
        ) from error


def _of_earlier(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the present form of the keys that a decision had."""
    orders: dict[str, Any] = {key: data[key] for key in ("narrowed", "awaitsSeconds") if key in data}
    burst = data.get("burst")
    if burst is not None:
        orders["burst"] = {
            "limitSeconds": burst["limitSeconds"],
            "binding": [
                {"key": key, "operator": operator, "values": values} for key, operator, values in burst["binding"]
            ],
        }
    return orders
