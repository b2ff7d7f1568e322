"""Idle GPUs: since when samples show them, and what follows."""

import re
from collections.abc import Sequence

import pytest
from pydantic import ValidationError

from trainmaster.protocol.durations import parse_duration
from trainmaster.protocol.tenants import IdleGpusSpec, QueueSpec
from trainmaster_dispatcher.domain.idle_gpus import (
    IdleStep,
    IdleTerms,
    advance_idle,
    idle_since,
    release_words,
    terms_by_queue,
    warning_words,
)
from trainmaster_dispatcher.domain.member_use import UNKNOWN, MemberValues
from trainmaster_dispatcher.domain.use_history import Places, UseChunk, pack_sample

TERMS = IdleTerms(3600.0, 5, releases=True)
PLACES: Places = (("main", 0, 2),)
BOTH = (("main", 0), ("main", 1))


def chunk(*samples: tuple[int, Sequence[int]], places: Places = PLACES) -> UseChunk:
    """Return a chunk with the GPU use of two members at each time."""
    cpu = [100] * sum(one[2] for one in places)
    return UseChunk(
        places, b"".join(pack_sample(MemberValues(places, cpu, (), (), gpu, ()), at) for at, gpu in samples)
    )


@pytest.mark.parametrize(
    ("samples", "since"),
    [
        ([(0, [0, 0]), (30, [4, 0]), (60, [0, 4])], 0),
        ([(0, [0, 0]), (30, [0, 5]), (60, [0, 0])], 60),
        ([(0, [0, 0]), (30, [0, 0]), (60, [0, 9])], None),
        ([(0, [0, 0]), (30, [0, UNKNOWN]), (60, [0, 0])], 60),
        ([(0, [0, 0]), (30, []), (60, [0, 0])], 60),
        ([(0, [0, 0]), (150, [0, 0])], 150),
        ([(0, [0, 0]), (90, [0, 0])], 0),
        ([], None),
    ],
)
def test_gpus_are_idle_since_all_samples_show_all_of_them_so(
    samples: list[tuple[int, list[int]]], since: float | None
) -> None:
    assert idle_since([chunk(*samples)], BOTH, 5, 30, samples[-1][0] + 10.0 if samples else 0.0) == since


@pytest.mark.parametrize(
    ("samples", "since"),
    [
        ([(900, [0, 0]), (930, [0, 0])], 100),
        ([(900, [0, 9]), (930, [0, 0])], 930),
        ([(900, [0, 0]), (930, [0, 9])], None),
        ([(900, [0, 0]), (1000, [0, 0])], 1000),
        ([(50, [0, 0]), (80, [0, 0])], 50),
    ],
    ids=["idle as before", "busy once", "busy now", "a time without samples", "all of it seen"],
)
def test_gpus_are_idle_since_an_earlier_look_if_all_samples_from_it_on_show_them_so(
    samples: list[tuple[int, list[int]]], since: float | None
) -> None:
    assert idle_since([chunk(*samples)], BOTH, 5, 30, samples[-1][0] + 10.0, 100.0) == since


def test_nothing_is_idle_where_the_last_sample_is_too_old() -> None:
    assert idle_since([chunk((0, [0, 0]), (30, [0, 0]))], BOTH, 5, 30, 121.0) is None


def test_a_member_without_a_sample_is_unknown_and_one_without_gpus_does_not_count() -> None:
    one = chunk((0, [0]), places=(("main", 0, 1),))
    assert idle_since([one], BOTH, 5, 30, 10.0) is None
    assert idle_since([one], BOTH[:1], 5, 30, 10.0) == 0
    assert idle_since([one], (), 5, 30, 10.0) is None


def test_a_run_is_idle_over_several_chunks() -> None:
    assert idle_since([chunk((0, [0, 0])), chunk((30, [0, 0]), (60, [0, 0]))], BOTH, 5, 30, 70.0) == 0


@pytest.mark.parametrize(
    ("since", "warned_at", "now", "step"),
    [
        (None, None, 9000.0, IdleStep(None, None)),
        (0.0, None, 3599.0, IdleStep(0.0, None)),
        (0.0, None, 3600.0, IdleStep(0.0, 3600.0, warns=True)),
        (0.0, 3600.0, 7199.0, IdleStep(0.0, 3600.0)),
        (0.0, 3600.0, 7200.0, IdleStep(0.0, 3600.0, releases=True)),
        (4000.0, 3600.0, 7200.0, IdleStep(4000.0, None)),
        (4000.0, 3600.0, 7600.0, IdleStep(4000.0, 7600.0, warns=True)),
        (0.0, None, 99999.0, IdleStep(0.0, 99999.0, warns=True)),
        (None, 3600.0, 7200.0, IdleStep(None, None)),
    ],
)
def test_a_warning_comes_first_and_the_release_as_long_after_it(
    since: float | None, warned_at: float | None, now: float, step: IdleStep
) -> None:
    assert advance_idle(TERMS, since, warned_at, now) == step


def test_a_policy_that_only_notifies_releases_nothing() -> None:
    assert not advance_idle(TERMS._replace(releases=False), 0.0, 3600.0, 99999.0).releases


def test_a_queue_has_the_policy_of_the_nearest_queue_above() -> None:
    queues = {
        1: QueueSpec(path="a", idle_gpus=IdleGpusSpec(after="30m")),
        2: QueueSpec(path="a/b"),
        3: QueueSpec(path="a/b/c", idle_gpus=IdleGpusSpec.model_validate({"then": "release", "below": "10%"})),
        4: QueueSpec(path="ab"),
    }
    assert terms_by_queue(queues) == {
        1: IdleTerms(1800.0, 5, releases=False),
        2: IdleTerms(1800.0, 5, releases=False),
        3: IdleTerms(3600.0, 10, releases=True),
    }


@pytest.mark.parametrize(
    "fields", [{"after": "1m"}, {"after": "12h"}, {"below": 0}, {"below": "60%"}, {"below": "x"}, {"then": "kill"}]
)
def test_a_wrong_policy_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        IdleGpusSpec.model_validate(fields)


@pytest.mark.parametrize("unit", ["m", "h"])
def test_the_schema_has_only_times_that_are_accepted_and_all_whole_ones(unit: str) -> None:
    pattern = IdleGpusSpec.model_json_schema()["properties"]["after"]["pattern"]
    texts = [f"{number}{unit}" for number in range(700)] + [
        f"{hours}h{minutes}m" for hours in range(13) for minutes in range(60)
    ]
    for text in texts:
        is_accepted = 300 <= parse_duration(text) <= 39_600
        assert bool(re.match(pattern, text)) == (is_accepted and not text.startswith("0") and text != "11h0m"), text
        if is_accepted:
            assert IdleGpusSpec.model_validate({"after": text}).after == text


def test_the_words_say_what_happens_next() -> None:
    assert warning_words(TERMS, 0.0, 3600.0) == (
        "its GPUs were busy for less than 5 % of the time in the last 1h; it is suspended if that goes on for 1h more"
    )
    assert warning_words(TERMS._replace(releases=False), 0.0, 3600.0).endswith("in the last 1h")
    assert release_words(TERMS, 0.0, 7200.0) == (
        "its GPUs were given back, as they were busy for less than 5 % of the time in the last 2h (idleGpus of its queue)"
    )
