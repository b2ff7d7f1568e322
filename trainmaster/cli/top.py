"""``top``: what running jobs use, beside what they requested."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from trainmaster.cli import completion, config
from trainmaster.cli.csv_output import print_csv
from trainmaster.cli.output import Format, age, data_of, note, now, print_data, print_pairs, print_table, took
from trainmaster.cli.refresh import WatchOption, repeated
from trainmaster.cli.time_arguments import moment_of

if TYPE_CHECKING:
    from trainmaster.protocol.member_use import JobUse, ReportingCluster, TopAnswer, TopGroup, UsedAmount, UseOfJob


def register(app: typer.Typer) -> None:
    app.command()(top)


class TopFormat(StrEnum):
    TABLE = "table"
    CSV = "csv"
    JSON = "json"
    YAML = "yaml"


class SortBy(StrEnum):
    CPU = "cpu"
    MEMORY = "memory"
    GPU = "gpu"
    IDLE = "idle"


class GroupBy(StrEnum):
    QUEUE = "queue"
    CLUSTER = "cluster"
    USER = "user"


def top(
    ctx: typer.Context,
    job: Annotated[
        str | None,
        typer.Argument(help="Show the members of this job.", show_default=False, autocompletion=completion.jobs),
    ] = None,
    queue: Annotated[
        str | None,
        typer.Option(
            "-q",
            "--queue",
            help="Only of this queue or below it.",
            show_default=False,
            autocompletion=completion.queues,
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            "-c", "--cluster", help="Only on this cluster.", show_default=False, autocompletion=completion.clusters
        ),
    ] = None,
    user: Annotated[
        str | None, typer.Option("--user", help="Only submitted with the key of this name.", show_default=False)
    ] = None,
    gpus_idle: Annotated[
        bool, typer.Option("--gpus-idle", help="Only jobs whose GPUs do nothing, by the policy of their queue.")
    ] = False,
    sort: Annotated[
        SortBy, typer.Option("--sort", help="The most of this first; idle: the smallest part of what was requested.")
    ] = SortBy.CPU,
    by: Annotated[GroupBy | None, typer.Option("--by", help="Sums of groups of jobs.", show_default=False)] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="The most jobs.")] = 100,
    since: Annotated[
        str | None,
        typer.Option("--since", help="History of JOB since a time, or for a duration: 6h.", show_default=False),
    ] = None,
    step: Annotated[
        int | None,
        typer.Option("--step", min=10, max=86_400, help="Seconds of each line of the history.", show_default=False),
    ] = None,
    watch: WatchOption = False,
    output: Annotated[TopFormat, typer.Option("-o", "--output", help="Output format.")] = TopFormat.TABLE,
) -> None:
    """Show what running jobs use, beside what they requested: cores, memory and GPUs. Of one job, what each member uses.

    A - is unknown: nothing was sampled for three intervals, or the agent cannot see it.
    """
    if job is not None and (queue or cluster or user or by or gpus_idle):
        raise typer.BadParameter(
            "is for all members of one job: leave --queue, --cluster, --user, --by and --gpus-idle out",
            param_hint="JOB",
        )
    if job is None and (since or step):
        raise typer.BadParameter("is for the history of one job: name the JOB", param_hint="--since, --step")
    moment = None if since is None else moment_of(since, now(), "--since")
    with config.connect(ctx) as client:
        if job is not None:
            repeated(lambda: _print_job(client.use_of(job, since=moment, step=step), output), watch=watch)
            return
        group: TopGroup | None = None if by is None else by.value

        def read() -> "TopAnswer":
            return client.top(
                queue=queue,
                cluster=cluster,
                user=user,
                gpus_idle=gpus_idle,
                sort=sort.value,
                by=group,
                limit=limit,
            )

        repeated(lambda: _print_top(read(), by, output, are_gpus_idle=gpus_idle), watch=watch)


def _print_top(found: "TopAnswer", by: GroupBy | None, output: TopFormat, *, are_gpus_idle: bool) -> None:
    if output in (TopFormat.JSON, TopFormat.YAML):
        print_data(data_of(found), Format(output.value))
    elif output is TopFormat.CSV:
        _print_top_csv(found, by)
    elif not found.running and are_gpus_idle:
        note("no running job that matches has idle GPUs, or its queue does not say when they are idle (idleGpus)")
    elif not found.running:
        note("no job runs that matches; `trainmaster jobs` shows those that wait")
    elif by is not None:
        _print_groups(found, by)
    else:
        _print_jobs(found)
    for sentence in gaps(found.clusters) if output is TopFormat.TABLE else ():
        note(sentence)


def gaps(clusters: Sequence["ReportingCluster"]) -> list[str]:
    """Return a sentence for each reason why something is unknown."""
    silent = [one.name for one in clusters if one.reported_at is None]
    sentences = []
    if silent:
        sentences.append(
            f"no use is known of {_clusters(silent)}: their agents have not reported any; they report in intervals of"
            " useSeconds (30 unless the agent's configuration says otherwise), if they are of this release"
        )
    by_reason: dict[str, list[str]] = {}
    for one in clusters:
        if one.missing:
            by_reason.setdefault(one.missing, []).append(one.name)
    return [*sentences, *(f"{_clusters(names)}: {reason}" for reason, names in by_reason.items())]


def _clusters(names: Sequence[str]) -> str:
    return f"cluster{'s' if len(names) > 1 else ''} {', '.join(names)}"


def _print_jobs(found: "TopAnswer") -> None:
    are_some_idle = any(one.use.gpus_idle_since is not None for one in found.jobs)
    columns = ["NAME", "QUEUE", "CLUSTER", "MEMBERS", "CPU", "MEMORY", "GPU", "SAMPLED"]
    columns += ["GPUS IDLE"] if are_some_idle else []
    rows = [
        [
            one.job,
            one.queue,
            one.cluster,
            one.members,
            cores(one.use.cpu),
            memory(one.use.memory),
            gpus(one.use.gpu),
            age(one.use.sampled_at, found.at),
            *([took(one.use.gpus_idle_since, found.at)] if are_some_idle else []),
        ]
        for one in found.jobs
    ]
    print_table(columns, rows)
    if found.running > len(found.jobs):
        note(f"{len(found.jobs)} of {found.running} running jobs; --limit shows more")


def _print_groups(found: "TopAnswer", by: GroupBy) -> None:
    rows = [
        [one.of or "-", one.jobs, one.known, one.members, cores(one.cpu), memory(one.memory), gpus(one.gpu)]
        for one in found.groups
    ]
    print_table([by.upper(), "JOBS", "KNOWN", "MEMBERS", "CPU", "MEMORY", "GPU"], rows)


def _number(value: float | None) -> str:
    """Return an amount with as many digits as matter; ``-`` where it is unknown."""
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _percent(amount: "UsedAmount") -> str:
    return "" if amount.percent is None else f" ({amount.percent:.0f}%)"


def cores(amount: "UsedAmount") -> str:
    """Return used and requested cores: ``1.50/4 (38%)``."""
    requested = "-" if amount.requested is None else f"{amount.requested:g}"
    return f"{_number(amount.used)}/{requested}{_percent(amount)}"


def memory(amount: "UsedAmount") -> str:
    """Return used and requested memory: ``1.5Gi/8Gi (19%)``."""
    return f"{size(amount.used)}/{size(amount.requested)}{_percent(amount)}"


def gpus(amount: "UsedAmount") -> str:
    """Return how much of the GPUs is at work, and how many were requested: ``72% of 8``; ``-`` without GPUs."""
    if amount.used is None and amount.requested is None:
        return "-"
    percent = "-" if amount.percent is None else f"{amount.percent:.0f}%"
    return percent if amount.requested is None else f"{percent} of {amount.requested:g}"


def size(amount: float | None) -> str:
    """Return bytes as text; ``-`` where they are unknown."""
    from trainmaster.protocol.quantities import format_quantity

    return "-" if amount is None else format_quantity("memory", round(amount))


def summary(use: "JobUse") -> str:
    """Return the use of a run in a line."""
    parts = []
    if use.cpu.used is not None or use.memory.used is not None:
        parts += [f"cpu {cores(use.cpu)}", f"memory {memory(use.memory)}"]
        parts += [f"gpu {gpus(use.gpu)}"] if use.gpu.used is not None else []
        parts.append(age(use.sampled_at))
    for name, number in (
        ("restarts", use.restarts),
        ("samples near the memory limit", use.near_misses),
        ("ends for lack of memory", use.oom_kills),
    ):
        parts += [f"{number} {name}"] if number else []
    if use.gpus_idle_since is not None:
        parts.append(f"its GPUs do nothing since {use.gpus_idle_since:%Y-%m-%d %H:%M} UTC")
    if use.peak_memory is not None:
        parts.append(f"peak of a member {size(use.peak_memory)}")
    for name, average in (("cpu", use.cpu_average), ("gpu", use.gpu_average)):
        if average.percent is not None:
            parts.append(f"{name} {average.percent:.0f}% of the requested on average")
    return ", ".join(parts)


def _count(number: int | None) -> str:
    return "-" if number is None else str(number)


class _HistoryLine(NamedTuple):
    """The use of all members in a step of the history: sums, of GPUs the average. None is unknown."""

    at: datetime
    cpu: float | None
    memory: float | None
    gpu: float | None
    gpu_memory: float | None


def _history_of(found: "UseOfJob") -> list[_HistoryLine]:
    """Return the steps of the history of which something is known."""
    series = found.series or ()
    lines = []
    for place in range(len(series[0].values) if series else 0):
        at = series[0].start + timedelta(seconds=series[0].step * place)
        values: dict[str, list[float]] = {}
        for one in series:
            if (value := one.values[place]) is not None:
                values.setdefault(one.metric, []).append(value)
        if not values:
            continue
        cpu, memory, gpu_memory = (
            sum(values[name]) if name in values else None for name in ("cpu", "memory", "gpuMemory")
        )
        gpu = sum(values["gpu"]) / len(values["gpu"]) if "gpu" in values else None
        lines.append(_HistoryLine(at, cpu, memory, gpu, gpu_memory))
    return lines


def _whole(amount: float | None) -> int | None:
    return None if amount is None else round(amount)


def _print_history(found: "UseOfJob", output: TopFormat) -> None:
    lines = _history_of(found)
    if output is TopFormat.CSV:
        print_csv(
            ["time", "cpu_cores", "memory_bytes", "gpu_percent", "gpu_memory_bytes"],
            [
                [
                    "" if cell is None else cell
                    for cell in (one.at.isoformat(), one.cpu, _whole(one.memory), one.gpu, _whole(one.gpu_memory))
                ]
                for one in lines
            ],
        )
    elif not lines:
        note("no history is known of this time; it is kept for 7 days")
    else:
        rows = [
            [
                one.at.strftime("%Y-%m-%d %H:%M:%S"),
                _number(one.cpu),
                size(one.memory),
                "-" if one.gpu is None else f"{one.gpu:.0f}%",
                size(one.gpu_memory),
            ]
            for one in lines
        ]
        print()
        print_table(["TIME", "CPU", "MEMORY", "GPU", "GPU MEMORY"], rows)
    if left_out := found.series_left_out:
        members = "1 member is" if left_out == 1 else f"{left_out} members are"
        note(f"{members} not in it; a later --since, or a longer --step, has more of them")


def _print_job(found: "UseOfJob", output: TopFormat) -> None:
    if output in (TopFormat.JSON, TopFormat.YAML):
        print_data(data_of(found), Format(output.value))
        return
    if output is TopFormat.CSV:
        if found.series is not None:
            _print_history(found, output)
        else:
            _print_members_csv(found)
        return
    columns = ["MEMBER", "NODE", "CPU", "MEMORY", "PEAK", "GPU", "GPU MEMORY", "RESTARTS", "NEAR LIMIT", "OOM"]
    print_pairs([("job", found.job), ("cluster", found.cluster), ("use", summary(found.use) if found.use else "")])
    if found.members:
        print_table(
            columns,
            [
                [
                    f"{one.role}-{one.index}",
                    one.node or "-",
                    _number(one.cpu),
                    size(one.memory),
                    size(one.peak_memory),
                    "-" if one.gpu is None else f"{one.gpu:.0f}%",
                    size(one.gpu_memory),
                    *(_count(one.restarts), _count(one.near_misses), _count(one.oom_kills)),
                ]
                for one in found.members
            ],
        )
    if found.series is not None:
        _print_history(found, output)
    if found.use is None:
        note(
            f"nothing is known of what it uses{f': {found.missing}' if found.missing else ''}; agents report running members"
            " in intervals"
        )
    elif found.missing:
        note(found.missing)


def _print_members_csv(found: "UseOfJob") -> None:
    names = [
        *("role", "index", "node", "cpu_cores", "memory_bytes", "peak_memory_bytes", "gpu_percent", "gpu_memory_bytes"),
        *("restarts", "near_misses", "oom_kills"),
    ]
    rows: list[list[object]] = [
        [
            *(one.role, one.index, one.node, one.cpu, one.memory, one.peak_memory, one.gpu, one.gpu_memory),
            *(one.restarts, one.near_misses, one.oom_kills),
        ]
        for one in found.members
    ]
    print_csv(names, [["" if cell is None else cell for cell in row] for row in rows])


def _print_top_csv(found: "TopAnswer", by: GroupBy | None) -> None:
    amounts = [f"{name}_{part}" for name in ("cpu", "memory", "gpu") for part in ("used", "requested")]
    if by is None:
        print_csv(
            ["job", "queue", "cluster", "user", "members", *amounts, "sampled_at"],
            [
                [
                    *(one.job, one.queue, one.cluster, one.user, one.members),
                    *_cells(one.use.cpu, one.use.memory, one.use.gpu),
                    "" if one.use.sampled_at is None else one.use.sampled_at.isoformat(),
                ]
                for one in found.jobs
            ],
        )
        return
    print_csv(
        [by.value, "jobs", "known", "members", *amounts],
        [[one.of, one.jobs, one.known, one.members, *_cells(one.cpu, one.memory, one.gpu)] for one in found.groups],
    )


def _cells(*amounts: "UsedAmount") -> list[object]:
    cells = [cell for amount in amounts for cell in (amount.used, amount.requested)]
    return ["" if cell is None else cell for cell in cells]
