"""A cache of jobs and queues by lists and watches of the Kubernetes client for Python, which checks what it is sent.

    python -m bench.informer KUBECONFIG

As ``bench/reflector``, it prints one JSON object per line: one at once, then, for each line on stdin, its caches and counts. It ends
when stdin is closed. Watches go on from the last version that was seen; after a 410 objects are listed again.
"""

import argparse
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson
from kubernetes import client, config, watch
from urllib3.exceptions import HTTPError

RESOURCES = ("jobs", "queues")
_PAGE = 500
_PAUSE_SECONDS = 0.5
"""Until the next attempt, after a call that failed and a watch that was cut."""
_GONE = 410
_COUNTED = (
    "added",
    "updated",
    "deleted",
    "replaced",
    "backwards",
    "doubled",
    "addedAgain",
    "deletedAgain",
    "lists",
    "watches",
)


class CachedVersion(NamedTuple):
    """What is cached of an object: its uid and its resource version."""

    uid: str
    version: int


@dataclass
class CheckedCache:
    """Objects by namespace and name, and what was done to them.

    ``backwards``: objects that came with a lower version than that in the cache. ``doubled``: those that were there twice: under two
    names, twice in a list, or once more after their deletion. ``addedAgain``: those that a watch added though they were in the cache;
    ``deletedAgain``: those that it deleted though they were not. These do no harm: a watch that goes on from a version sends all that
    is of it once more.
    """

    objects: dict[str, CachedVersion] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    _keys: dict[str, str] = field(default_factory=dict)
    _gone: set[str] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, what: str) -> None:
        with self._lock:
            self.counts[what] += 1

    def replace(self, listed: Sequence[dict[str, Any]]) -> None:
        """Replace all objects by those of a list."""
        with self._lock:
            self.counts["replaced"] += 1
            keys = set()
            for item in listed:
                key, found = _read(item)
                self.counts["doubled"] += key in keys
                keys.add(key)
                self._check(key, found)
                self._put(key, found)
            for key in self.objects.keys() - keys:
                self._remove(key)

    def take(self, kind: str, item: dict[str, Any]) -> None:
        """Do what an event of a watch says. Raises ValueError for one that is none of an object."""
        key, found = _read(item)
        with self._lock:
            if kind == "DELETED":
                self.counts["deleted"] += 1
                before = self.objects.get(key)
                if before is None or before.uid != found.uid:
                    self.counts["deletedAgain"] += 1
                    self._gone.add(found.uid)
                else:
                    self._check(key, found)
                    self._remove(key)
            elif kind in ("ADDED", "MODIFIED"):
                is_added = kind == "ADDED"
                self.counts["added" if is_added else "updated"] += 1
                is_cached = self._check(key, found)
                self.counts["addedAgain"] += is_added and is_cached
                self._put(key, found)
            else:
                raise ValueError(f"{kind}: {item}")

    def state(self) -> dict[str, Any]:
        """Return objects and counts as ``bench/reflector`` prints them."""
        with self._lock:
            objects = {key: {"uid": one.uid, "version": str(one.version)} for key, one in self.objects.items()}
            return {"objects": objects, "counts": {name: self.counts[name] for name in _COUNTED}}

    def _check(self, key: str, found: CachedVersion) -> bool:
        """Count what is wrong with an object that has come, and return whether it is cached."""
        before = self.objects.get(key)
        if before is not None and before.uid == found.uid:
            self.counts["backwards"] += found.version < before.version
            return True
        self.counts["doubled"] += found.uid in self._keys or found.uid in self._gone
        return False

    def _put(self, key: str, found: CachedVersion) -> None:
        before = self.objects.get(key)
        if before is not None and before.uid != found.uid:
            self._remove(key)
        self.objects[key] = found
        self._keys[found.uid] = key

    def _remove(self, key: str) -> None:
        uid = self.objects.pop(key).uid
        self._keys.pop(uid, None)
        self._gone.add(uid)


def _read(item: dict[str, Any]) -> tuple[str, CachedVersion]:
    """Return an object's namespace and name, and what is cached of it."""
    metadata = item["metadata"]
    key = "/".join(filter(None, (metadata.get("namespace"), metadata["name"])))
    return key, CachedVersion(metadata["uid"], int(metadata["resourceVersion"]))


class ListAndWatch(threading.Thread):
    """Keeps a cache equal to the objects of a resource, of all namespaces."""

    def __init__(self, api: Any, plural: str, cache: CheckedCache) -> None:
        super().__init__(daemon=True, name=f"list and watch {plural}")
        self._api = api
        self._address = ("trainmaster.dev", "v1", plural)
        self._cache = cache

    def run(self) -> None:
        while True:
            try:
                self._watch(self._list())
            except client.ApiException as error:
                if error.status != _GONE:
                    print(error, file=sys.stderr, flush=True)
            except (HTTPError, OSError) as error:
                print(error, file=sys.stderr, flush=True)
            time.sleep(_PAUSE_SECONDS)

    def _list(self) -> str:
        """List all objects by pages; return the version of the list."""
        self._cache.count("lists")
        items: list[dict[str, Any]] = []
        following = ""
        while True:
            more = {"_continue": following} if following else {}
            page = self._api.list_cluster_custom_object(*self._address, limit=_PAGE, **more)
            items += page["items"]
            if not (following := page["metadata"].get("continue", "")):
                break
        self._cache.replace(items)
        return str(page["metadata"]["resourceVersion"])

    def _watch(self, version: str) -> None:
        """Do what events say. Raises ApiException with 410 where objects have to be listed again."""
        while True:
            self._cache.count("watches")
            watcher: Any = watch.Watch()  # type: ignore[no-untyped-call]
            with suppress(HTTPError, OSError):  # the api is away, or was killed
                for kind, item in self._events(watcher, version):
                    self._cache.take(kind, item)
            version = watcher.resource_version or version
            time.sleep(_PAUSE_SECONDS)

    def _events(self, watcher: Any, version: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the events of a watch but bookmarks, whose versions the watch remembers itself."""
        listing = self._api.list_cluster_custom_object
        for event in watcher.stream(listing, *self._address, resource_version=version, allow_watch_bookmarks=True):
            if event is not None and event["type"] != "BOOKMARK":  # None: a line that was cut
                yield event["type"], event["object"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kubeconfig")
    options = parser.parse_args()
    config.load_kube_config(options.kubeconfig)  # type: ignore[no-untyped-call]
    api = client.CustomObjectsApi()
    caches = {name: CheckedCache() for name in RESOURCES}
    print(orjson.dumps({"watchList": False}).decode(), flush=True)
    for name, cache in caches.items():
        ListAndWatch(api, name, cache).start()
    for _ in sys.stdin:
        print(orjson.dumps({name: cache.state() for name, cache in caches.items()}).decode(), flush=True)


if __name__ == "__main__":
    main()
