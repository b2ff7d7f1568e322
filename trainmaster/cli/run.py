"""``run`` and ``rerun``: a job from a command line, and one more job like another one."""

import os
import re
from collections.abc import Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainmaster.cli import config, files, member_streams, overrides
from trainmaster.cli.errors import UsageError
from trainmaster.cli.jobs import JobId
from trainmaster.cli.output import Format, OutputOption, note, print_data
from trainmaster.cli.submit import (
    AfterSubmit,
    CloseGroupOption,
    DryRunOption,
    FollowOption,
    OnBehalfOfOption,
    WaitOption,
    submit_all,
)

if TYPE_CHECKING:
    from trainmaster.client.http import Client

_LONGEST_NAME = 24
_OF_ITS_TIME = ("after", "startAfter", "deadline", "group")
"""Fields that another job like an earlier one does not have."""
_INTERPRETERS = ("python", "python3", "bash", "sh", "torchrun", "uv", "env", "accelerate", "deepspeed", "mpirun")
_OPTIONS = {
    "name": "--name",
    "queue": "--queue",
    "priorityClass": "--priority-class",
    "priority": "--priority",
    "labels": "--label",
    "timeLimit": "--time-limit",
    "startAfter": "--start-after",
    "deadline": "--deadline",
    "after": "--after",
    "group": "--group",
    "inputs": "--input",
    "roles[0].template.image": "--image",
    "roles[0].template.env": "--env",
    "roles[0].template.resources.cpu": "--cpus",
    "roles[0].template.resources.memory": "--memory",
    f'roles[0].template.resources["{overrides.GPU}"]': "--gpus",
    "roles[0].template.gpu": "--gpus",
    "roles[0].replicas": "--replicas",
    "roles[0].template.command": "COMMAND",
    "placement.clusters": "--cluster",
    "placement.kinds": "--kind",
}
"""The option of each part of a specification."""

Command = Annotated[
    list[str] | None,
    typer.Argument(metavar="-- COMMAND", help="Program with its arguments.", show_default=False),
]


def register(app: typer.Typer) -> None:
    # What follows the program's name belongs to the program, also without "--" before it.
    app.command(context_settings={"allow_interspersed_args": False})(run)
    app.command()(rerun)


