"""Options of ``%%trainmaster``, and what a cell returns."""

import json
import sys
from typing import Any

import cloudpickle
import pytest
from IPython.core.error import UsageError

from trainmaster.client.functions import function_spec
from trainmaster.client.notebook import CellMagic, load_ipython_extension
from trainmaster.client.notebook_cell import MOST_BYTES, run_cell
from trainmaster.protocol.jobs import JobSpec


def job_of(line: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the fields of the job that a line of options submits."""
    found: list[dict[str, Any]] = []

    def submitted(*words: Any) -> None:
        found.append(words[-1])
        raise UsageError

    monkeypatch.setattr("trainmaster.client.notebook._submitted", submitted)
    monkeypatch.setattr("trainmaster.client.notebook.Client", lambda: None)
    with pytest.raises(UsageError):
        CellMagic({})(line, "1")
    return found[0]


def test_options_become_fields_of_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    more = json.dumps({"labels": {"study": "x"}, "resources": {"memory": "1Gi"}, "timeLimit": "1h", "name": "study"})
    line = "--queue a/b --image 'python:3' --cpus 2 --gpus 1 --cluster west --cluster east --env A=b=c --python '/opt/python -X dev'"
    job = job_of(f"{line} --job '{more}'", monkeypatch)
    spec = JobSpec.model_validate(function_spec(len, ["abc"], {}, job))
    template = spec.roles[0].template
    assert template is not None
    assert (spec.name, spec.queue, spec.labels, spec.placement.clusters) == (
        "study",
        "a/b",
        {"study": "x"},
        ("west", "east"),
    )
    assert (template.image, template.command, template.env) == ("python:3", ("/opt/python", "-X", "dev"), {"A": "b=c"})
    assert dict(template.resources) == {"memory": "1Gi", "cpu": "2", "nvidia.com/gpu": "1"}


def test_a_part_of_a_gpu_is_a_fraction(monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_of("--queue a --gpu 0.5", monkeypatch)
    assert job == {"name": "cell", "queue": "a", "gpu": {"fraction": 0.5}}
    JobSpec.model_validate(function_spec(len, ["abc"], {}, job))


def test_an_option_of_a_cell_overrides_that_of_all_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[dict[str, Any]] = []
    monkeypatch.setattr(CellMagic, "_run", lambda _, cell, options: found.append(dict(options)))
    magic = CellMagic({})
    magic("--queue a --cpus 1")
    magic("--queue b", "1")
    magic("", "1")
    assert found == [{"queue": "b", "cpus": "1"}, {"queue": "a", "cpus": "1"}]


def test_without_cloudpickle_it_does_not_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(UsageError, match=r"install trainmaster\[functions\]"):
        load_ipython_extension(None)


def test_everything_that_a_cell_returns_fits_into_results() -> None:
    assert cloudpickle.__name__ in sys.modules
    for count in (1, 10, 1000, 100_000):
        found = run_cell(f"[str(number ** 7) for number in range({count})]", {}, [], False)
        assert ("value" in found) is (count < 1000), count
        assert len(json.dumps({"packed": "x" * ((MOST_BYTES + 2) // 3 * 4)})) <= 4096


def test_a_cell_without_a_last_expression_has_no_value() -> None:
    assert run_cell("number = 3", {}, ["number"], False) == {"out": {"number": 3}, "notes": []}
    assert run_cell("", {}, [], False) == {"out": {}, "notes": []}


def test_numbers_of_numpy_are_values() -> None:
    numpy = pytest.importorskip("numpy")
    assert run_cell("loss", {"loss": numpy.float32(0.5)}, [], False)["value"] == 0.5
    assert "value" not in run_cell("losses", {"losses": numpy.zeros(3)}, [], False)
