"""Descriptions of models' fields for the OpenAPI document: the strings below the fields in the source.

They are read when the document is made. pydantic's ``use_attribute_docstrings`` would read them when a model is defined, which every
start of a process would pay for.
"""

import ast
import inspect
import sys
from collections.abc import Mapping
from functools import cache

from pydantic import BaseModel


@cache
def descriptions_of(model: type[BaseModel]) -> Mapping[str, str]:
    """Return the description of each field of a model that has one; a field that is declared again may have another one."""
    found: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if issubclass(base, BaseModel) and base is not BaseModel:
            found |= _of_module(base.__module__).get(base.__qualname__, {})
    return found


@cache
def _of_module(name: str) -> Mapping[str, Mapping[str, str]]:
    """Return the strings below the fields of a module's classes."""
    try:
        source = inspect.getsource(sys.modules[name])
    except (OSError, TypeError, KeyError):
        return {}  # a model without a source, such as one of a test
    return {node.name: _of_class(node) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef)}


def _of_class(node: ast.ClassDef) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for field, text in zip(node.body, node.body[1:], strict=False):
        is_field = isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if is_field and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            assert isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)  # noqa: S101, PT018 - for mypy
            found[field.target.id] = " ".join(str(text.value.value).split()).replace("``", "`")
    return found
