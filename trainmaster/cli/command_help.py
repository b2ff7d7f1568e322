"""Help of all commands, also of those of other distributions: the sections of the list, and examples of each command."""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typer.core import TyperCommand, TyperGroup

SECTIONS: Mapping[str, tuple[str, ...]] = {
    "Jobs": (
        *("run", "submit", "jobs", "job", "elements", "artifacts", "why", "logs", "watch", "wait"),
        *("exec", "attach", "port-forward", "shell", "jupyter", "vscode", "sessions", "open"),
        *("cancel", "suspend", "resume", "retry", "rerun", "change", "schedules", "workflows", "groups"),
    ),
    "Queues, clusters and cost": (
        *(
            "queues",
            "clusters",
            "priority-classes",
            "reservations",
            "datasets",
            "price-books",
            "burst",
            "usage",
            "top",
            "efficiency",
        ),
        *("series", "attainment", "simulate", "simulations"),
    ),
    "Access": ("login", "logout", "contexts", "whoami", "dashboard", "can-i", "notices", "token", "kubeconfig"),
    "Administration": (
        *("apply", "diff", "export", "get", "patch", "delete", "history", "rollback"),
        *("keys", "people", "who-can", "role-bindings", "audit", "webhooks"),
        *("doctor", "backup", "restore", "support-bundle"),
    ),
    "Processes of an installation": ("up", "serve", "scheduler", "worker", "beat", "agent", "migrate", "admin"),
}
"""The commands of each section, in their order. A command that none names is in the last section."""
OTHER_SECTION = "Other commands"

