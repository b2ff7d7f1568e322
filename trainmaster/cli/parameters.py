"""Tables of parameter sets: CSV with a header line, or YAML and JSON with a list of mappings."""

import csv
import io
from typing import Any

import yaml

from trainmaster.cli.errors import UsageError
from trainmaster.cli.yaml_files import read_text
from trainmaster.protocol.yaml_text import load, place_of


def read_table(name: str) -> list[dict[str, Any]]:
    """Return a file's parameter sets, ``-`` being stdin. CSV values are text.

    Raises UsageError with the place of a mistake, and ProblemError for a file that is not text in UTF-8.
    """
    text = read_text(name)
    sets = _from_csv(name, text) if name.endswith(".csv") else _from_yaml(name, text)
    if not sets:
        raise UsageError(f"{name}: the table is empty: it has no parameter set")
    return sets


def _from_csv(name: str, text: str) -> list[dict[str, Any]]:
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    sets = []
    began = 1
    try:
        names = reader.fieldnames = [one.strip() for one in reader.fieldnames or ()]
        if "" in names:
            raise UsageError(f"{name}: line 1: column {names.index('') + 1} has no name")
        twice = next((one for index, one in enumerate(names) if one in names[:index]), None)
        if twice is not None:
            raise UsageError(f"{name}: line 1: the column {twice!r} is given twice")
        if len(names) == 1 and (signs := [sign for sign in ";\t" if sign in names[0]]):
            found = {";": "semicolons", "\t": "tabs"}[signs[0]]
            raise UsageError(f"{name}: line 1: columns are separated by commas, here there are {found}: {names[0]!r}")
        began = reader.line_num + 1
        for row in reader:
            began = reader.line_num + 1
            if None in row or None in row.values():
                has = sum(value is not None for value in row.values()) + len(row.get(None, ())) - (None in row)
                raise UsageError(
                    f"{name}: line {reader.line_num} has {has} {'value' if has == 1 else 'values'}, and the first line has"
                    f" {len(names)} {'name' if len(names) == 1 else 'names'}"
                )
            sets.append(dict(row))
    except csv.Error as error:
        found = _CSV_ERRORS.get(str(error), str(error))
        raise UsageError(f"{name}: line {began}: {found}") from error
    return sets


_CSV_ERRORS = {
    "unexpected end of data": 'a value begins with " and has no " at its end',
    "',' expected after '\"'": 'a value in double quotes is not followed by a comma; a " in it is written twice',
}
"""In place of what the csv module says."""


def _from_yaml(name: str, text: str) -> list[dict[str, Any]]:
    try:
        value = load(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise UsageError(f"{name}: {place_of(error)}") from error
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise UsageError(f"{name}: a table has to be a list of mappings from names to values, or a .csv file")
    return value