def run(
    ctx: typer.Context,
    command: Command = None,
    gpus: overrides.Gpus = None,
    cpus: overrides.Cpus = None,
    memory: overrides.Memory = None,
    image: overrides.Image = None,
    replicas: overrides.Replicas = None,
    queue: overrides.Queue = None,
    name: overrides.JobName = None,
    priority: overrides.Priority = None,
    priority_class: overrides.PriorityClass = None,
    label: overrides.LabelPairs = None,
    env: overrides.EnvPairs = None,
    time_limit: overrides.TimeLimit = None,
    start_after: overrides.StartAfter = None,
    deadline: overrides.DeadlineOption = None,
    after: overrides.After = None,
    after_group: overrides.AfterGroup = None,
    group: overrides.Group = None,
    kind: overrides.Kinds = None,
    cluster: overrides.Clusters = None,
    bring: files.FilesOption = None,
    take: files.InputOption = None,
    artifact: files.ArtifactOption = None,
    stdin: member_streams.Stdin = False,
    tty: member_streams.Tty = False,
    wait: WaitOption = False,
    follow_logs: FollowOption = False,
    dry_run: DryRunOption = False,
    on_behalf_of: OnBehalfOfOption = None,
    close_group: CloseGroupOption = False,
    print_only: Annotated[
        bool, typer.Option("--print", help="Print the job as YAML, as submit takes it; submit nothing.")
    ] = False,
    output: OutputOption = Format.TABLE,
) -> None:
    """Submit a job that runs a command. Without --queue, it is TRAINMASTER_QUEUE, else the only queue that you may use.

    Without --name, the job is named after the program. With -it the command runs in a terminal, in a session that is cancelled when it
    ends.
    """
    if not command:
        raise UsageError("run what? trainmaster run [OPTIONS] -- COMMAND, such as: trainmaster run -- python train.py")
    changes = overrides.overrides(
        queue=queue or os.environ.get("TRAINMASTER_QUEUE") or None,
        priority=priority,
        priority_class=priority_class,
        labels=label,
        env=env,
        time_limit=time_limit,
        start_after=start_after,
        deadline=deadline,
        after=after,
        after_group=after_group,
        group=group,
        gpus=gpus,
        cpus=cpus,
        memory=memory,
        image=image,
        replicas=replicas,
        kinds=kind,
        clusters=cluster,
    )
    if stdin or tty:
        ignored = {
            "--wait": wait,
            "--follow": follow_logs,
            "--dry-run": dry_run,
            "--on-behalf-of": on_behalf_of,
            "--close-group": close_group,
            "--print": print_only,
            "--files": bring,
            "--input": take,
            "--artifact": artifact,
        }
        _run_in_terminal(ctx, changes, name or name_of(command), command, [one for one in ignored if ignored[one]])
        return
    role = {"name": "main" if replicas in (None, 1) else "worker", "template": {"command": command}}
    made = changes.applied({"kind": "Job", "name": name or name_of(command), "roles": [role]})
    spec = in_order(files.with_inputs(files.with_artifacts(made, artifact), take))
    if print_only and bring:
        raise UsageError("--files uploads files, and --print submits nothing: leave out one of the two")
    stay = AfterSubmit(wait=wait, follow=follow_logs, dry_run=dry_run, user=on_behalf_of, close_group=close_group)
    stay.check(1)
    if "queue" in spec:
        check_options(spec)
    if print_only and "queue" in spec:
        print_data(spec, Format.YAML)
        return
    with config.connect(ctx) as client:
        if "queue" not in spec:
            spec = in_order(spec | {"queue": only_queue(client)})
            check_options(spec)
        if print_only:
            print_data(spec, Format.YAML)
            return
        spec = in_order(files.with_files(client, spec, bring))
        raise typer.Exit(_submit(client, spec, stay, output))


def _run_in_terminal(
    ctx: typer.Context, changes: overrides.Overrides, name: str, command: Sequence[str], ignored: Sequence[str]
) -> None:
    """Run a command in a terminal of a session. Raises UsageError for options that mean nothing then."""
    from trainmaster.cli import sessions  # which imports this module

    if ignored:
        raise UsageError(f"-it runs the command in a terminal of a session: leave out {', '.join(ignored)}")
    sessions.run_in_session(ctx, changes, name, command)


def in_order(spec: dict[str, Any]) -> dict[str, Any]:
    """Return a specification in the order in which people write it."""
    first = [name for name in ("kind", "name", "queue") if name in spec]
    return {
        name: spec[name]
        for name in (*first, *(name for name in spec if name not in first and name != "roles"), "roles")
    }


def name_of(command: Sequence[str]) -> str:
    """Return a name for a job: that of its script, else of its program."""
    words = [word for word in command if not word.startswith("-")]
    program = PurePath(words[0]).name if words else ""
    if re.sub(r"[0-9.]+$", "", program) in _INTERPRETERS or program in _INTERPRETERS:
        scripts = [word for word in words[1:] if word.endswith((".py", ".sh"))]
        program = PurePath((scripts or words)[0]).stem if scripts else program
    text = re.sub(r"[^a-z0-9]+", "-", program.lower())[:_LONGEST_NAME].strip("-")
    return text or "job"


def only_queue(client: "Client") -> str:
    """Return the only queue that jobs may go to. Raises UsageError where there are several, or none."""
    leaves = [queue.path for queue in client.queues() if queue.is_leaf]
    if len(leaves) == 1:
        return leaves[0]
    if not leaves:
        raise UsageError("there is no queue that you may use; an admin makes them with: trainmaster apply -f FILE")
    raise UsageError(f"which queue? give --queue; you may use: {', '.join(leaves)}")


