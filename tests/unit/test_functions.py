"""Functions as jobs without a dispatcher: what is submitted, what the member's program writes, and what results mean."""

import ast
import base64
import collections
import inspect
import json
import math
import os
import pickle
import subprocess
import sys
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.unit import scripted
from trainmaster import FunctionTransferError, JobFailedError, ProblemError, RemoteFunctionError, WaitTimeoutError
from trainmaster.client import function_runner, functions
from trainmaster.client.functions import MOST_FUNCTION_BYTES, function_spec, value_of
from trainmaster.protocol.jobs import JobSpec
from trainmaster.protocol.results import MOST_RESULTS_BYTES, read_results
from trainmaster.protocol.tenants import JobView

JOB = {"queue": "research", "resources": {"cpu": "1"}}


class Remote(Exception):  # noqa: N818 - any exception of a user's own
    """An exception of a class that is not Python's own."""


class Secretive:
    """A value that cannot be pickled."""

    def __reduce__(self) -> str:
        raise TypeError("it holds a secret")


def view(state: str = "succeeded", **fields: Any) -> JobView:
    return JobView.model_validate(scripted.job(state, 1) | {"id": "f-7k2p9xq"} | fields)


def run(spec: Mapping[str, Any], folder: Path, **env: str) -> tuple[int, dict[str, Any], str]:
    """Run the member of a specification as a process; return its exit code, its results and its output."""
    template = spec["roles"][0]["template"]
    path = folder / "results"
    path.unlink(missing_ok=True)
    done = subprocess.run(
        [sys.executable, *template["command"][1:], *template["args"]],
        env={"PATH": os.environ["PATH"], "TRAINMASTER_RESULTS": str(path), **env},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    results, wrong = read_results(path.read_bytes()) if path.exists() else (None, "")
    assert wrong == ""
    return done.returncode, results or {}, done.stdout + done.stderr


def test_fields_of_the_job_its_role_and_its_template_are_one_mapping() -> None:
    more = {"image": "python:3.11", "replicas": 2, "priority": 7, "env": {"A": "b"}}
    spec = function_spec(len, ["abc"], {}, {**JOB, **more})
    found = JobSpec.model_validate(spec)
    (role,) = found.roles
    assert (found.name, found.queue, found.priority, role.replicas) == ("len", "research", 7, 2)
    assert role.template is not None
    assert (role.template.image, role.template.env) == ("python:3.11", {"A": "b"})
    assert role.template.command == ("python3",)


def test_every_argument_may_be_one_of_a_job_and_none_has_what_kubernetes_replaces() -> None:
    blob = os.urandom(MOST_FUNCTION_BYTES - 1000)
    spec = function_spec(lambda data: data, [blob], {}, JOB)
    JobSpec.model_validate(spec)
    arguments = spec["roles"][0]["template"]["args"]
    assert not [one for one in arguments if "$" in one]
    assert len(json.dumps(spec)) < 1 << 20


@pytest.mark.parametrize(
    ("name", "expected"), [("Train_Model", "train-model"), ("_", "function"), ("x" * 40, "x" * 24)]
)
def test_a_job_is_named_after_its_function(name: str, expected: str) -> None:
    def function() -> None: ...

    function.__name__ = name
    assert JobSpec.model_validate(function_spec(function, (), {}, JOB)).name == expected


@pytest.mark.parametrize("name", functions._REFUSED)
def test_a_field_that_says_otherwise_what_runs_is_refused(name: str) -> None:
    with pytest.raises(ProblemError, match=f"job: {name} is not for functions"):
        function_spec(len, (), {}, {**JOB, name: []})


@pytest.mark.parametrize(("function", "job"), [(3, JOB), (len, "research")])
def test_what_is_no_function_or_no_mapping_is_refused(function: Any, job: Any) -> None:
    with pytest.raises(ProblemError, match=r"a function or another callable is needed|must be a mapping of fields"):
        function_spec(function, (), {}, job)


def test_what_is_too_large_is_refused_with_the_limit() -> None:
    with pytest.raises(
        FunctionTransferError, match=rf"at most {MOST_FUNCTION_BYTES} are allowed: put what is large into a"
    ):
        function_spec(len, [os.urandom(MOST_FUNCTION_BYTES)], {}, JOB)


def test_what_cannot_be_pickled_is_refused() -> None:
    with pytest.raises(FunctionTransferError, match="cannot be pickled: it holds a secret"):
        function_spec(len, [Secretive()], {}, JOB)


def test_without_cloudpickle_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(FunctionTransferError, match=r"install trainmaster\[functions\]"):
        function_spec(len, (), {}, JOB)


def test_cloudpickle_travels_only_where_it_is_needed() -> None:
    def own() -> int:
        return 3

    def library(function: Any) -> str:
        found: str = function_spec(function, (), {}, JOB)["roles"][0]["template"]["args"][3]
        return found

    assert library(len) == ""
    assert len(library(own)) > 10_000


VALUES = {
    "nothing": None,
    "a number": 3,
    "a fraction": 0.1 + 0.2,
    "a text": "naïve 🎉",
    "a list": [1, [2, {"a": None}]],
    "a mapping": {"loss": 0.5, "history": [1.0, 0.5]},
    "a large number": 2**70,
    "a number with an exponent": 1e300,
    "no number": math.inf,
    "a tuple": (1, (2, 3)),
    "a set": {1, 2},
    "bytes": b"\x00\xff",
    "a text with NUL": "a\x00b",
    "half of a surrogate pair": "\ud800",
    "numbers as names": {1: "one", (2, 3): "pair"},
    "negative zero in a list": [-0.0],
    "more than JSON of this size": list(range(1200)),
    "deeper than results may be": json.loads("[" * 60 + "]" * 60),
}
IN_JSON = {"nothing", "a number", "a fraction", "a text", "a list", "a mapping"}


@pytest.mark.parametrize("name", VALUES)
def test_a_value_of_pythons_own_types_comes_back_as_it_is(name: str) -> None:
    value = VALUES[name]
    outcome = function_runner.outcome_of_value(value, pickle.dumps)
    results, wrong = read_results(json.dumps(outcome))
    assert (wrong, set(outcome)) == ("", {"value" if name in IN_JSON else "packed"})
    found = value_of(view(results=results), unpickle=False)
    assert found == value
    assert repr(found) == repr(value)


def test_numbers_of_numpy_become_pythons() -> None:
    numpy = pytest.importorskip("numpy")
    value = {"loss": numpy.float32(0.5), "counts": [numpy.int64(3)], "pair": (numpy.float64(1.5),)}
    assert function_runner.outcome_of_value({"loss": value["loss"]}, pickle.dumps) == {"value": {"loss": 0.5}}
    results = function_runner.outcome_of_value(value, pickle.dumps)
    assert value_of(view(results=results), unpickle=False) == {"loss": 0.5, "counts": [3], "pair": (1.5,)}


def test_a_value_whose_attributes_fail_is_pickled_as_it_is() -> None:
    class Odd(dict[str, int]):
        @property
        def shape(self) -> tuple[int, ...]:
            raise ValueError("not yet")

    with pytest.raises(FunctionTransferError, match=r"a Odd, cannot be pickled"):
        value_of(view(results=function_runner.outcome_of_value(Odd(a=1), pickle.dumps)), unpickle=False)


def test_an_object_of_a_class_is_loaded_only_where_the_caller_says_so() -> None:
    value = collections.Counter("aab")
    job = view(results=function_runner.outcome_of_value(value, pickle.dumps))
    with pytest.raises(FunctionTransferError, match=r"collections\.Counter.*result\(unpickle=True\)"):
        value_of(job, unpickle=False)
    assert value_of(job, unpickle=True) == value


def test_nothing_of_a_hostile_result_is_called(tmp_path: Path) -> None:
    class Hostile:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "called"),)

    data = function_runner.pack(pickle.dumps(Hostile()))
    error = {"type": "ValueError", "module": "builtins", "args": [], "packed": data, "message": "", "traceback": ""}
    with pytest.raises(FunctionTransferError):
        value_of(view(results={"packed": data}), unpickle=False)
    with pytest.raises(ValueError):
        value_of(view("failed", results={"error": error}), unpickle=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "packed",
    [
        7,
        "no base64!",
        base64.b64encode(b"no zlib").decode(),
        function_runner.pack(b"no pickle"),
        function_runner.pack(b"")[:-8],
        base64.b64encode(zlib.compress(bytes(function_runner.MOST_BYTES) * 70_000)).decode(),
    ],
)
def test_a_result_that_is_no_pickle_is_an_error(packed: Any) -> None:
    with pytest.raises(FunctionTransferError, match=r"cannot be loaded|has more than"):
        value_of(view(results={"packed": packed}), unpickle=False)


