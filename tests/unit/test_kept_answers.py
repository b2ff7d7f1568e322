"""Answers without a key are made once: by one caller for all, within a second, and not again for whoever has them."""

import asyncio
import gzip

import pytest
from starlette.requests import Request

from trainmaster_dispatcher.api import kept_answers
from trainmaster_dispatcher.api.kept_answers import KeptDocument, KeptForASecond


class Maker:
    """Makes a number, once it may."""

    def __init__(self) -> None:
        self.calls = 0
        self.may = asyncio.Event()

    async def __call__(self) -> int:
        self.calls += 1
        await self.may.wait()
        if self.calls == 2:
            raise RuntimeError("the second one")
        return self.calls


async def test_all_who_ask_within_a_second_get_what_was_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_answers, "KEPT_SECONDS", 3600.0)
    make = Maker()
    kept = KeptForASecond(make)
    first, *others = [asyncio.create_task(kept.get()) for _ in range(50)]
    await asyncio.sleep(0)
    first.cancel()  # it began the work, for which the others wait
    await asyncio.sleep(0)
    make.may.set()
    assert set(await asyncio.gather(*others)) == {1}
    assert first.cancelled()
    assert await kept.get() == 1
    assert make.calls == 1


async def test_a_failure_is_told_to_all_and_forgotten_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_answers, "KEPT_SECONDS", 0.0)
    make = Maker()
    make.may.set()
    kept = KeptForASecond(make)
    assert await kept.get() == 1
    failed = await asyncio.gather(*(kept.get() for _ in range(5)), return_exceptions=True)
    assert [str(one) for one in failed] == ["the second one"] * 5
    assert await kept.get() == 3


def asking(**headers: str) -> Request:
    raw = [(name.replace("_", "-").encode(), text.encode()) for name, text in headers.items()]
    return Request({"type": "http", "method": "GET", "path": "/", "headers": raw})


@pytest.mark.parametrize(
    ("accepted", "is_short"),
    [
        ("gzip", True),
        ("deflate, GZIP;q=0.5", True),
        ("*", True),
        ("br, gzip;q=1.0, x", True),
        ("gzip;q=0", False),
        ("gzip; q=0.000, br", False),
        ("identity", False),
        ("", False),
        ("x-gzip", False),
    ],
)
def test_a_document_is_compressed_where_that_is_accepted(accepted: str, is_short: bool) -> None:
    document = KeptDocument(b"text " * 1000, "text/plain", {"X-One": "1"})
    answer = document.answer(asking(accept_encoding=accepted))
    assert (answer.headers.get("content-encoding") == "gzip") is is_short
    body = bytes(answer.body)
    assert (gzip.decompress(body) if is_short else body) == b"text " * 1000
    assert answer.headers["vary"] == "Accept-Encoding"
    assert answer.headers["x-one"] == "1"
    assert answer.headers["content-length"] == str(len(body))


def test_who_has_a_document_gets_no_other() -> None:
    document = KeptDocument(b"text", "text/plain")
    short, whole = (document.answer(asking(accept_encoding=one)).headers["etag"] for one in ("gzip", "identity"))
    assert short != whole
    for known in (short, whole, f"W/{whole}", f'"other", {short}', "*"):
        answer = document.answer(asking(if_none_match=known))
        assert (answer.status_code, answer.body) == (304, b"")
        assert answer.headers["etag"] == whole
    assert document.answer(asking(if_none_match='"other"')).status_code == 200