_JOB = "bert-7k2p9xq"
_WORKFLOW = "nightly-w7k2p9xq"
EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "": ("login https://trainmaster.example.org", "run --gpus 1 -- python train.py", "jobs --mine"),
    "run": (
        "run -- python train.py --epochs 3",
        "run --gpus 8 --memory 64Gi --queue research/vision --follow -- torchrun train.py",
        "run --image registry.example.org/train:1 --env SEED=1 --print -- python train.py > job.yaml",
        "run --after prepare-0v9k3m2 --start-after 8h -- python train.py",
        "run --files . --artifact model=out/model -- python train.py",
        f"run --input {_JOB}/model:in -- python evaluate.py",
        "run -it --gpus 1 -- python",
    ),
    "submit": (
        "submit job.yaml",
        "submit job.yaml --queue research/vision --env SEED=2 --follow",
        "submit job.yaml --parameters table.csv",
        "submit cronjob.yaml",
        "submit workflow.yaml --wait",
        "submit job.yaml --parameters table.csv --group sweep-7 --close-group",
        "submit --dry-run job.yaml",
        "submit job.yaml --files src:code --artifact model=out/model",
    ),
    "rerun": (f"rerun {_JOB}", f"rerun {_JOB} --memory 16Gi --env SEED=2 --wait"),
    "jobs": (
        "jobs --mine --state running",
        "jobs --search bert",
        "jobs --since 1d --sort ended -o wide",
        "jobs --label team=vision -o id",
    ),
    "job": (f"job {_JOB}", f"job {_JOB} --spec > job.yaml", f"job {_JOB} --watch"),
    "elements": (f"elements {_JOB}", f"elements {_JOB} --jobs --only 0-9"),
    "artifacts": (f"artifacts {_JOB}", f"artifacts {_JOB} model --to model", f"artifacts {_JOB} --all --to results"),
    "why": (f"why {_JOB}",),
    "logs": (f"logs -f {_JOB}", f"logs {_JOB} --tail 100 --timestamps", "logs --label sweep=7"),
    "exec": (f"exec {_JOB} -- nvidia-smi", f"exec -it {_JOB}/worker-0 -- bash"),
    "attach": (f"attach {_JOB}/worker-0", f"attach -it {_JOB}"),
    "port-forward": (f"port-forward {_JOB} 6006", f"port-forward {_JOB}/worker-0 8080:80"),
    "shell": ("shell --gpus 1 --image registry.example.org/train:1", "shell --keep --home ann -- zsh"),
    "jupyter": ("jupyter --gpus 1 --image registry.example.org/lab:1 --home ann",),
    "vscode": ("vscode --image registry.example.org/editor:1 --idle-timeout 2h",),
    "sessions": ("sessions", "sessions --all --queue research"),
    "open": ("open jupyter-7k2p9xq", "open jupyter-7k2p9xq 6006"),
    "watch": (f"watch {_JOB}", "watch --queue research --state failed"),
    "wait": (f"wait {_JOB} --timeout 10m", "wait --label sweep=7", "wait --group sweep-7"),
    "cancel": (f"cancel {_JOB}", "cancel --label sweep=7 --yes", f"cancel {_JOB} --elements 500-999"),
    "suspend": (f"suspend {_JOB}", "suspend --queue research/vision --dry-run"),
    "resume": (f"resume {_JOB}",),
    "retry": (f"retry {_JOB}", "retry --state failed --label sweep=7"),
    "change": (f"change {_JOB} --priority 10",),
    "schedules": ("schedules", "schedules list --queue research -o wide"),
    "schedules list": ("schedules list", "schedules list --queue research -o wide"),
    "schedules show": ("schedules show nightly", "schedules show nightly --spec > schedule.yaml"),
    "schedules suspend": ("schedules suspend nightly",),
    "schedules resume": ("schedules resume nightly",),
    "schedules run-now": ("schedules run-now nightly",),
    "schedules delete": ("schedules delete nightly --keep-jobs",),
    "workflows": ("workflows", "workflows list --state running"),
    "workflows list": ("workflows list --watch", "workflows list --queue research --state failed"),
    "workflows show": (
        f"workflows show {_WORKFLOW}",
        f"workflows show {_WORKFLOW} --watch",
        f"workflows show {_WORKFLOW} --spec > workflow.yaml",
    ),
    "workflows wait": (f"workflows wait {_WORKFLOW} --timeout 1h",),
    "workflows cancel": (f"workflows cancel {_WORKFLOW}", f"workflows cancel {_WORKFLOW} --no-cleanup --yes"),
    "workflows resume": (f"workflows resume {_WORKFLOW}",),
    "groups": ("groups", "groups list --state open"),
    "groups list": ("groups list", "groups list --queue research --state failed"),
    "groups show": ("groups show sweep-7", "groups show sweep-7 --queue research/vision"),
    "groups wait": ("groups wait sweep-7 --timeout 1h",),
    "groups close": ("groups close sweep-7",),
    "groups cancel": ("groups cancel sweep-7", "groups cancel sweep-7 --grace 5s --yes"),
    "queues": ("queues", "queues --watch", "queues -o json"),
    "clusters": ("clusters", "clusters -o wide"),
    "clusters cordon": ("clusters cordon west",),
    "clusters uncordon": ("clusters uncordon west",),
    "clusters join": ("clusters join west --kind private --url https://trainmaster.example.org",),
    "clusters rotate": ("clusters rotate west",),
    "clusters drain": ("clusters drain west --wait --timeout 30m",),
    "clusters declare-lost": ("clusters declare-lost west",),
    "clusters quarantined": ("clusters quarantined west",),
    "clusters remove": ("clusters remove west",),
    "priority-classes": ("priority-classes",),
    "priority-classes show": ("priority-classes show high",),
    "priority-classes remove": ("priority-classes remove high",),
    "price-books": ("price-books",),
    "price-books show": ("price-books show cloud",),
    "price-books remove": ("price-books remove cloud",),
    "datasets": ("datasets",),
    "datasets show": ("datasets show imagenet",),
    "datasets remove": ("datasets remove imagenet",),
    "reservations": ("reservations -o wide",),
    "reservations show": ("reservations show night",),
    "reservations remove": ("reservations remove night",),
    "burst": ("burst",),
    "burst show": ("burst show overflow",),
    "burst preview": ("burst preview", "burst preview -f policy.yaml"),
    "burst pause": ("burst pause overflow",),
    "burst resume": ("burst resume overflow",),
    "burst remove": ("burst remove overflow",),
    "attainment": ("attainment --since 90d", "attainment --queue research -o csv"),
    "efficiency": ("efficiency --since 7d --by user", "efficiency --queue research -o csv"),
    "usage": ("usage --since 7d --by queue,user", "usage --label team=vision --per day -o chart"),
    "series": (
        "series cluster.gpu.used --by cluster --since 6h",
        "series queue.jobs.queued -q research --depth 1 --since 7d",
        "series cluster.nodes.notReady --since 1d -o csv",
    ),
    "queues what-if": (
        "queues what-if research/vision --guarantee nvidia.com/gpu=24 --wait",
        "queues what-if research -f edited.yaml --since 3d",
    ),
    "top": ("top --sort idle", "top --gpus-idle --by user", f"top {_JOB} --watch", "top --by queue -o csv"),
    "notices": ("notices",),
    "notices set": (
        "notices set --email --event failed --min-duration 10m",
        "notices set --chat slack=https://hooks.slack.com/services/T0/B0/X",
    ),
    "notices remove": ("notices remove",),
    "webhooks": ("webhooks -o wide",),
    "webhooks secret": ("webhooks secret research/vision",),
    "webhooks rotate": ("webhooks rotate research/vision --overlap 1d",),
    "webhooks retry": ("webhooks retry 31",),
    "webhooks drop": ("webhooks drop 31",),
    "audit": (
        "audit --since 1d",
        'audit --action "put queue" -o wide',
        "audit --since 30d --limit 100000 -o csv > audit.csv",
    ),
    "apply": ("apply -f queues.yaml --dry-run", "apply -f fleet/ --owner git --prune --yes"),
    "diff": ("diff -f fleet/ --owner git --prune",),
    "export": ("export > fleet.yaml", "export queue research/vision"),
    "get": ("get queue", "get cluster west"),
    "patch": ("patch queue research/vision -p '{\"weight\": 2}'",),
    "delete": ("delete queue research/vision",),
    "history": ("history queue research/vision",),
    "rollback": ("rollback queue research/vision --to 7 --dry-run",),
    "doctor": ("doctor", "doctor -o json"),
    "backup": ("backup --out trainmaster.backup",),
    "restore": ("restore trainmaster.backup --check", "restore trainmaster.backup"),
    "support-bundle": ("support-bundle --out bundle.tar.gz",),
    "role-bindings": ("role-bindings", "role-bindings -o wide"),
    "role-bindings show": ("role-bindings show vision",),
    "role-bindings remove": ("role-bindings remove vision",),
    "keys": ("keys",),
    "keys list": ("keys list -o wide",),
    "keys make": (
        "keys make vision-team --queue research/vision --expires-in 90d",
        "keys make audit-2037 --role auditor --expires-in 30d",
        "keys make olga --role owner --cluster east",
        "keys make ann --role admin",
    ),
    "keys rotate": ("keys rotate", "keys rotate 7 --overlap 24h"),
    "keys revoke": ("keys revoke 7",),
    "keys email": ("keys email 7 ada@example.com",),
    "keys restore": ("keys restore 9",),
    "login": (
        "login https://trainmaster.example.org",
        "login https://trainmaster.example.org --key-file key --name prod",
        "login https://trainmaster.example.org --oidc",
    ),
    "logout": ("logout", "logout prod"),
    "contexts": ("contexts",),
    "contexts use": ("contexts use prod",),
    "contexts remove": ("contexts remove prod",),
    "whoami": ("whoami", "whoami -o json"),
    "dashboard": ("dashboard", "dashboard --no-open"),
    "can-i": ("can-i", "can-i jobs.submit --queue research/vision"),
    "who-can": ("who-can queues.write --queue research",),
    "people": ("people", "people -o wide"),
    "token": ("token", "token --exec-credential"),
    "kubeconfig": ("kubeconfig > fleet.kubeconfig", "kubeconfig --namespace research-vision"),
    "version": ("version",),
    "up": ("up", "up --data ~/trainmaster --port 8470"),
    "serve": ("serve --host 0.0.0.0 --port 8470",),
    "scheduler": ("scheduler --metrics-port 9100",),
    "worker": ("worker",),
    "beat": ("beat",),
    "migrate": ("migrate",),
    "admin": ("admin first-key",),
    "admin first-key": ("admin first-key --name ann",),
    "admin bootstrap": ("admin bootstrap --out keys -f queues.yaml",),
    "admin recovered": ("admin recovered",),
    "simulate": ("simulate jobs.csv --fleet fleet.yaml", "simulate history --since 7d"),
    "simulations": ("simulations",),
    "simulations show": ("simulations show 3 --wait",),
    "simulations cancel": ("simulations cancel 3",),
    "simulations remove": ("simulations remove 3",),
    "agent": ("agent run --url http://127.0.0.1:8470 --cluster cluster.yaml --state-dir state --key-file key",),
    "agent run": ("agent run --url http://127.0.0.1:8470 --cluster cluster.yaml --state-dir state --key-file key",),
    "agent extension-apiserver": (
        "agent extension-apiserver --url https://trainmaster.example.com --key-file people.key --tls-certificate tls.crt"
        " --tls-key tls.key",
    ),
    "agent submissions": (
        "agent submissions --url https://trainmaster.example.com --cluster west --key-file submissions.key",
    ),
    "agent fleet": ("agent fleet --clusters 3 --nodes 100",),
}
"""Examples of each command, by its words; without ``trainmaster``."""


_LONGEST_SENTENCE = 1000


def give_examples(command: "TyperCommand | TyperGroup", words: str = "") -> None:
    """Add the examples to a command and to all below it. A command that has a text of its own below its options keeps it.

    In lists of commands their first sentences are wrapped, not cut.
    """
    command.short_help = command.short_help or command.get_short_help_str(_LONGEST_SENTENCE)
    if examples := EXAMPLES.get(words):
        lines = [f"  trainmaster {example}" for example in examples]
        command.epilog = command.epilog or "\n".join(("\b", "Examples:", *lines))
    below: Mapping[str, TyperCommand | TyperGroup] = getattr(command, "commands", {})
    for name, one in below.items():
        give_examples(one, f"{words} {name}".strip())


def by_section(names: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield the sections that have one of these commands, each with its commands in their order."""
    left = set(names)
    for section, members in SECTIONS.items():
        if present := [name for name in members if name in left]:
            left.difference_update(present)
            yield section, present
    if left:
        yield OTHER_SECTION, sorted(left)
