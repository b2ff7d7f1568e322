"""Workflows as documents: read, checked, and turned into the documents of their jobs. It reads no store.

The jobs themselves are checked where all jobs are, with the paths that they have in the workflow.
"""

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Final

import orjson
from pydantic import ValidationError

from trainmaster.protocol.errors import Code, Mistake, ProblemError
from trainmaster.protocol.ids import MOST_KEY, workflow_id
from trainmaster.protocol.json_limits import shown
from trainmaster.protocol.parameters import PLACEHOLDER, texts_of, too_long, value_text
from trainmaster.protocol.suggestions import did_you_mean
from trainmaster.protocol.validation_errors import mistakes_of, worded
from trainmaster.protocol.workflows import (
    ITEM,
    LONGEST_VALUE,
    MOST_ELEMENTS,
    STEP_LABEL,
    WORKFLOW_LABEL,
    Step,
    WorkflowSpec,
    read_reference,
)
from trainmaster_dispatcher.domain.dependencies import cycle_of
from trainmaster_dispatcher.domain.workflows import StepPlan, predecessors
from trainmaster_dispatcher.services.artifact_inputs import no_output
from trainmaster_dispatcher.services.submission_parsing import MOST_MISTAKES, mistaken

Wire = dict[str, Any]
OWN_ID: Final = "workflow.id"
"""The parameter of each job that has the id of its workflow."""
_OF_STEPS = re.compile(r"\$\{steps\.[^}]*\}")
_LONGEST_DOCUMENT: Final = 1_048_576
"""Most bytes of a workflow; the limit of Kubernetes for an object."""
_MOST_VALUE_BYTES: Final = 16_777_216
"""Most bytes of the values of jobs that are submitted at once."""
_OF_THE_STEP = frozenset(("name", "after", "onDependencyFailure"))
_JOB_PATH = re.compile(r"jobs\[(\d+)\]")


@dataclass(frozen=True, slots=True)
class WantedWorkflow:
    """A workflow that a document describes: its model, the order of its steps, and its parameters as they were written."""

    spec: WorkflowSpec
    steps: tuple[StepPlan, ...]
    parameters: Mapping[str, Any]

    def document(self, index: int, workflow: str | None = None, jobs: Mapping[str, str] | None = None) -> Wire:
        """Return the document of a job of a step. ``workflow``: the id of the workflow, once it has one.

        ``jobs``: by step, the id of the job whose artifact the step's jobs get; None for the names that the jobs of steps have as one
        submission.
        """
        step = self.spec.steps[index]
        own = {} if workflow is None else {WORKFLOW_LABEL: workflow, STEP_LABEL: step.name}
        labels = {**self.spec.labels, **(step.job.get("labels") or {}), **own}
        job = _with_sources(step.job, jobs)
        return {"queue": self.spec.queue, **job, "kind": "Job", "name": step.name, "labels": labels}

    def documents(self) -> Wire:
        """Return the jobs of all steps as one submission, by which the workflow is checked."""
        longest = workflow_id(self.spec.name, MOST_KEY)  # as labels of the jobs have it
        return {"jobs": [self.document(index, longest) for index in range(len(self.steps))]}


def _artifacts_of(job: Mapping[str, Any]) -> Iterator[tuple[int, Wire]]:
    """Yield the inputs of a step's job that name a step, each with its place; none where the form is wrong, which is found later."""
    inputs = job.get("inputs")
    for number, one in enumerate(inputs if isinstance(inputs, list) else ()):
        if isinstance(one, dict) and "step" in one:
            yield number, one


def _with_sources(job: Mapping[str, Any], jobs: Mapping[str, str] | None) -> Mapping[str, Any]:
    """Return a step's job whose inputs name jobs in place of steps."""
    of_steps = dict(_artifacts_of(job))
    if not of_steps:
        return job
    inputs = list(job["inputs"])
    for number, one in of_steps.items():
        source = one["step"] if jobs is None else jobs[one["step"]]
        inputs[number] = {field: text for field, text in one.items() if field != "step"} | {"job": source}
    return {**job, "inputs": inputs}


def sources_of(step: Step) -> set[str]:
    """Return the names of the steps whose artifacts a step's jobs get."""
    return {one["step"] for _, one in _artifacts_of(step.job)}