def test_a_value_that_is_too_large_says_what_to_do() -> None:
    results = function_runner.outcome_of_value(os.urandom(5000), pickle.dumps)
    with pytest.raises(
        FunctionTransferError, match=r"a bytes, has \d+ bytes when .* at most 4096: put what is large into a"
    ):
        value_of(view(results=results), unpickle=False)


def test_a_value_that_cannot_be_pickled_says_why() -> None:
    results = function_runner.outcome_of_value(Secretive(), pickle.dumps)
    with pytest.raises(FunctionTransferError, match=r"a Secretive, cannot be pickled: TypeError: it holds a secret"):
        value_of(view(results=results), unpickle=False)


def outcome_of(error: BaseException, traceback: str = "line 1") -> dict[str, Any]:
    outcome = function_runner.outcome_of_error(error, traceback, pickle.dumps)
    assert len(json.dumps(outcome, ensure_ascii=False).encode()) <= MOST_RESULTS_BYTES + 100
    results, wrong = read_results(json.dumps(outcome, ensure_ascii=False, separators=(",", ":")))
    assert wrong == ""
    assert results is not None
    return results


def test_an_exception_of_pythons_own_classes_is_raised_with_its_traceback() -> None:
    job = view("failed", results=outcome_of(FileNotFoundError(2, "No such file", "/data"), "  File x, line 7"))
    with pytest.raises(FileNotFoundError) as caught:
        value_of(job, unpickle=False)
    assert (caught.value.errno, caught.value.strerror) == (2, "No such file")
    assert str(caught.value.__cause__) == "in job f-7k2p9xq:\n  File x, line 7"


