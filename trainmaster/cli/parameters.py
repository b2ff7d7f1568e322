"""Tables of parameter sets: CSV with a header line, or YAML and JSON with a list of mappings."""

import csv
import sys
from pathlib import Path
from typing import Any

import yaml

from trainmaster.cli.errors import UsageError


def read_table(name: str) -> list[dict[str, Any]]:
    """Return a file's parameter sets, ``-`` being stdin. CSV values are text. Raises UsageError with the place of a mistake."""
    try:
        text = sys.stdin.read() if name == "-" else Path(name).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{name}: {error}") from error
    sets = _from_csv(name, text) if name.endswith(".csv") else _from_yaml(name, text)
    if not sets:
        raise UsageError(f"{name}: the table is empty: it has no parameter set")
    return sets


def _from_csv(name: str, text: str) -> list[dict[str, Any]]:
    reader = csv.DictReader(text.splitlines(), strict=True)
    sets = []
    try:
        for row in reader:
            if None in row or None in row.values():
                many = len(reader.fieldnames or ())
                raise UsageError(
                    f"{name}: line {reader.line_num} does not have {many} values, one for each name of the first line"
                )
            sets.append(dict(row))
    except csv.Error as error:
        raise UsageError(f"{name}: line {reader.line_num}: {error}") from error
    return sets


def _from_yaml(name: str, text: str) -> list[dict[str, Any]]:
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UsageError(f"{name}: {error}") from error
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise UsageError(f"{name}: a table has to be a list of mappings from names to values, or a .csv file")
    return value