def check_options(spec: dict[str, Any]) -> None:
    """Raise ProblemError whose mistakes name the options that they came from."""
    from trainmaster.cli.documents import validated
    from trainmaster.protocol.errors import ProblemError
    from trainmaster.protocol.jobs import JobSpec

    try:
        validated(JobSpec, spec)
    except ProblemError as error:
        mistakes = tuple(one.model_copy(update={"path": _option_of(one.path)}) for one in error.mistakes)
        raise ProblemError(error.code, error.detail, mistakes=mistakes) from error


def _option_of(path: str) -> str:
    return next(
        (option for field, option in _OPTIONS.items() if path == field or path.startswith((f"{field}.", f"{field}["))),
        path,
    )


def _submit(client: "Client", spec: dict[str, Any], stay: AfterSubmit, output: Format, place: str = "") -> int:
    from trainmaster.protocol.documents import Document

    return submit_all(client, [Document(spec, place)], None, stay, output)


def rerun(
    ctx: typer.Context,
    job: JobId,
    command: Command = None,
    gpus: overrides.Gpus = None,
    cpus: overrides.Cpus = None,
    memory: overrides.Memory = None,
    image: overrides.Image = None,
    replicas: overrides.Replicas = None,
    queue: overrides.Queue = None,
    name: overrides.JobName = None,
    priority: overrides.Priority = None,
    priority_class: overrides.PriorityClass = None,
    label: overrides.LabelPairs = None,
    env: overrides.EnvPairs = None,
    time_limit: overrides.TimeLimit = None,
    start_after: overrides.StartAfter = None,
    deadline: overrides.DeadlineOption = None,
    after: overrides.After = None,
    after_group: overrides.AfterGroup = None,
    group: overrides.Group = None,
    kind: overrides.Kinds = None,
    cluster: overrides.Clusters = None,
    wait: WaitOption = False,
    follow_logs: FollowOption = False,
    dry_run: DryRunOption = False,
    on_behalf_of: OnBehalfOfOption = None,
    close_group: CloseGroupOption = False,
    output: OutputOption = Format.TABLE,
) -> None:
    """Submit another job with a job's specification and its parameters, whatever its state. Options replace parts of it.

    It does not wait for other jobs or a start time, and has no deadline and no group, unless by --after, --start-after, --deadline and
    --group.

    To run the same job once more after it has failed, use retry.
    """
    changes = overrides.overrides(
        name=name,
        queue=queue,
        priority=priority,
        priority_class=priority_class,
        labels=label,
        env=env,
        time_limit=time_limit,
        start_after=start_after,
        deadline=deadline,
        after=after,
        after_group=after_group,
        group=group,
        gpus=gpus,
        cpus=cpus,
        memory=memory,
        image=image,
        replicas=replicas,
        kinds=kind,
        clusters=cluster,
        command=command,
    )
    stay = AfterSubmit(wait=wait, follow=follow_logs, dry_run=dry_run, user=on_behalf_of, close_group=close_group)
    stay.check(1)
    with config.connect(ctx) as client:
        item = client.job(job)
        if item.spec is None:
            raise UsageError(f"the dispatcher does not show the specification of {job}")
        # The earlier jobs have been waited for; a name of one says nothing in another submission. A deadline may have passed, and
        # a group may be closed.
        again = {field: value for field, value in item.spec.items() if field not in _OF_ITS_TIME}
        if hooks := [one for one in again.pop("notify", ()) if group or not one.get("group")]:
            again["notify"] = hooks
        spec = changes.applied({"kind": "Job"} | again)
        check_options(spec)
        if not dry_run and not output.is_data:
            note(f"as {item.id}:")
        raise typer.Exit(_submit(client, spec, stay, output, place=item.id))
