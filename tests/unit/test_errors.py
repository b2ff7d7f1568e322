"""The error tree: every code is complete and explained."""

from pathlib import Path

import pytest

from trainmaster.protocol.errors import Code, Mistake, ProblemError, TrainmasterError, UnreachableError
from trainmaster.protocol.reasons import Tier, Token

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


@pytest.mark.parametrize("code", Code)
def test_every_code_has_a_status_and_a_headline(code: Code) -> None:
    assert 400 <= code.status <= 599
    assert code.headline[0].isupper()
    assert not code.headline.endswith(".")
    assert code.value == code.value.lower().replace("_", "-")


@pytest.mark.parametrize("code", Code)
def test_every_code_has_a_section_in_the_reference(code: Code) -> None:
    headings = [line for line in (REFERENCE / "errors.md").read_text().splitlines() if line.startswith("#")]
    assert any(heading.lstrip("# ").strip("`") == code.value for heading in headings), f"no heading {code.value}"


def test_headlines_differ() -> None:
    assert len({code.headline for code in Code}) == len(Code)


def test_a_problem_is_an_rfc_9457_object_that_links_to_its_section() -> None:
    error = ProblemError(
        Code.INVALID_SPEC,
        "two mistakes",
        mistakes=(Mistake(path="name", message="is missing"), Mistake(path="roles", message="is empty")),
        extra={"queue": "main"},
    )
    assert error.to_problem("/v1/jobs") == {
        "type": "https://trainmaster.dev/docs/reference/errors#invalid-spec",
        "title": "The specification has mistakes",
        "status": 422,
        "code": "invalid-spec",
        "detail": "two mistakes",
        "instance": "/v1/jobs",
        "mistakes": [{"path": "name", "message": "is missing"}, {"path": "roles", "message": "is empty"}],
        "queue": "main",
    }
    assert str(error) == "two mistakes"


def test_all_errors_have_one_root() -> None:
    assert issubclass(ProblemError, TrainmasterError)
    assert issubclass(UnreachableError, TrainmasterError)


@pytest.mark.parametrize("token", Token)
def test_every_reason_has_a_tier(token: Token) -> None:
    assert isinstance(token.tier, Tier)
