"""The caches of the benchmark of informers: what they count as wrong, and how they are compared with a list."""

from typing import Any

from bench.informer import CheckedCache
from bench.informers import Versions, compared, is_wrong


def item(name: str, version: int, uid: str = "") -> dict[str, Any]:
    return {
        "metadata": {"namespace": "default", "name": name, "uid": uid or f"u-{name}", "resourceVersion": str(version)}
    }


def figures(cache: CheckedCache, **listed: tuple[str, str]) -> dict[str, int]:
    objects: Versions = {f"default/{name}": found for name, found in listed.items()}
    return compared({"jobs": cache.state()}, {"jobs": objects})


def test_a_cache_that_has_what_is_listed_is_right() -> None:
    cache = CheckedCache()
    cache.replace([item("a", 1), item("b", 2)])
    cache.take("MODIFIED", item("a", 3))
    cache.take("ADDED", item("c", 4))
    cache.take("DELETED", item("b", 5))
    found = figures(cache, a=("u-a", "3"), c=("u-c", "4"))
    assert not is_wrong({"python": found, "listed_by_hand": {"missing": 0, "extra": 0}})
    assert found["stored"] == found["cached"] == 2


def test_differences_of_a_cache_are_counted() -> None:
    cache = CheckedCache()
    cache.replace([item("a", 1), item("b", 2)])
    found = figures(cache, a=("u-a", "2"), c=("u-c", "4"))
    assert (found["different"], found["missing"], found["extra"]) == (1, 1, 1)
    assert is_wrong({"python": found, "listed_by_hand": {"missing": 0, "extra": 0}})


def test_events_that_come_once_more_are_not_wrong() -> None:
    cache = CheckedCache()
    cache.replace([item("a", 1)])
    cache.take("ADDED", item("a", 1))
    cache.take("DELETED", item("b", 2))
    found = figures(cache, a=("u-a", "1"))
    assert (found["addedAgain"], found["deletedAgain"], found["doubled"], found["backwards"]) == (1, 1, 0, 0)


def test_versions_that_go_backwards_are_counted() -> None:
    cache = CheckedCache()
    cache.replace([item("a", 3)])
    cache.take("MODIFIED", item("a", 2))
    cache.take("DELETED", item("a", 1))
    assert figures(cache)["backwards"] == 2


def test_objects_that_are_there_twice_are_counted() -> None:
    cache = CheckedCache()
    cache.replace([item("a", 1), item("a", 1)])
    cache.take("ADDED", item("b", 2, uid="u-a"))
    cache.take("DELETED", item("a", 3))
    cache.take("ADDED", item("a", 4))
    assert figures(cache)["doubled"] == 3


def test_an_object_of_the_same_name_is_another_one() -> None:
    cache = CheckedCache()
    cache.replace([item("a", 1)])
    cache.take("DELETED", item("a", 2))
    cache.take("ADDED", item("a", 3, uid="other"))
    assert figures(cache, a=("other", "3"))["doubled"] == 0
