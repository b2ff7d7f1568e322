"""The comparison of shown and real outputs: what varies does not count, and everything else does."""

import pytest

from tests.docs.shape import difference, lines_of

TABLE = ["NAME     KIND     RUNS  LAST CONTACT", "edge     edge     0     2s ago", "private  private  12    1m3s ago"]

SAME = {
    "the same": (TABLE, TABLE),
    "other numbers and durations, and so other widths": (
        TABLE,
        ["NAME KIND RUNS LAST CONTACT", "edge edge 1,000 0.3s ago", "private private 0 2d4h ago"],
    ),
    "another id of a job": (["rates-fyratjf  succeeded"], ["rates-0mm2g7k  succeeded"]),
    "another id of a run": (["hello-xd5vcjk-r1 on private"], ["hello-cp45cgf-r2 on private"]),
    "another time of day": (["08:51:36  queued  submitted"], ["23:59:00  queued  submitted"]),
    "another time": (["until 2026-11-30T06:00:00Z (x)"], ["until 2027-01-01T00:00:00Z (x)"]),
    "another time zone": (["as of 2026-11-25T00:50:25+00:00;"], ["as of 2027-11-25T00:50:25.123+02:00;"]),
    "another version": (["dispatcher 0.1.0, this"], ["dispatcher 0.12.1, this"]),
    "another path": (
        ["the key is in ~/.config/trainmaster/config.yaml, which"],
        ["the key is in /tmp/a/b.yaml, which"],
    ),
    "another address": (["at https://trainmaster.example.org as alice"], ["at http://127.0.0.1:8470 as alice"]),
    "lines left out": (["ID  NAME", "...", "end"], ["ID  NAME", "a", "b", "end"]),
    "no line where some may be": (["begin", "...", "end"], ["begin", "end"]),
    "nothing after what is left out": (["begin", "..."], ["begin", "a", "b"]),
    "a text left out": (["installation 4c5c0d3e-..., as of"], ["installation 11f0, twice as long, as of"]),
    "an answered question": (
        lines_of("change 1 object? [y/N]: y\nchanged"),
        lines_of("change 2 object? [y/N]: changed\n\n"),
    ),
}
DIFFERENT = {
    "a wrong header": (TABLE, [TABLE[0].replace("RUNS", "JOBS"), *TABLE[1:]], "the page has"),
    "a changed word": (
        ["Queue research  created"],
        ["Queue research  changed"],
        "the output 'Queue research  changed'",
    ),
    "a missing line": (TABLE, TABLE[:2], "ends before this line of the page: 'private"),
    "a missing line in the middle": (TABLE, [TABLE[0], TABLE[2]], "the page has 'edge"),
    "one line more": (TABLE[:2], TABLE, "line 3 of the output is not in the page: 'private"),
    "an output where none is shown": ([], ["warning: no"], "line 1 of the output is not in the page"),
    "no output": (["done"], [], "ends before this line"),
    "a word in the place of a number": (["3 jobs"], ["no jobs"], "the page has '3 jobs'"),
    "another word after what is left out": (["begin", "...", "end"], ["begin", "a", "ends"], "page"),
    "another word beside a left out text": (["one ..., two"], ["one 1, three"], "the page has 'one ..., two'"),
    "another unit": (["needs 4Gi"], ["needs 4Mi"], "the page has"),
    "lines in another order": (["b", "a"], ["a", "b"], "the page has 'b'"),
}


@pytest.mark.parametrize(("shown", "real"), SAME.values(), ids=SAME)
def test_outputs_of_one_shape_are_not_told_apart(shown: list[str], real: list[str]) -> None:
    assert difference(shown, real) is None


@pytest.mark.parametrize(("shown", "real", "finding"), DIFFERENT.values(), ids=DIFFERENT)
def test_a_difference_is_named(shown: list[str], real: list[str], finding: str) -> None:
    assert finding in (difference(shown, real) or "")
