"""Refused calls until they are stored: equal calls are one line, and a flood fills neither memory nor the table."""

from trainmaster.protocol.errors import Code, ProblemError
from trainmaster_dispatcher.services.auditing import Refusals, change_of, jobs_of

REFUSED = ProblemError(Code.UNAUTHENTICATED, "no key\x00")


def test_calls_alike_are_one_line_with_their_number() -> None:
    refusals = Refusals(lambda: 0.0)
    for address in ("a", "b", "a"):
        refusals.note(REFUSED, "", address, "GET /x\x00\udc80", "r")
    lines = refusals.take()
    assert [(line.address, line.target, line.details["count"]) for line in lines] == [
        ("a", "GET /x??", 2),
        ("b", "GET /x??", 1),
    ]
    assert lines[0].details["detail"] == "no key?"
    assert refusals.take() == []


def test_a_flood_is_counted_and_does_not_fill_the_table() -> None:
    now = [0.0]
    refusals = Refusals(lambda: now[0])
    noted, stored, counted = 0, 0, 0
    for second in range(121):
        now[0] = float(second)
        for number in range(2_000):
            refusals.note(REFUSED, "", f"{second}-{number}", "GET /x", "r")
            noted += 1
        assert len(refusals._equivalent) <= 1_000
        lines = refusals.take()
        stored += len(lines)
        counted += sum(line.details["count"] for line in lines)
    assert stored == 3 * 61
    now[0] = 1_000.0
    counted += sum(line.details["count"] for line in refusals.take())
    assert counted == noted, "none is forgotten"


def test_only_what_differs_is_told() -> None:
    assert change_of({"a": 1, "b": 2}, {"a": 1, "b": 3, "c": 4}) == {
        "before": {"b": 2, "c": None},
        "after": {"b": 3, "c": 4},
    }
    assert change_of({"a": 1}, {"a": 1}) == {"before": {}, "after": {}}
    assert change_of(None, None) == {}


def test_how_many_jobs_are_named() -> None:
    assert jobs_of(["a"]) == {"jobs": ["a"]}
    assert jobs_of(["a"] * 51) == {"jobs": ["a"] * 50, "more": 1}
    assert jobs_of(["a"] * 50, 70) == {"jobs": ["a"] * 50, "more": 20}