def read_workflow(value: Mapping[str, Any]) -> WantedWorkflow:
    """Return what a document describes. Raises ProblemError INVALID_SPEC with each mistake."""
    try:
        spec = WorkflowSpec.model_validate(value)
    except ValidationError as error:
        raise mistaken(*mistakes_of(error)) from error
    _check_size(value)
    mistakes = list(islice(chain(_unknown_steps(spec), _of_jobs(spec)), MOST_MISTAKES))
    if mistakes:
        raise mistaken(*mistakes)
    steps = _plan(spec)
    cycle = cycle_of({index: [before for before, _ in step.after] for index, step in enumerate(steps)})
    if cycle is not None:
        names = [steps[index].name for index in cycle]
        message = (
            "a step cannot wait for itself"
            if len(names) == 1
            else f"these steps wait for each other: {' -> '.join([*names, names[0]])}"
        )
        raise mistaken(Mistake(path=f"steps[{cycle[0]}].after", message=message))
    mistakes = list(islice(chain(_wrong_references(spec, steps), _wrong_artifacts(spec, steps)), MOST_MISTAKES))
    if mistakes:
        raise mistaken(*mistakes)
    return WantedWorkflow(spec, steps, value.get("parameters") or {})


def _check_size(value: Mapping[str, Any]) -> None:
    """Raise ProblemError INVALID_SPEC for a document that is too large: the scheduler reads it with each change of a step."""
    try:
        size = len(orjson.dumps(value))
    except orjson.JSONEncodeError as error:  # nested too deep, or numbers that JSON cannot represent
        raise mistaken(Mistake(path="steps", message=f"cannot be written as JSON: {error}")) from error
    if size > _LONGEST_DOCUMENT:
        message = f"has {size} bytes with all that is in it, at most {_LONGEST_DOCUMENT} are allowed for a workflow"
        raise mistaken(Mistake(path="steps", message=message))


def _plan(spec: WorkflowSpec) -> tuple[StepPlan, ...]:
    indexes = {step.name: index for index, step in enumerate(spec.steps)}
    return tuple(
        StepPlan(
            step.name,
            tuple((indexes[one.step], one.condition) for one in step.after),
            step.max_running,
            step.may_fail,
            step.cleanup,
        )
        for step in spec.steps
    )


def _unknown_steps(spec: WorkflowSpec) -> Iterator[Mistake]:
    names = {step.name: step for step in spec.steps}
    for index, step in enumerate(spec.steps):
        for at, one in enumerate(step.after):
            path = f"steps[{index}].after[{at}].step"
            if one.step not in names:
                hint = did_you_mean(one.step, sorted(names))
                yield Mistake(path=path, message=f"there is no step {one.step!r}{hint}")
            elif names[one.step].cleanup and not step.cleanup:
                yield Mistake(path=path, message=f"{one.step} is a cleanup step, which starts after all others")
        if step.cleanup and step.after:
            yield Mistake(
                path=f"steps[{index}].after", message="a cleanup step starts after all others; leave after out"
            )


def _of_jobs(spec: WorkflowSpec) -> Iterator[Mistake]:
    """Yield what of jobs is their steps' to say."""
    for index, step in enumerate(spec.steps):
        for field in sorted(_OF_THE_STEP & step.job.keys()):
            message = "is that of the step; leave it out" if field == "name" else "is the step's: give it after there"
            yield Mistake(path=f"steps[{index}].job.{field}", message=message)
        if step.job.get("apiVersion") is not None:
            message = "must be a job of this system, without apiVersion; manifests of other APIs are submitted alone"
            yield Mistake(path=f"steps[{index}].job.apiVersion", message=message)
        elif step.job.get("kind", "Job") != "Job":
            yield Mistake(path=f"steps[{index}].job.kind", message=f"must be Job, not {shown(step.job['kind'])}")
        if not isinstance(step.job.get("labels", {}), dict):
            yield Mistake(path=f"steps[{index}].job.labels", message="must be a mapping")


def _wrong_references(spec: WorkflowSpec, steps: Sequence[StepPlan]) -> Iterator[Mistake]:
    before = predecessors(steps, ended_only=True)
    for index, step in enumerate(spec.steps):
        known = {steps[one].name for one in before[index]}
        if step.cleanup:
            known = {one.name for one in spec.steps if not one.cleanup}
        if isinstance(step.for_each, str):
            yield from _wrong_reference(step.for_each, f"steps[{index}].forEach", known)
        path = f"steps[{index}].job"
        for text in sorted({found for one in _texts(step) for found in _OF_STEPS.findall(one)}):
            yield from _wrong_reference(text, path, known)
        for name in sorted(_used(step)):
            head, dot, _ = name.partition(".")
            if head == ITEM and step.for_each is None and (dot or ITEM not in spec.parameters):
                message = f"${{{name}}} is an element of forEach, which the step does not have"
                yield Mistake(path=path, message=message)


