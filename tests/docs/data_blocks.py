"""Blocks that are no commands, checked by the models, schemas and files that they are of."""

import ast
import builtins
import importlib
import importlib.util
import inspect
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import yaml
from pydantic import ValidationError

import trainmaster
from tests import compose_file
from tests.docs.commands import chart_mistakes
from tests.docs.pages import ROOT, Block
from trainmaster.client.config import Context
from trainmaster.fake_cluster.fleet import Fleet
from trainmaster.protocol.errors import ProblemError
from trainmaster.protocol.jobs import JobSpec
from trainmaster.protocol.resource_kinds import KINDS
from trainmaster.protocol.schedules import ScheduleSpec
from trainmaster.protocol.workflows import WorkflowSpec
from trainmaster_agent.runtime.kubernetes.config import KubernetesCluster
from trainmaster_agent.runtime.local.config import LocalCluster
from trainmaster_dispatcher.services.issuers import IssuersFile
from trainmaster_dispatcher.whatif.trace import read_table

LANGUAGES = ("yaml", "json", "python", "csv", "dockerfile")
_JOB: Mapping[str, Any] = {
    "kind": "Job",
    "name": "job",
    "queue": "default",
    "roles": [{"name": "main", "template": {"command": ["true"], "resources": {"cpu": "1"}}}],
}
_WORKFLOW: Mapping[str, Any] = {"kind": "Workflow", "name": "flow", "queue": "default"}
_MARKER = re.compile(r"@[A-Z]+@")


def mistakes_in(block: Block) -> list[str]:
    """Return what is wrong in a block of data or of Python."""
    form = block.mark("checked as")
    if form is not None and (ROOT / form).is_file():
        same = [_without_comments((ROOT / form).read_text()), _without_comments(block.text)]
        return [] if same[0] == same[1] else [f"{form} has another text"]
    if form is not None and form not in FORMS:
        return [f"'checked as' names {form!r}, neither a file of the checkout nor one of: {', '.join(FORMS)}"]
    try:
        if block.language == "python":
            return list(_python(block.text))
        if block.language == "csv":
            return [] if block.mark("file") else FORMS[form or "workload"](block.text)
        if block.language == "json":
            json.loads(block.text)
            return []
        if block.language == "dockerfile":
            return ["'checked as' names no file of the checkout"]
        documents = [one for one in yaml.safe_load_all(_MARKER.sub("1", block.text)) if one is not None]
    except (SyntaxError, ValueError, yaml.YAMLError) as error:
        return [str(error)]
    return [mistake for one in documents for mistake in _yaml(one, form)]


def _without_comments(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip() and not line.startswith("#")]


def _yaml(document: Any, form: str | None) -> list[str]:
    if form is not None:
        return FORMS[form](document)
    kind = document.get("kind") if isinstance(document, dict) else None
    models = {"Job": JobSpec, "Session": JobSpec, "Schedule": ScheduleSpec, "Workflow": WorkflowSpec} | {
        one.kind: one.spec for one in KINDS.values()
    }
    if kind in models:
        return _of_model(models[kind], document)
    return [f"this document has no kind of Trainmaster; say before it what it is, by 'checked as': {', '.join(FORMS)}"]


def _of_model(model: Any, value: Any) -> list[str]:
    try:
        model.model_validate(value)
    except ValidationError as error:
        return [f"{'.'.join(str(part) for part in one['loc'])}: {one['msg']}" for one in error.errors()]
    return []


def _with_jobs(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields of a workflow with a job for each step, and one step that others may follow."""
    job = {"roles": _JOB["roles"]}
    return {**value, "steps": [{"name": "train", "job": job}, *({"job": job, **one} for one in value.get("steps", ()))]}


def _override(value: Any) -> list[str]:
    services = compose_file.read()["services"]
    return [f"docker-compose.yml has no service {name}" for name in value["services"] if name not in services]


def _workload(text: str) -> list[str]:
    try:
        trace = read_table("table", io.StringIO(text), "default", "asked")
    except ProblemError as error:
        return [str(error)]
    return [] if trace.jobs else ["it has no jobs"]


FORMS: Mapping[str, Callable[[Any], list[str]]] = {
    "fields of a job": lambda value: _of_model(JobSpec, {**_JOB, **value}),
    "fields of a workflow": lambda value: _of_model(WorkflowSpec, {**_WORKFLOW, **_with_jobs(value)}),
    "fleet": lambda value: _of_model(Fleet, value),
    "agent.yaml": lambda value: _of_model(KubernetesCluster, value),
    "local cluster": lambda value: _of_model(LocalCluster, value),
    "configuration of the command line": lambda value: [
        mistake for one in value.get("contexts", {"default": value}).values() for mistake in _unknown(one)
    ],
    "values of the agent's chart": lambda value: chart_mistakes("agent", value),
    "values of the dispatcher's chart": lambda value: chart_mistakes("dispatcher", value),
    "config.capacity of the agent's chart": lambda value: chart_mistakes("agent", {"config": {"capacity": value}}),
    "file of issuers": lambda value: _of_model(IssuersFile, value),
    "override of docker-compose.yml": _override,
    "workload": _workload,
}
"""What a document without a kind of its own may be, as the mark 'checked as' names it."""


def _unknown(context: Mapping[str, Any]) -> list[str]:
    return [f"a context has no {name}" for name in context if name not in inspect.signature(Context).parameters]


def _python(text: str) -> Iterator[str]:
    """Find what does not compile or is not in the SDK: modules, names, methods of clients and their parameters."""
    compile(text, "block", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    known = {*dir(builtins), *trainmaster.__all__}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0].startswith("trainmaster"):
            yield from _imported(node)
        elif isinstance(node, ast.Call):
            yield from _called(node)
        if isinstance(node, ast.Import | ast.ImportFrom):
            known |= {one.asname or one.name.partition(".")[0] for one in node.names}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Name) and node.id[0].isupper() and not node.id.isupper() and node.id not in known:
            yield f"the SDK has no {node.id}"


def _imported(node: ast.ImportFrom) -> Iterator[str]:
    module_name = node.module or ""
    try:
        module = importlib.import_module(module_name)
    except ImportError:
        if not module_name.startswith(("trainmaster_client", "trainmaster_api")):
            yield f"there is no module {module_name}"
        return
    for one in node.names:
        if not hasattr(module, one.name) and importlib.util.find_spec(f"{module_name}.{one.name}") is None:
            yield f"{module_name} has no {one.name}"


def _called(node: ast.Call) -> Iterator[str]:
    """Find what a call of a method of ``client`` gives and the method does not take."""
    function = node.func
    if isinstance(function, ast.Name) and function.id in ("Client", "AsyncClient", "Retries"):
        target: Any = getattr(trainmaster, function.id)
    elif isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id == "client":
        target = getattr(trainmaster.Client, function.attr, None)
        if target is None:
            yield f"clients have no {function.attr}"
            return
    else:
        return
    taken = inspect.signature(target).parameters
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in taken.values()):
        return
    for keyword in node.keywords:
        if keyword.arg is not None and keyword.arg not in taken:
            yield f"{ast.unparse(function)} takes no {keyword.arg}"