def test_an_exception_of_another_class_is_raised_as_remote_unless_it_may_be_unpickled() -> None:
    job = view("failed", results=outcome_of(Remote("no data")))
    with pytest.raises(RemoteFunctionError, match="Remote: no data") as caught:
        value_of(job, unpickle=False)
    assert (caught.value.job, caught.value.type) == ("f-7k2p9xq", f"{__name__}.Remote")
    assert caught.value.traceback == "line 1"
    with pytest.raises(Remote, match="no data"):
        value_of(job, unpickle=True)


@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt(), Secretive, UnicodeDecodeError("x", b"", 0, 1, "y")]
)
def test_what_would_end_this_process_or_cannot_be_made_again_is_remote(error: Any) -> None:
    kind = error if isinstance(error, BaseException) else Remote(error())
    with pytest.raises((RemoteFunctionError, UnicodeDecodeError)):
        value_of(view("failed", results=outcome_of(kind)), unpickle=False)


@pytest.mark.parametrize("message", ["x" * 100_000, "\x01" * 9000, "🎉" * 5000, "\ud800\x00" * 3000, "\\" * 5000])
def test_an_exception_with_a_long_message_fits_into_results(message: str) -> None:
    kind = type("E" * 5000, (Exception,), {"__module__": "m" * 5000})
    found = outcome_of(kind(message), message)["error"]
    assert found["type"].startswith("EEE")
    assert len(found["traceback"]) > 100


