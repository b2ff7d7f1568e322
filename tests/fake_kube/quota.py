"""ResourceQuota: what a namespace may hold, checked when a pod is created, and told in the quota's status.

Covers counts of pods, and requests and limits of any resource; scopes are not read.
"""

from collections import Counter

from tests.fake_kube import errors
from tests.fake_kube.objects import Object, copied, is_finished
from tests.fake_kube.resources import PODS, QUOTAS
from tests.fake_kube.store import Change, Key, Store
from trainmaster.protocol.quantities import parse_quantity

_PLAIN = ("cpu", "memory", "ephemeral-storage")
"""Resources whose bare name in a quota means their requests."""


class Quota:
    """Counts pods that are not finished against the quotas of their namespaces."""

    def __init__(self, store: Store) -> None:
        self._store = store
        store.listen(self._follow)

    def admit(self, namespace: str, pod: Object) -> None:
        """Admit a pod. Raises ApiError 403 if a quota has no room for it, or needs requests that the pod does not name."""
        for quota in self._quotas(namespace):
            name, hard = quota["metadata"]["name"], quota["spec"].get("hard") or {}
            needs, used = _needs(pod, hard), self._used(namespace, hard)
            unnamed = [item for item in hard if item not in needs]
            if unnamed:
                containers = ",".join(container["name"] for container in pod["spec"]["containers"])
                why = "; ".join(f"{item} for: {containers}" for item in unnamed)
                raise errors.forbidden(PODS, pod["metadata"]["name"], f"failed quota: {name}: must specify {why}")
            over = sorted(item for item, text in hard.items() if used[item] + needs[item] > _amount(item, text))
            if over:
                refusals = [
                    ",".join(f"{item}={_shown(item, amounts[item])}" for item in over)
                    for amounts in (needs, used, {item: _amount(item, hard[item]) for item in over})
                ]
                why = f"exceeded quota: {name}, requested: {refusals[0]}, used: {refusals[1]}, limited: {refusals[2]}"
                raise errors.forbidden(PODS, pod["metadata"]["name"], why)

    def _quotas(self, namespace: str) -> list[Object]:
        found = self._store.scan(QUOTAS.id).items()
        return [quota for key, quota in found if key.namespace == namespace]

    def _used(self, namespace: str, hard: Object) -> Counter[str]:
        used: Counter[str] = Counter(dict.fromkeys(hard, 0))
        for key, pod in self._store.scan(PODS.id).items():
            if key.namespace == namespace and not is_finished(pod):
                used.update(_needs(pod, hard))
        return used

    def _follow(self, change: Change) -> None:
        if change.key.resource not in (PODS.id, QUOTAS.id):
            return
        for quota in self._quotas(change.key.namespace):
            hard = quota["spec"].get("hard") or {}
            used = self._used(change.key.namespace, hard)
            updated = copied(quota)
            updated["status"] = {"hard": hard, "used": {item: _shown(item, amount) for item, amount in used.items()}}
            self._store.update(Key(*QUOTAS.id, change.key.namespace, quota["metadata"]["name"]), updated)


def _needs(pod: Object, hard: Object) -> dict[str, int]:
    """Return what the pod takes of each item of a quota; items that a container should name and does not are left out."""
    needs: dict[str, int] = {}
    for item in hard:
        if item in ("pods", "count/pods"):
            needs[item] = 1
            continue
        resource, part = _resource(item), "limits" if item.startswith("limits.") else "requests"
        texts = [((one.get("resources") or {}).get(part) or {}).get(resource) for one in pod["spec"]["containers"]]
        if None not in texts or resource not in _PLAIN:
            needs[item] = sum(parse_quantity(resource, str(text)) for text in texts if text is not None)
    return needs


def _resource(item: str) -> str:
    return item.removeprefix("requests.").removeprefix("limits.")


def _amount(item: str, text: object) -> int:
    return parse_quantity(_resource(item), str(text))


def _shown(item: str, amount: int) -> str:
    resource = _resource(item)
    if resource == "cpu":
        return str(amount // 1000) if amount % 1000 == 0 else f"{amount}m"
    if resource in _PLAIN:
        for suffix, size in (("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10)):
            if amount and amount % size == 0:
                return f"{amount // size}{suffix}"
    return str(amount)
