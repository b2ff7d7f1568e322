"""Each statement of the store whose rows have a type gives the columns that the type has, on a real Postgres."""

import ast
import importlib
import inspect
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

from trainmaster.protocol.ids import RunRef
from trainmaster_dispatcher import store
from trainmaster_dispatcher.domain.deadlines import DeadlineNote
from trainmaster_dispatcher.domain.series import SeriesKey
from trainmaster_dispatcher.store import declarations, event_feed, jobs, keys, scheduling, tenants
from trainmaster_dispatcher.store.database import ColumnsError, Database, Transaction

_TYPED = {"all_of", "first_of", "one_of", "pages_of"}
_MORNING = datetime(2026, 1, 1, tzinfo=UTC)
_EVENT = event_feed.FeedEvent(
    1, 1, 3, _MORNING, "held", [], None, None, "", "", None, "a", "root", "normal", None, None, None, _MORNING
)

_ARGUMENTS: dict[str, Any] = {
    "keys": "SELECT j.id FROM jobs j",
    "named": {"limit": 1},
    "after": 0,
    "by": "job",
    "by_id": ("job", 7),
    "array": 1,
    "before": 7,
    "begin": _MORNING,
    "bucket": "day",
    "class_id": 1,
    "classified": [scheduling.Classified(7, 1, 1, 1, "ann")],
    "cluster_id": 1,
    "columns": ["queue_id", "labels"],
    "cursor": scheduling.Cursor(0),
    "elements": [0],
    "attempt": 1,
    "digests": ["0" * 64],
    "upload": "u-1",
    "refs": [RunRef(1, 1)],
    "end": datetime(2026, 2, 1, tzinfo=UTC),
    "events": [_EVENT],
    "first": 1,
    "groups": ["g"],
    "holder": 1,
    "ids": [1],
    "index": 0,
    "issuer": "https://sso.example.com",
    "job_id": 1,
    "key": 1,
    "job_ids": [1],
    "key_id": 1,
    "key_ids": [1],
    "kind": "Queue",
    "grain": 60,
    "labels": [SeriesKey("cluster.cpu.used", "c1")],
    "last": 9,
    "link_hash": b"h",
    "session_hash": b"h",
    "letter": 1,
    "limit": 5,
    "many": 1,
    "most_percent": 5,
    "of_queues": [1],
    "most": 5,
    "name": "c1",
    "note": DeadlineNote.MISSED,
    "now": {"path": "root"},
    "objects": [declarations.ObjectName("Queue", "root")],
    "overlap_seconds": 60.0,
    "path": "root",
    "place": event_feed.FeedPlace(1, 1, 1),
    "paths": ["root"],
    "policy_ids": [1],
    "promises": {1: 60.0},
    "queue_id": 1,
    "queue_ids": [1],
    "ref": RunRef(1, 1),
    "revision": 1,
    "role": "main",
    "seconds": 60.0,
    "seq": 0,
    "shape_id": 1,
    "since": _MORNING,
    "since_xid": 1,
    "table": tenants.QUEUES,
    "states": [],
    "steps": [0],
    "version": 1,
    "workflow_id": 1,
    "group_id": 1,
    "namespace": None,
    "names": ["c1"],
    "simulation": 1,
    "subject": "1001",
    "submissions": [event_feed.JobBlock(1, 1, 1)],
    "until_xid": 9,
    "user": "ann",
    "with_marks": True,
    "xmin": 5,
}
_WANTED: dict[str, list[Any]] = {
    "element_jobs": [[], [(0, 3)]],
    "jobs": [
        jobs.Filter(),
        jobs.Filter((1,), ("queued",), "a*", 1, {"team": "a"}, 1, ("root",), search=jobs.Search("a=b", 1, (1,))),
        jobs.Filter(owned=("c1",)),
        jobs.Filter((1,), ("queued",), group_ids=(1,)),
        jobs.Filter(
            label_conditions=(jobs.LabelCondition("a", ("b", "c")), jobs.LabelCondition("d", None, is_negated=True)),
            hides_deleted=True,
        ),
    ],
    "sessions": [jobs.Filter(), jobs.Filter((1,), submitter="root")],
    "keys": [keys.AuditFilter(), keys.AuditFilter("a", "b", "c", _MORNING, _MORNING, ("c1",))],
}
"""Values of ``wanted`` by module."""


def _typed_functions() -> Iterator[tuple[ModuleType, str]]:
    """Yield the public functions of the store that name the type of their rows, in their own body."""
    for path in sorted(Path(store.__file__).parent.glob("*.py")):
        module = importlib.import_module(f"{store.__name__}.{path.stem}")
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and any(
                isinstance(one, ast.Attribute) and one.attr in _TYPED for one in ast.walk(node)
            ):
                yield module, node.name


def _calls(module: ModuleType, function: Callable[..., Any]) -> Iterator[dict[str, Any]]:
    """Yield arguments for each form of a function's statement."""
    parameters = list(inspect.signature(function).parameters.values())[1:]
    required = [one for one in parameters if one.default is inspect.Parameter.empty]
    given = {one.name: _ARGUMENTS[one.name] for one in required if one.name != "wanted"}
    wholes = (
        [{**given, "wanted": wanted} for wanted in _WANTED[module.__name__.rpartition(".")[2]]]
        if "wanted" in {one.name for one in required}
        else [given]
    )
    for whole in wholes:
        yield whole
        yield from ({**whole, name: None} for name in ("before", "queue_ids", "holder") if name in whole)
        if "bucket" in whole:
            yield {**whole, "bucket": "all", "columns": []}


async def test_the_columns_of_each_statement_are_the_fields_of_its_type(database_url: str) -> None:
    database = Database(database_url)
    found, failed = list(_typed_functions()), dict[str, str]()
    for module, name in found:
        function = getattr(module, name)
        for arguments in _calls(module, function):
            try:
                async with database.transaction() as tx:
                    await _run(tx, function, arguments)
            except ColumnsError as error:
                failed[f"{module.__name__}.{name}"] = str(error)
    await database.close()
    assert not failed
    assert len(found) > 35, "the store's functions are found"


async def _run(tx: Transaction, function: Callable[..., Any], arguments: dict[str, Any]) -> None:
    found = function(tx, **arguments)
    if inspect.isasyncgen(found):
        async for _ in found:
            pass
    else:
        await found
