"""The execution of a cell of a notebook in a member: pickled by value, as images have no trainmaster.

Standard library only at import. Everything that the notebook gets has to fit into the results of the job.
"""

from __future__ import annotations

import ast
import io
import linecache
import os
import sys
import zlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MOST_BYTES = 3040
"""The most bytes of an outcome, pickled and compressed, that results have space for in base64."""
_MOST_TEXT = 1500
_NAME = "<cell>"
_PLAIN = (type(None), bool, int, float, complex, str, bytes)
_DEEPEST = 6
_DOTS_PER_INCH = (72, 50, 36)


def run_cell(source: str, variables: Mapping[str, Any], wanted: list[str], any_class: bool) -> dict[str, Any]:
    """Execute a cell with ``variables``; return the ``wanted`` ones, the value of its last expression and its figures.

    ``any_class``: the notebook loads objects of any class. Otherwise of the value its text is returned where it is of another class
    than Python's own.
    """
    os.environ.setdefault("MPLBACKEND", "Agg")
    linecache.cache[_NAME] = (len(source), None, source.splitlines(keepends=True), _NAME)  # for tracebacks
    tree = ast.parse(source, _NAME)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    namespace = {"__name__": "__main__", **variables}
    exec(compile(tree, _NAME, "exec"), namespace)  # noqa: S102 - what the user has written
    value = None
    if isinstance(last, ast.Expr):
        value = eval(compile(ast.Expression(last.value), _NAME, "eval"), namespace)  # noqa: S307 - the same
    found: dict[str, Any] = {"out": {name: _output(name, namespace, any_class) for name in wanted}, "notes": []}
    if value is not None:
        _add_value(found, value, any_class)
    for number, pictures in _figures():
        _add_figure(found, number, pictures)
    return found


def _output(name: str, namespace: dict[str, Any], any_class: bool) -> Any:
    if name not in namespace:
        raise NameError(f"the cell has set no variable {name}, which --out names")
    value = namespace[name]
    if not any_class and not _is_plain(value):
        raise TypeError(
            f"{name} is a {type(value).__name__}: --out brings back numbers, texts, lists, tuples, sets and dictionaries,"
            " and other objects with --unpickle"
        )
    return value


def _is_plain(value: Any, depth: int = 0) -> bool:
    """Return whether a value has objects of Python's own types alone, and numbers of numpy and PyTorch, which become such."""
    kind = type(value)
    if kind in _PLAIN:
        return True
    if kind in (list, tuple, set, frozenset, dict):
        inner = [*value, *value.values()] if kind is dict else value
        return all(_is_plain(one, depth + 1) for one in inner)
    return depth <= _DEEPEST and getattr(value, "shape", None) == () and callable(getattr(value, "item", None))


def _fits(found: dict[str, Any]) -> bool:
    dumps = sys.modules["cloudpickle"].dumps  # the member has it, as it has unpickled this function
    return len(zlib.compress(dumps(found), 9)) <= MOST_BYTES


def _add_value(found: dict[str, Any], value: Any, any_class: bool) -> None:
    if any_class or _is_plain(value):
        found["value"] = value
        if _fits(found):
            return
        del found["value"]
        found["notes"].append(
            f"the value, a {type(value).__name__}, is too large for the results of a job: this is how its text begins"
        )
    text = repr(value)
    found["shown"] = {"text/plain": text if len(text) <= _MOST_TEXT else text[:_MOST_TEXT] + "..."}
    html = value._repr_html_() if callable(getattr(value, "_repr_html_", None)) else None
    if isinstance(html, str) and _fits(dict(found, shown=dict(found["shown"], **{"text/html": html}))):
        found["shown"]["text/html"] = html


def _add_figure(found: dict[str, Any], number: int, pictures: Iterator[bytes]) -> None:
    figures = found.setdefault("figures", [])
    for picture in pictures:
        figures.append(picture)
        if _fits(found):
            return
        figures.pop()
    found["notes"].append(
        f"figure {number} is too large for the results of a job, which have {MOST_BYTES} bytes for all figures and values:"
        " save it to a volume with savefig"
    )


def _figures() -> Iterator[tuple[int, Iterator[bytes]]]:
    """Yield the open figures of matplotlib, each with its pictures from the best one on."""
    pyplot: Any = sys.modules.get("matplotlib.pyplot")
    for number in pyplot.get_fignums() if pyplot is not None else ():
        yield number, _pictures(pyplot.figure(number))


def _pictures(figure: Any) -> Iterator[bytes]:
    from PIL import Image  # comes with matplotlib

    for density in _DOTS_PER_INCH:
        drawn, small = io.BytesIO(), io.BytesIO()
        figure.savefig(drawn, format="png", dpi=density)
        Image.open(drawn).convert("RGB").quantize(16).save(small, "PNG", optimize=True)
        yield small.getvalue()
