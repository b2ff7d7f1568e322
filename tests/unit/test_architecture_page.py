"""Pages that name code: the walks of docs/explanation/architecture.md and the types of the glossary are where the pages say."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_BELOW = {"": "trainmaster", "D": "dispatcher/trainmaster_dispatcher", "A": "agent/trainmaster_agent"}
_HOP = re.compile(r"\| (?:([DA]) )?`([\w/]+\.py)`(?: `(\w+)`)? \|")


def hops() -> list[tuple[str, str, str]]:
    page = (ROOT / "docs/explanation/architecture.md").read_text()
    section = page.split("## Six walks through the code")[1].split("\n## ")[0]
    return [(found[1] or "", found[2], found[3] or "") for found in _HOP.finditer(section)]


def test_there_are_six_walks_of_several_hops() -> None:
    assert len(hops()) >= 30


@pytest.mark.parametrize(("below", "path", "name"), hops())
def test_a_hop_is_where_the_page_says(below: str, path: str, name: str) -> None:
    file = ROOT / _BELOW[below] / path
    assert file.is_file()
    if name:
        assert re.search(rf"^\s*(?:async )?(?:def|class) {name}\b", file.read_text(), re.MULTILINE), name


def types_of_the_glossary() -> list[str]:
    rows = (ROOT / "docs/explanation/glossary.md").read_text().split("|---|---|---|---|\n")[1].splitlines()
    return sorted({name for row in rows for name in re.findall(r"`([A-Z][A-Za-z]+)[`.]", row.split("|")[3])})


@pytest.mark.parametrize("name", types_of_the_glossary())
def test_a_type_of_the_glossary_is_in_the_code(name: str) -> None:
    folders = (ROOT / folder for folder in _BELOW.values())
    assert any(
        re.search(rf"^(class {name}\b|{name} = )", file.read_text(), re.MULTILINE)
        for folder in folders
        for file in folder.rglob("*.py")
    )
