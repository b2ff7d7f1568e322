"""Faults on demand: what a test wants the server to do wrong, refuse, or lose."""

from collections.abc import Iterable
from dataclasses import dataclass

from tests.fake_kube.errors import ApiError

ANY = "*"


@dataclass(frozen=True, slots=True)
class Call:
    """A request as authorization sees it; ``resource`` names a subresource too: ``pods/status``."""

    verb: str
    resource: str
    namespace: str = ""
    name: str = ""


@dataclass
class _Failure:
    verb: str
    resource: str
    status: int
    left: int


class Faults:
    """What is to go wrong, and how often."""

    def __init__(self) -> None:
        self._denied: set[tuple[str, str]] = set()
        self._failures: list[_Failure] = []
        self._lost: list[tuple[str, str]] = []
        self._throttled = 0
        self._retry_after = 1

    def throttle(self, requests: int, retry_after: int = 1) -> None:
        """Answer the next requests, whatever they are, with 429 and Retry-After."""
        self._throttled, self._retry_after = requests, retry_after

    def fail_next(self, verb: str, resource: str, status: int, times: int = 1) -> None:
        """Answer the next requests of this kind with ``status``, and do nothing of what they ask; ``*`` stands for any."""
        self._failures.append(_Failure(verb, resource, status, times))

    def lose_next_answer(self, verb: str, resource: str) -> None:
        """Do what the next request of this kind asks, and cut the connection instead of answering."""
        self._lost.append((verb, resource))

    def deny(self, verb: str, resource: str) -> None:
        """Answer 403 from now on, as without a role; reviews of access say so too."""
        self._denied.add((verb, resource))

    def allow(self, verb: str, resource: str) -> None:
        """End a denial."""
        self._denied.discard((verb, resource))

    def is_denied(self, verb: str, resource: str) -> bool:
        return any(_fits(one, verb, resource) for one in self._denied)

    def check(self, call: Call, group: str) -> None:
        """Raise the ApiError that this request is to get, if any."""
        if self._throttled:
            self._throttled -= 1
            message = "the server has received too many requests and has asked us to try again later"
            raise ApiError(429, message, retry_after=self._retry_after)
        if self.is_denied(call.verb, call.resource):
            where = f' in the namespace "{call.namespace}"' if call.namespace else " at the cluster scope"
            message = (
                f'{call.resource} is forbidden: User "test" cannot {call.verb} resource "{call.resource}" '
                f'in API group "{group}"{where}'
            )
            raise ApiError(403, message, details={"kind": call.resource.partition("/")[0]})
        for failure in self._failures:
            if _fits((failure.verb, failure.resource), call.verb, call.resource):
                failure.left -= 1
                if not failure.left:
                    self._failures.remove(failure)
                raise ApiError(failure.status, f"injected: {call.verb} {call.resource} fails with {failure.status}")

    def loses(self, call: Call) -> bool:
        """Return whether the answer to this request is to be lost."""
        for one in self._lost:
            if _fits(one, call.verb, call.resource):
                self._lost.remove(one)
                return True
        return False


def _fits(pattern: Iterable[str], verb: str, resource: str) -> bool:
    return all(part in (ANY, actual) for part, actual in zip(pattern, (verb, resource), strict=True))