def _wrong_reference(text: str, path: str, known: set[str]) -> Iterator[Mistake]:
    found = read_reference(text)
    if found is None:
        yield Mistake(path=path, message=f"{text} is no result of a step; one is ${{steps.NAME.results.NAME}}")
    elif found.step not in known:
        hint = did_you_mean(found.step, sorted(known))
        message = f"{text} is a result of a step that does not end before this one: put {found.step} into after{hint}"
        yield Mistake(path=path, message=message)


def _wrong_artifacts(spec: WorkflowSpec, steps: Sequence[StepPlan]) -> Iterator[Mistake]:
    """Yield what is wrong in inputs that are artifacts of other steps."""
    before = predecessors(steps, ended_only=True)
    by_name = {step.name: step for step in spec.steps}
    for index, step in enumerate(spec.steps):
        ended = {steps[one].name for one in before[index]}
        if step.cleanup:
            ended = {one.name for one in spec.steps if not one.cleanup}
        inputs = step.job.get("inputs")
        for number, one in enumerate(inputs if isinstance(inputs, list) else ()):
            if isinstance(one, dict):
                path = f"steps[{index}].job.inputs[{number}]"
                found = _wrong_artifact(one, step.name, by_name, ended)
                if found is not None:
                    yield Mistake(path=f"{path}.{found[0]}", message=found[1])


def _wrong_artifact(one: Wire, own: str, by_name: Mapping[str, Step], ended: Set[str]) -> tuple[str, str] | None:
    """Return the field of an input that is wrong, and how; None if none is. ``ended``: steps that end before the own one."""
    if "step" not in one:
        named = one.get("job")
        if isinstance(named, str) and named in by_name:
            return "job", f"{named} is a step of the workflow: give it as step"
        return None
    name, artifact = one["step"], one.get("artifact")
    source = by_name.get(name) if isinstance(name, str) else None
    if "job" in one or "files" in one:
        return "step", "needs artifact, and neither files nor job: the artifact is that of the step's job"
    if not isinstance(artifact, str):
        return "artifact", f"is missing: name an output of step {shown(name)}"
    if source is None:
        return "step", f"there is no step {shown(name)}{did_you_mean(str(name), sorted(by_name))}"
    if name == own:
        return "step", "a step cannot get its own artifact"
    if name not in ended:
        return "step", f"{name} does not end before this step: put {name} into after"
    array = source.job.get("array")
    if source.for_each is not None or (isinstance(array, dict) and array.get("mode") == "jobs"):
        return (
            "step",
            f"{name} has many jobs, each of which leaves artifacts of its own; only a step with one job can be named",
        )
    outputs = source.job.get("outputs")
    names = [each.get("name") for each in outputs if isinstance(each, dict)] if isinstance(outputs, list) else []
    if artifact not in names:
        return "artifact", no_output(f"step {name}", artifact, [each for each in names if isinstance(each, str)])
    return None


def _used(step: Step) -> set[str]:
    """Return the names of the placeholders of a step's job."""
    return {name for text in _texts(step) for name in PLACEHOLDER.findall(text)}


def _texts(step: Step) -> list[str]:
    """Return the texts of a step's job that may have placeholders; none where its form is wrong, which is found later."""
    try:
        return texts_of(step.job)
    except (AttributeError, TypeError, KeyError, ValueError):
        return []


def of_workflow(error: ProblemError) -> ProblemError:
    """Return an error of a workflow's jobs with the paths that its fields have in the workflow."""
    if not error.mistakes:
        return error

    def placed(path: str) -> str:
        return _JOB_PATH.sub(lambda found: f"steps[{found[1]}].job", path, count=1)

    mistakes = tuple(Mistake(path=placed(one.path), message=one.message) for one in error.mistakes)
    first = worded(mistakes[0])
    detail = first if len(mistakes) == 1 else f"{len(mistakes)} mistakes; the first: {first}"
    return ProblemError(error.code, detail, mistakes=mistakes, retry_after=error.retry_after)


# -- values


class MissingValueError(ValueError):
    """A value that a step's jobs need does not exist, or is too long."""


Results = Sequence[tuple[str, Mapping[str, Any] | None]]
"""The jobs of a step, by element: the id of each, and its results, None without."""


def references_of(step: Step) -> set[str]:
    """Return the names of the steps whose results a step uses."""
    texts = [f"${{{name}}}" for name in _used(step)]
    texts += [step.for_each] if isinstance(step.for_each, str) else []
    return {found.step for text in texts if (found := read_reference(text)) is not None}


