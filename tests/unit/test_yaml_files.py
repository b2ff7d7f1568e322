"""Text files of people: encodings, and YAML in which a scalar is what a person means, keys are unique, and aliases stay small."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.forbidden_words import forbidden
from trainmaster.cli.documents import read_documents
from trainmaster.cli.errors import UsageError
from trainmaster.cli.parameters import read_table
from trainmaster.cli.yaml_files import read_config, read_text
from trainmaster.fake_cluster.fleet import Fleet
from trainmaster.protocol.documents import read_declared
from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.protocol.yaml_text import load, load_all, place_of

MEANT: dict[str, Any] = {
    "1": 1,
    "-5": -5,
    "0": 0,
    "1.5": 1.5,
    "1e3": 1000.0,
    "true": True,
    "False": False,
    "null": None,
    "~": None,
    "yes": "yes",
    "on": "on",
    "n": "n",
    "1:30:00": "1:30:00",
    "18:00": "18:00",
    "010": "010",
    "0o10": "0o10",
    "0x1F": "0x1F",
    "0b11": "0b11",
    "1_000": "1_000",
    "2026-11-28": "2026-11-28",
    "2026-11-28T08:00:00Z": "2026-11-28T08:00:00Z",
    "=": "=",
    "1.2.3": "1.2.3",
    "10m": "10m",
}
"""Scalars without quotes, and their values."""


@pytest.mark.parametrize("text", MEANT)
def test_a_scalar_is_what_a_person_means_by_it(text: str) -> None:
    found = load(f"a: {text}\n")["a"]
    assert (type(found), found) == (type(MEANT[text]), MEANT[text])


BOMB = "a: &a [{}]\n".format(", ".join(["xxxxxxxxxx"] * 10)) + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n" for before, name in zip("abcde", "bcdef", strict=True)
)
BAD: dict[str, tuple[str, str]] = {
    "a key twice": ("name: a\nqueue: b\nname: c\n", "line 3, column 1: the key 'name' is given twice, first in line 1"),
    "a key twice inside": ("a:\n  - b: 1\n    b: 2\n", "line 3, column 5: the key 'b' is given twice, first in line 2"),
    "a key twice in braces": ("a: {b: 1, b: 2}\n", "line 1, column 11: the key 'b' is given twice, first in line 1"),
    "a number and its text as keys": ("1: a\n'1': b\n", "line 2, column 1: the key '1' is given twice"),
    "a list as a key": ("[1]: a\n", "line 1, column 1: a key has to be a text"),
    "a bomb": (BOMB, "line 1, column 1: aliases expand this document to"),
    "an alias of what it is in": ("a: &x [*x]\n", "an alias stands for what it is a part of"),
    "an alias of nothing": ("a: *x\n", "line 1, column 4: found undefined alias"),
    "a tab": ("a:\n\tb: 1\n", "line 2, column 1: a tab cannot indent YAML; write spaces"),
    "a wrong indentation": ("a: 1\n  b: 2\n", "line 2, column 4: a ':' is not expected here"),
    "an indentation of nothing": ("a:\n    b: 1\n  c: 2\n", "line 3, column 3: the line is not indented like those"),
    "an open quote": ("a: 'b\n", "a quote or a bracket is not closed"),
    "an open list": ("a: [b\n", "a ',' or ']' is missing"),
    "a tag": ("a: !!python/object:os.system {}\n", "line 1, column 4: the tag is not known"),
    "a control character": ("a: \x01\n", "it has the character U+0001, which text may not have"),
    "a well": ("[" * 5000 + "]" * 5000, "it is nested too deep"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_mistake_is_told_with_its_line(case: str) -> None:
    text, said = BAD[case]
    with pytest.raises((yaml.YAMLError, RecursionError)) as caught:
        list(load_all(text))
    assert place_of(caught.value).find(said) >= 0, place_of(caught.value)
    assert not forbidden(place_of(caught.value))


def test_aliases_that_stay_small_are_read_as_are_merged_keys() -> None:
    text = "base: &base {cpu: 1, memory: 2}\nsame: *base\nmore: {<<: *base, cpu: 3}\nagain: {<<: *base, cpu: 4}\n"
    assert load(text) == {
        "base": {"cpu": 1, "memory": 2},
        "same": {"cpu": 1, "memory": 2},
        "more": {"cpu": 3, "memory": 2},
        "again": {"cpu": 4, "memory": 2},
    }


def test_a_large_document_without_aliases_is_no_bomb() -> None:
    text = "".join(f"k{n}: {'x' * 100}\n" for n in range(15_000))
    assert len(load(text)) == 15_000


def written(folder: Path, name: str, data: bytes) -> str:
    (folder / name).write_bytes(data)
    return str(folder / name)


JOB = "kind: Queue\npath: a\n"
ENCODED: dict[str, tuple[bytes, str]] = {
    "UTF-16": (JOB.encode("utf-16"), "it is text in UTF-16; save it as UTF-8"),
    "UTF-16 without a mark": (JOB.encode("utf-16-le"), "line 1 has a NUL character"),
    "Latin 1": (b"kind: Queue\ndescription: \xe9\n", "line 2: it is not text in UTF-8"),
    "an archive": (b"\x1f\x8b\x08\x00\xff", "line 1: it is not text in UTF-8"),
    "a huge file": (b" " * (32 * 2**20 + 1), "it has more than 32 MiB"),
}


@pytest.mark.parametrize("case", ENCODED)
@pytest.mark.parametrize("name", ["a.yaml", "a.json", "a.csv"])
def test_a_file_that_is_no_text_in_utf_8_is_named_with_the_cause(tmp_path: Path, case: str, name: str) -> None:
    data, said = ENCODED[case]
    file = written(tmp_path, name, data)
    with pytest.raises(ProblemError) as caught:
        read_table(file) if name.endswith("csv") else read_documents([file], {})
    assert caught.value.code is Code.MALFORMED_BODY
    assert file in caught.value.detail
    assert said in caught.value.detail


def test_a_byte_order_mark_of_utf_8_is_no_part_of_the_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_text(written(tmp_path, "a.yaml", b"\xef\xbb\xbfa: 1\n")) == "a: 1\n"
    assert read_table(written(tmp_path, "a.csv", b"\xef\xbb\xbflr,seed\r\n0.1,1\r\n")) == [{"lr": "0.1", "seed": "1"}]
    monkeypatch.setattr("sys.stdin", io.StringIO("\ufeffa: 1\n"))
    assert read_text("-") == "a: 1\n"


TABLES: dict[str, tuple[str, str, str]] = {
    "a column twice": ("t.csv", "lr,seed,lr\n1,2,3\n", "line 1: the column 'lr' is given twice"),
    "a key twice": ("t.yaml", "- lr: 1\n  lr: 2\n", "line 2, column 3: the key 'lr' is given twice, first in line 1"),
    "no list": ("t.yaml", "lr: 1\n", "a table has to be a list of mappings"),
    "too few values": ("t.csv", "lr,seed\n1\n", "line 2 has 1 value, and the first line has 2 names"),
    "nothing": ("t.csv", "", "the table is empty"),
    "a column without a name": ("t.csv", "lr, ,seed\n1,2,3\n", "line 1: column 2 has no name"),
    "an open quote": ("t.csv", 'lr,seed\n1,2\n"3,4\n5,6\n', 'line 3: a value begins with " and has no " at its end'),
    "a quote in a quoted value": (
        "t.csv",
        'lr,seed\n"a"b,2\n',
        "line 2: a value in double quotes is not followed by a comma",
    ),
}


@pytest.mark.parametrize("case", TABLES)
def test_a_table_with_a_mistake_is_refused_with_its_line(tmp_path: Path, case: str) -> None:
    name, text, said = TABLES[case]
    file = written(tmp_path, name, text.encode())
    with pytest.raises(UsageError) as caught:
        read_table(file)
    assert str(caught.value).startswith(f"{file}: ")
    assert said in str(caught.value)


def test_values_of_a_table_keep_blanks_and_line_breaks_and_names_have_none_around_them(tmp_path: Path) -> None:
    file = written(tmp_path, "t.csv", b'lr, text\r\n0.1,"two\nlines"\r\n 2,\xe2\x80\xa8\r\n')
    assert read_table(file) == [{"lr": "0.1", "text": "two\nlines"}, {"lr": " 2", "text": "\u2028"}]


@pytest.mark.parametrize("read", [read_table, lambda file: read_documents([file], {})])
def test_a_file_that_does_not_exist_is_a_sentence(read: Any, tmp_path: Path) -> None:
    file = str(tmp_path / "gone.csv")
    with pytest.raises(UsageError) as caught:
        read(file)
    assert str(caught.value) == f"cannot read {file}: No such file or directory"


JSON_BAD: dict[str, tuple[str, str]] = {
    "a field twice": ('{"kind": "Queue", "path": "a", "path": "b"}', "path is given twice"),
    "a field twice inside": ('{"a": [{"b.c": {"d": 1, "d": 1}}]}', 'a[0]["b.c"].d is given twice'),
    "no JSON": ('{"a": 1,}', "line 1, column 9: expecting property name enclosed in double quotes"),
    "no number": ('{"a": NaN}', "NaN is no number of JSON"),
}


@pytest.mark.parametrize("case", JSON_BAD)
def test_json_with_a_mistake_is_refused_with_its_place(tmp_path: Path, case: str) -> None:
    text, said = JSON_BAD[case]
    file = written(tmp_path, "a.json", text.encode())
    with pytest.raises(ProblemError) as caught:
        read_documents([file], {})
    assert caught.value.detail == f"{file}: {said}"


def test_two_documents_for_one_object_are_a_mistake_that_names_both(tmp_path: Path) -> None:
    one = written(tmp_path, "one.yaml", b"kind: Queue\npath: a\n---\nkind: Queue\npath: b\n")
    two = written(tmp_path, "two.yaml", b"kind: Queue\npath: a\nweight: 2\n")
    with pytest.raises(ProblemError) as caught:
        read_declared(read_documents([one, two], {}))
    (mistake,) = caught.value.mistakes
    assert mistake.path == f"{two}: path"
    assert mistake.message == f"queue 'a' is declared twice, first in {one} document 1"


def test_two_jobs_of_one_name_are_no_mistake(tmp_path: Path) -> None:
    job = {"kind": "Job", "name": "a", "queue": "q", "roles": [{"name": "m", "template": {"command": ["true"]}}]}
    file = written(tmp_path, "jobs.json", json.dumps([job, job]).encode())
    assert read_declared(read_documents([file], {})) == []


def test_what_a_queue_can_never_mean_is_refused_before_it_is_sent(tmp_path: Path) -> None:
    file = written(tmp_path, "a.yaml", b"kind: Queue\npath: a\nallowedKinds: []\n")
    with pytest.raises(ProblemError) as caught:
        read_declared(read_documents([file], {}))
    (mistake,) = caught.value.mistakes
    assert mistake.path == f"{file}: allowedKinds"
    assert "must name at least one of private" in mistake.message


def test_the_configuration_of_a_process_is_told_every_mistake(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text("clusters: 7\nsed: 1\n")
    with pytest.raises(UsageError) as caught:
        read_config(Fleet, file)
    assert f"{file}: clusters: must be a list, not 7" in str(caught.value)
    assert f"{file}: sed: this field is not known; did you mean seed?" in str(caught.value)
