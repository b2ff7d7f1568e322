"""What ``submit`` says of documents that are no jobs."""

import pytest

from trainmaster.cli.submit import check_kinds
from trainmaster.protocol.documents import Document
from trainmaster.protocol.errors import ProblemError


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("job", "'job' is not a Job; did you mean Job?"),
        ("Quue", "'Quue' is not a Job; did you mean Queue?"),
        ("Queue", "'Queue' is not a Job; for other kinds use: trainmaster apply -f FILE"),
        ("Deployment", "'Deployment' is not a Job; for other kinds use: trainmaster apply -f FILE"),
        (["Job"], "['Job'] is not a Job; for other kinds use: trainmaster apply -f FILE"),
    ],
)
def test_a_mistyped_kind_is_told_with_the_one_that_was_meant(kind: object, said: str) -> None:
    with pytest.raises(ProblemError) as raised:
        check_kinds([Document({"kind": kind}, "a.yaml")])
    assert [one.message for one in raised.value.mistakes] == [said]