def result_of(text: str, results: Mapping[str, Results], fans: Mapping[str, bool]) -> Any:
    """Return the value of ``${steps.NAME.results.NAME}``. ``results``: by step; ``fans``: whether a step has elements, whose results
    are a list. Raises MissingValueError.
    """
    found = read_reference(text)
    if found is None:
        raise MissingValueError(f"{text} is no result of a step")
    jobs = results.get(found.step, ())
    values = [_one_result(text, job, own, found.result, is_one=not fans[found.step]) for job, own in jobs]
    if fans[found.step]:
        return values
    if not values:
        raise MissingValueError(f"{text} does not exist: step {found.step} has no job")
    return values[0]


def _one_result(text: str, job: str, own: Mapping[str, Any] | None, name: str | None, *, is_one: bool) -> Any:
    if name is None:
        return None if own is None else dict(own)
    if own is not None and name in own:
        return own[name]
    if not is_one:
        return None
    has = "no results" if not own else f"only {', '.join(sorted(own))}"
    raise MissingValueError(f"{text} does not exist: job {job} has returned {has}")


def elements_of(step: Step, results: Mapping[str, Results], fans: Mapping[str, bool]) -> list[Any] | None:
    """Return the elements of a step that is started; None for a step with one job. Raises MissingValueError."""
    if step.for_each is None or isinstance(step.for_each, list):
        return step.for_each
    value = result_of(step.for_each, results, fans)
    if not isinstance(value, list):
        kind = "a mapping" if isinstance(value, dict) else orjson.dumps(value).decode()[:100]
        raise MissingValueError(f"forEach needs a list, and {step.for_each} is {kind}")
    if len(value) > MOST_ELEMENTS:
        raise MissingValueError(f"forEach has {len(value)} elements, at most {MOST_ELEMENTS} are allowed")
    return value


def parameter_sets(
    wanted: WantedWorkflow,
    index: int,
    workflow: str,
    items: Sequence[Any] | None,
    results: Mapping[str, Results],
) -> list[dict[str, Any]]:
    """Return the parameters of jobs of a step: one for each element of ``items``, or one with None. Raises MissingValueError."""
    step = wanted.spec.steps[index]
    fans = fans_of(wanted.spec)
    common: dict[str, Any] = {}
    of_items: list[str] = []
    for name in _used(step):
        head, _, rest = name.partition(".")
        if read_reference(f"${{{name}}}") is not None:
            common[name] = _short(f"${{{name}}}", result_of(f"${{{name}}}", results, fans))
        elif head == ITEM and step.for_each is not None:
            of_items.append(rest)
        elif name == OWN_ID:
            common[name] = workflow
        elif name in wanted.parameters:
            common[name] = wanted.parameters[name]
    if items is None:
        return [common]
    return [{**common, **_of_item(item, of_items)} for item in items]


def check_sizes(sets: Sequence[dict[str, Any]], spec: dict[str, Any]) -> list[bytes]:
    """Return the parameters of jobs as JSON texts; ``spec``: their specification. Raises MissingValueError where they, or a text of a
    job with them, are too long.
    """
    for mistake in too_long(sets, spec) if sets[0] else ():
        raise MissingValueError(f"with its values, {mistake.path} is too long: {mistake.message}")
    written = [orjson.dumps(one) for one in sets]
    size = sum(map(len, written))
    if size > _MOST_VALUE_BYTES:
        raise MissingValueError(
            f"the values of {len(sets)} jobs have {size} bytes, at most {_MOST_VALUE_BYTES} are allowed: give maxRunning"
        )
    return written


def fans_of(spec: WorkflowSpec) -> dict[str, bool]:
    """Return, by step, whether it has elements."""
    return {step.name: step.for_each is not None for step in spec.steps}


def _of_item(item: Any, fields: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in fields:
        text = f"${{{ITEM}.{field}}}" if field else f"${{{ITEM}}}"
        if not field:
            found[ITEM] = _short(text, item)
        elif isinstance(item, dict) and field in item:
            found[f"{ITEM}.{field}"] = _short(text, item[field])
        else:
            shown = orjson.dumps(item).decode()[:100]
            raise MissingValueError(f"{text} does not exist: the element is {shown}")
    return found


def _short(text: str, value: Any) -> str:
    written = value_text(value)
    if len(written) > LONGEST_VALUE:
        raise MissingValueError(f"{text} has {len(written)} characters, at most {LONGEST_VALUE} are allowed")
    return written


def bad_fields(spec: Mapping[str, Any]) -> ProblemError:
    """Return the error for a stored workflow that this release does not understand."""
    return ProblemError(
        Code.INVALID_SPEC, f"this release does not understand the workflow {spec.get('name')!r}; submit it again"
    )