def test_the_end_of_a_long_traceback_is_kept() -> None:
    found = outcome_of(Remote("x"), "begin" + "." * 10_000 + "end")["error"]
    assert found["traceback"].endswith("...end")


@pytest.mark.parametrize(
    ("job", "kind"),
    [
        (view("running"), WaitTimeoutError),
        (view("failed"), JobFailedError),
        (view("cancelled", results={"value": 3}), JobFailedError),
        (view("cancelled", results={"error": {"type": "E", "module": "m"}}), JobFailedError),
        (view("failed", results={"value": 3}), JobFailedError),
        (view("failed", results={"refused": "the member has Python 3.8"}), FunctionTransferError),
        (view("succeeded"), FunctionTransferError),
        (view("succeeded", results={"accuracy": 0.9}), FunctionTransferError),
        (view("succeeded", resultsError="the results of main-0 are no object"), FunctionTransferError),
    ],
)
def test_a_job_without_a_value_is_an_error(job: JobView, kind: type[Exception]) -> None:
    with pytest.raises(kind, match=job.id):
        value_of(job, unpickle=False)


def test_the_member_runs_the_function_and_prints_its_output(tmp_path: Path) -> None:
    factor = 3

    def scaled(number: int, *, plus: int) -> tuple[int, list[str]]:
        print("scaling")
        return number * factor + plus, sys.argv[1:]

    assert run(function_spec(scaled, [5], {"plus": 1}, JOB), tmp_path) == (
        0,
        {"packed": run_packed((16, []))},
        "scaling\n",
    )


def run_packed(value: Any) -> str:
    import cloudpickle

    return function_runner.pack(cloudpickle.dumps(value))


def test_a_function_that_raises_ends_the_member_with_its_own_traceback(tmp_path: Path) -> None:
    def fails() -> None:
        raise ValueError("no data")

    code, results, output = run(function_spec(fails, (), {}, JOB), tmp_path)
    assert (code, results["error"]["args"]) == (1, ["no data"])
    assert output.splitlines()[0] == "Traceback (most recent call last):"
    assert output.splitlines()[-1] == "ValueError: no data"
    assert "<string>" not in output


def test_a_function_that_exits_gives_the_member_its_code(tmp_path: Path) -> None:
    code, results, _ = run(function_spec(sys.exit, [5], {}, JOB), tmp_path)
    assert (code, results["error"]["type"]) == (5, "SystemExit")


def test_only_the_process_of_rank_0_writes_results(tmp_path: Path) -> None:
    spec = function_spec(len, ["abc"], {}, JOB)
    assert run(spec, tmp_path, RANK="0")[:2] == (0, {"value": 3})
    assert run(spec, tmp_path, RANK="1")[:2] == (0, {})


def test_another_version_of_python_is_refused(tmp_path: Path) -> None:
    spec = function_spec(len, ["abc"], {}, JOB)
    spec["roles"][0]["template"]["args"][2] = "3.7"
    code, results, output = run(spec, tmp_path)
    assert code == 1
    own = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert results["refused"] == output.strip()
    assert f"pickled by Python 3.7, and the member has Python {own}: use an image with Python 3.7" in output


def test_a_module_that_the_member_lacks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here/only_here.py").write_text("def found(): return 1\n")
    monkeypatch.syspath_prepend(str(tmp_path / "here"))
    from only_here import found  # type: ignore[import-not-found]

    code, results, _ = run(function_spec(found, (), {}, JOB), tmp_path)
    assert code == 1
    assert results["refused"] == (
        "the function cannot be loaded: ModuleNotFoundError: No module named 'only_here';"
        " the member needs the modules that the function uses"
    )


def test_the_program_of_the_member_needs_no_newer_python() -> None:
    ast.parse(inspect.getsource(function_runner), feature_version=(3, 8))


def test_the_limit_of_results_is_that_of_the_protocol() -> None:
    assert function_runner.MOST_BYTES == MOST_RESULTS_BYTES
