"""Filters of jobs: the options of all commands that take one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from trainmaster.cli import completion
from trainmaster.cli.output import now
from trainmaster.cli.overrides import pairs_of
from trainmaster.cli.time_arguments import moment_of

if TYPE_CHECKING:
    from trainmaster.client.http import Client
    from trainmaster.client.values import JobFilter

QueueOption = Annotated[
    str | None,
    typer.Option(
        "--queue", help="Only of this queue or below it.", show_default=False, autocompletion=completion.queues
    ),
]
StateOption = Annotated[
    list[str] | None,
    typer.Option(
        "--state", help="Only in this state; may be repeated.", show_default=False, autocompletion=completion.states
    ),
]
NameOption = Annotated[
    str | None, typer.Option("--name", help="Only with this name; * matches anything.", show_default=False)
]
LabelOption = Annotated[
    list[str] | None,
    typer.Option("--label", metavar="KEY=VALUE", help="Only with this label; may be repeated.", show_default=False),
]
GroupOption = Annotated[
    str | None,
    typer.Option(
        "--group",
        metavar="NAME",
        help="Only of this group of jobs.",
        show_default=False,
        autocompletion=completion.groups,
    ),
]
ClusterOption = Annotated[
    str | None,
    typer.Option("--cluster", help="Only on this cluster.", show_default=False, autocompletion=completion.clusters),
]
MineOption = Annotated[
    bool, typer.Option("--mine", help="Only submitted with the key in use, or an earlier one of its name.")
]
ByOption = Annotated[
    str | None, typer.Option("--by", help="Only submitted with the key of this name.", show_default=False)
]
SinceOption = Annotated[
    str | None,
    typer.Option(
        "--since",
        help="Only submitted from then on: a date, a time, or a duration ago, such as 12h or 7d.",
        show_default=False,
    ),
]
UntilOption = Annotated[
    str | None,
    typer.Option("--until", help="Only submitted before then, written in the same way.", show_default=False),
]
PriorityClassOption = Annotated[
    str | None,
    typer.Option(
        "--priority-class",
        metavar="NAME",
        help="Only of this priority class.",
        show_default=False,
        autocompletion=completion.classes,
    ),
]
SearchOption = Annotated[
    str | None,
    typer.Option(
        "--search",
        metavar="TEXT",
        help="The job with this id, and jobs whose name begins with this, that the key of this name submitted, or with this label,"
        " as KEY=VALUE.",
        show_default=False,
    ),
]


@dataclass(frozen=True, slots=True)
class Given:
    """The filter that options describe."""

    queue: str | None = None
    states: Sequence[str] | None = None
    name: str | None = None
    labels: Sequence[str] | None = None
    cluster: str | None = None
    mine: bool = False
    by: str | None = None
    since: str | None = None
    until: str | None = None
    group: str | None = None
    priority_class: str | None = None
    search: str | None = None

    @property
    def is_given(self) -> bool:
        """Return whether there is a condition."""
        texts = (self.queue, self.name, self.cluster, self.by, self.since, self.until, self.group)
        more = (self.priority_class, self.search)
        return self.mine or bool(self.states or self.labels) or any(text is not None for text in texts + more)

    def to_filter(self, client: "Client") -> "JobFilter":
        """Return the client's filter; for ``mine`` the dispatcher is asked for the key's name. Raises UsageError."""
        from trainmaster.client.values import JobFilter

        moment = now()
        labels = pairs_of(self.labels, "--label")
        since = None if self.since is None else moment_of(self.since, moment, "--since")
        until = None if self.until is None else moment_of(self.until, moment, "--until")
        if self.mine and self.by is not None:
            raise typer.BadParameter("means the key in use; --by names another one", param_hint="--mine")
        by = client.whoami().name if self.mine else self.by
        states = tuple(self.states or ())
        return JobFilter(
            self.queue,
            states,
            self.name,
            self.priority_class,
            labels,
            self.cluster,
            by,
            since,
            until,
            self.group,
            self.search,
        )
