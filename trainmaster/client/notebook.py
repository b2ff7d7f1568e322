"""The cell magic ``%%trainmaster``, which runs a cell of a notebook as a job. ``%load_ext trainmaster`` loads it.

Imports IPython, so nothing else imports this module.
"""

import argparse
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn

from IPython.core.error import UsageError
from IPython.display import Image, display

from trainmaster.client import notebook_cell
from trainmaster.client.errors import FunctionTransferError, RemoteFunctionError
from trainmaster.client.function_jobs import FunctionJob
from trainmaster.client.functions import cloudpickle_module
from trainmaster.client.http import Client
from trainmaster.client.streams import LogPiece, Notice
from trainmaster.protocol.errors import TrainmasterError

_MAGIC = "trainmaster"
_GPU = "nvidia.com/gpu"


class _OptionParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; %{_MAGIC} --help lists the options")


def _options() -> argparse.ArgumentParser:
    parser = _OptionParser(
        prog=f"%%{_MAGIC}",
        add_help=False,
        description="Run the cell as a job. As %trainmaster on a line of its own: set options for the cells that follow.",
    )
    text = parser.add_argument
    text("--queue", help="queue of the job; required")
    text("--image", help="image with Python of the notebook's version; required on Kubernetes")
    text("--cpus", "--cpu", help="CPUs of the member, such as 2 or 500m")
    text("--memory", help="memory of the member, such as 4Gi")
    text("--gpus", "--gpu", help="GPUs of the member; 0.5 for a part of one")
    text("--cluster", action="append", help="cluster that may run it; may be given several times")
    text("--name", help="name of the job (cell)")
    text("--env", action="append", metavar="NAME=VALUE", help="variable of the environment")
    text("--python", help="program that runs the cell (python3)")
    text("--job", metavar="JSON", help="more fields of the job or its template, as a JSON object")
    text("--in", dest="variables", metavar="NAMES", help="variables that the cell gets, separated by commas")
    text("--out", metavar="NAMES", help="variables that the notebook gets back, separated by commas")
    text(
        "--unpickle",
        action="store_true",
        default=None,
        help="load objects of any class, which executes what the job has chosen",
    )
    text("--help", "-h", action="store_true", help="show this text")
    return parser


def _job_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the job, all in one mapping, for ``submit_function``."""
    if not options.get("queue"):
        raise UsageError(f"--queue is missing; to set it for all cells: %{_MAGIC} --queue QUEUE")
    try:
        more = json.loads(options.get("job") or "{}")
    except ValueError as error:
        raise UsageError(f"--job: no JSON object: {error}") from error
    if not isinstance(more, dict):
        raise UsageError("--job: no JSON object")
    job: dict[str, Any] = {"name": options.get("name") or "cell", "queue": options["queue"], **more}
    if options.get("image"):
        job["image"] = options["image"]
    if options.get("python"):
        job["command"] = shlex.split(options["python"])
    resources = {
        name: options[option] for name, option in (("cpu", "cpus"), ("memory", "memory")) if options.get(option)
    }
    gpus = options.get("gpus")
    if gpus and "." in gpus:
        job["gpu"] = {"fraction": _fraction(gpus)}
    elif gpus:
        resources[_GPU] = gpus
    if resources:
        job["resources"] = {**job.get("resources", {}), **resources}
    if options.get("cluster"):
        job["placement"] = {**job.get("placement", {}), "clusters": options["cluster"]}
    if options.get("env"):
        job["env"] = {**job.get("env", {}), **dict(_variable(one) for one in options["env"])}
    return job


def _fraction(text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise UsageError(f"--gpus: must be a number such as 1 or 0.5, not {text!r}") from error


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"--env: must be NAME=VALUE, not {text!r}")
    return name, value


def _names(text: str | None) -> list[str]:
    return [name.strip() for name in (text or "").split(",") if name.strip()]


@dataclass(slots=True)
class CellMagic:
    """Runs cells as jobs. ``namespace``: the variables of the notebook."""

    namespace: dict[str, Any]
    _defaults: dict[str, Any] = field(default_factory=dict)
    _client: Client | None = None

    def __call__(self, line: str, cell: str | None = None) -> Any:
        """Run a cell and return the value of its last expression; without a cell, keep the options for later ones."""
        parser = _options()
        try:
            given = {
                name: value for name, value in vars(parser.parse_args(shlex.split(line))).items() if value is not None
            }
        except ValueError as error:  # a quotation mark is missing
            raise UsageError(str(error)) from error
        if given.pop("help"):
            parser.print_help()
            return None
        if cell is None:
            self._defaults |= given
            return None
        options = self._defaults | given
        try:
            return self._run(cell, options)
        except RemoteFunctionError:
            raise
        except TrainmasterError as error:
            raise UsageError(str(error)) from error

    def _run(self, cell: str, options: Mapping[str, Any]) -> Any:
        job = _job_of(options)
        names = _names(options.get("variables"))
        if missing := [name for name in names if name not in self.namespace]:
            raise UsageError(f"--in: there is no variable {', '.join(missing)}")
        any_class = bool(options.get("unpickle"))
        if self._client is None:
            self._client = Client()
        variables = {name: self.namespace[name] for name in names}
        handle = _submitted(self._client, cell, variables, _names(options.get("out")), any_class, job)
        print(f"job {handle.job}", flush=True)  # noqa: T201 - the output of the cell
        try:
            _show_output(handle)
            found = handle.result(unpickle=any_class)
        except KeyboardInterrupt:
            handle.cancel(grace="0s")
            print(f"job {handle.job} is cancelled", file=sys.stderr, flush=True)  # noqa: T201 - the output of the cell
            raise
        self.namespace.update(found["out"])
        return _shown(found)


def _submitted(
    client: Client,
    cell: str,
    variables: Mapping[str, Any],
    wanted: Sequence[str],
    any_class: bool,
    job: Mapping[str, Any],
) -> FunctionJob[dict[str, Any]]:
    library = cloudpickle_module()
    library.register_pickle_by_value(notebook_cell)
    try:
        run = partial(notebook_cell.run_cell, cell, variables, list(wanted), any_class)
        return client.submit_function(run, job=job)
    finally:
        library.unregister_pickle_by_value(notebook_cell)


def _show_output(handle: FunctionJob[Any]) -> None:
    """Print what the cell prints, as it comes."""
    for item in handle.logs(follow=True):
        if isinstance(item, LogPiece):
            print(item.data, end="", flush=True)  # noqa: T201 - the output of the cell
        elif isinstance(item, Notice):
            print(item.text, file=sys.stderr, flush=True)  # noqa: T201 - the output of the cell


def _shown(found: Mapping[str, Any]) -> Any:
    """Show figures, notes and the text of a value that is not loaded; return a value that is."""
    for picture in found.get("figures", ()):
        display(Image(data=picture, format="png"))
    for note in found["notes"]:
        print(note, file=sys.stderr, flush=True)  # noqa: T201 - the output of the cell
    if "shown" in found:
        display(found["shown"], raw=True)
    return found.get("value")


def load_ipython_extension(ipython: Any) -> None:
    """Make ``%%trainmaster`` known to a shell of IPython. Raises UsageError where cloudpickle is not installed."""
    try:
        cloudpickle_module()
    except FunctionTransferError as error:
        raise UsageError(str(error)) from None
    ipython.register_magic_function(CellMagic(ipython.user_ns), "line_cell", _MAGIC)
