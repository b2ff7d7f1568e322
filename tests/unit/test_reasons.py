"""The registry of reasons: each token has its texts, each check leads where the docs say, and codes on the wire stay as they are."""

import re
import runpy
from pathlib import Path
from string import Formatter

import pytest

from trainmaster.protocol.reasons import NOT_BY_POLICY, Check, Reason, Tier, Token, Verdict

ROOT = Path(__file__).parents[2]
_SCRIPT = ROOT / "scripts/reason-reference"
_WITHOUT_ADVICE = {Token.BEING_PLACED, Token.RUNNING, Token.ENDED}
"""Reasons about which nobody can do anything."""


def parts_of(*texts: str) -> dict[str, str]:
    """Return a value for each part that the texts name."""
    return {name: f"<{name}>" for text in texts for _, name, _, _ in Formatter().parse(text) if name}


@pytest.mark.parametrize("token", Token)
def test_a_reason_has_everything_that_its_token_owns(token: Token) -> None:
    kind = token.kind
    parts = parts_of(kind.sentence, kind.advice)
    reason = token.reason((), {"until": "then"}, **parts)
    assert (reason.token, reason.tier, reason.for_ever) == (token, kind.tier, False)
    assert reason.sentence.replace("<added>", "").endswith(".")
    assert all(value in reason.sentence + reason.advice for value in parts.values())
    assert bool(reason.advice) is (token not in _WITHOUT_ADVICE)
    assert reason.details == {"until": "then"}
    assert kind.meaning
    assert not kind.meaning.endswith(".")


@pytest.mark.parametrize("token", [one for one in Token if one.kind.sentence_for_ever])
def test_a_reason_for_ever_says_that_waiting_does_not_help(token: Token) -> None:
    parts = parts_of(token.kind.sentence_for_ever, token.kind.advice_for_ever)
    reason = token.reason_for_ever(**parts)
    assert reason.for_ever
    assert reason.advice.startswith("Waiting will not help")
    assert reason.sentence != token.reason(**parts).sentence


@pytest.mark.parametrize("token", [one for one in Token if parts_of(one.kind.sentence)])
def test_a_reason_is_not_built_without_the_parts_of_its_sentence(token: Token) -> None:
    with pytest.raises(KeyError):
        token.reason()


def test_what_cannot_run_as_written_says_so() -> None:
    for token in Token:
        assert token.kind.advice.startswith("Waiting will not help") is (token.tier is Tier.CANNOT_RUN)


def test_codes_are_text_on_the_wire_and_back() -> None:
    verdict = Verdict(cluster="c", check=Check.NO_ROOM, sentence="it is full")
    reason = Token.INSUFFICIENT_CAPACITY.reason([verdict], cluster="c", finding="it is full", others="")
    stored = reason.model_dump(mode="json", by_alias=True)
    assert (stored["token"], stored["tier"], stored["verdicts"][0]["check"]) == (
        "InsufficientCapacity",
        "capacity",
        "noRoom",
    )
    assert Reason.model_validate(stored) == reason
    for one in (*Token, *Check):
        assert one == one.kind.code == str(one)
        assert type(one)(one.value) is one


def test_no_two_codes_are_equal() -> None:
    assert len({token.kind.code for token in Token}) == len(Token)
    assert len({check.kind.code for check in Check}) == len(Check)


def test_checks_are_in_the_order_of_tiers_that_they_lead_to() -> None:
    """Checks that waiting can mend come before those that only a change of the job mends."""
    never = [check.token is not None and check.token.tier is Tier.CANNOT_RUN for check in Check]
    assert never == sorted(never)
    assert [check.precedence for check in Check] == list(range(len(Check)))


def test_the_reference_lists_the_registry() -> None:
    script = runpy.run_path(str(_SCRIPT))
    page = script["PAGE"].read_text()
    assert page == script["render"](page), "run scripts/reason-reference"
    assert all(f"| `{one}` |" in page for one in (*Token, *Check))


def test_pages_that_the_registry_names_exist() -> None:
    assert all((ROOT / "docs" / token.kind.see).is_file() for token in Token if token.kind.see)


def test_the_page_of_burst_policies_lists_their_reasons() -> None:
    page = (ROOT / "docs/reference/burst-policies.md").read_text()
    listed = re.findall(r"^\| `(Burst\w+)` \|", page, re.MULTILINE)
    assert listed == [token for token in Token if token.kind.sentence == NOT_BY_POLICY]
