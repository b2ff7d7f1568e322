"""The profile of free processors by the book."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.textbook_profile import Profile


def test_a_profile_by_hand() -> None:
    profile = Profile.of_running(2, 5, [(20, 4), (10, 3), (20, 1)])
    assert [profile.earliest(1, processors) for processors in (2, 3, 5, 6, 10)] == [5, 10, 10, 20, 20]
    profile.take(10, 30, 4)
    assert profile.earliest(6, 2) == 20, "between 10 and 20 is only one processor free"
    assert profile.earliest(5, 2) == 5
    assert profile.earliest(6, 2, before=12) == 12
    with pytest.raises(ValueError, match="1 processors too many are planned at 5 s"):
        profile.take(5, 12, 3)


placements = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 8)), max_size=15)


@given(placements)
def test_a_profile_finds_what_a_search_second_by_second_finds(wanted: list[tuple[int, int]]) -> None:
    profile, free = Profile(8), [8] * 200
    taken = []
    for seconds, processors in wanted:
        at = next(at for at in range(200) if all(free[at + step] >= processors for step in range(seconds)))
        assert profile.earliest(seconds, processors) == at
        profile.take(at, at + seconds, processors)
        free[at : at + seconds] = [before - processors for before in free[at : at + seconds]]
        taken.append((at, at + seconds, processors))
    for start, end, processors in taken:
        profile.take(start, end, -processors)
    assert profile.earliest(1000, 8) == 0
