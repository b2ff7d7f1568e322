"""Metrics: one place of definitions, a page for each process, one page for processes that fork."""

import re
import subprocess
import sys
import textwrap
import urllib.request
from pathlib import Path

import pytest
from celery import Celery

from trainmaster.metrics import definitions as m
from trainmaster.metrics import exporter
from trainmaster.metrics.kinds import Definition, Picture, Process
from trainmaster_dispatcher.services import gauges
from trainmaster_dispatcher.worker.task_metrics import watch_tasks

REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"
ALL = list(m.BOOK.definitions.values())
_ROW = re.compile(
    r"^\| `(?P<name>trainmaster_\w+)` \| (?P<kind>\w+) \| (?P<labels>[^|]*) \| (?P<on>[^|]*) \| (?P<text>[^|]+) \|$"
)


def value_of(process: Process, series: str) -> float:
    """Return the value of one line of a page; 0 if it does not exist yet."""
    for line in exporter.page(process)[0].decode().splitlines():
        if line.startswith(series + " "):
            return float(line.rpartition(" ")[2])
    return 0.0


def documented() -> dict[str, dict[str, str]]:
    rows = [match.groupdict() for line in REFERENCE.read_text().splitlines() if (match := _ROW.match(line))]
    return {row["name"]: row for row in rows}


@pytest.mark.parametrize("definition", ALL, ids=lambda definition: definition.name)
def test_the_reference_tells_of_each_metric_as_it_is(definition: Definition) -> None:
    row = documented()[definition.name]
    assert row["kind"] == definition.kind
    assert row["labels"] == ", ".join(f"`{label}`" for label in definition.labels)
    on = ["all"] if definition.processes == set(Process) else sorted(process.value for process in definition.processes)
    assert row["on"] == ", ".join(on)


def test_the_reference_tells_of_nothing_else() -> None:
    assert documented().keys() == m.BOOK.definitions.keys()


@pytest.mark.parametrize("definition", ALL, ids=lambda definition: definition.name)
def test_no_label_names_a_job_a_run_a_session_or_a_path(definition: Definition) -> None:
    few = {
        "cluster",
        "queue",
        "state",
        "kind",
        "priority_class",
        "method",
        "route",
        "status",
        "verdict",
        "end",
        "category",
    }
    assert set(definition.labels) <= few | {
        "outcome",
        "by",
        "task",
        "process",
        "token",
        "version",
        "policy",
        "span",
        "reason",
        "place",
        "part",
        "limit",
        "resource",
        "product",
    }


@pytest.mark.parametrize("definition", ALL, ids=lambda definition: definition.name)
def test_names_say_what_is_counted_as_prometheus_wants_it(definition: Definition) -> None:
    assert re.fullmatch(r"trainmaster_[a-z_]+", definition.name)
    assert (definition.kind == "counter") == definition.name.endswith("_total")
    if definition.kind == "histogram":
        assert definition.name.endswith("_seconds")


def test_a_process_shows_its_own_metrics_only() -> None:
    pages = {process: exporter.page(process)[0].decode() for process in Process}
    assert "trainmaster_leader " in pages[Process.SCHEDULER]
    assert "trainmaster_leader " not in pages[Process.API]
    assert "trainmaster_agent_lease_margin_seconds " in pages[Process.AGENT]
    assert all("process_resident_memory_bytes" in page for page in pages.values())


def test_a_picture_is_replaced_as_a_whole_and_shows_nothing_once_cleared() -> None:
    picture = Picture("seats", "Seats.", ("row",))

    def shown() -> dict[str, float]:
        (family,) = picture.collect()
        return {sample.labels["row"]: sample.value for sample in family.samples}

    picture.show({("a",): 1, ("b",): 2})
    assert shown() == {"a": 1, "b": 2}
    picture.show({("c",): 3})
    assert shown() == {"c": 3}
    picture.clear()
    assert shown() == {}


def test_what_only_the_leader_shows_is_in_the_book() -> None:
    book = {id(definition.collector) for definition in ALL}
    assert all(id(picture) in book for picture in gauges.LEADERS)


def test_the_exporter_serves_the_page_over_http() -> None:
    server = exporter.start_exporter(0, Process.BEAT, "127.0.0.1")
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics") as answer:
            assert 'trainmaster_build_info{process="beat"' in answer.read().decode()
    finally:
        server.close()


def test_tasks_are_counted_by_how_they_ended() -> None:
    app = Celery("test", set_as_current=False)

    @app.task(name="test.half", throws=(ValueError,))  # type: ignore[untyped-decorator] # celery has no types
    def half(number: int) -> float:
        if number % 2:
            raise ValueError("odd")
        return number / 2

    watch_tasks()
    watch_tasks()
    before = {
        outcome: value_of(Process.WORKER, f'trainmaster_tasks_total{{outcome="{outcome}",task="test.half"}}')
        for outcome in ("success", "failure")
    }
    for number in (2, 3, 4):
        half.apply((number,))
    for outcome, more in (("success", 2), ("failure", 1)):
        series = f'trainmaster_tasks_total{{outcome="{outcome}",task="test.half"}}'
        assert value_of(Process.WORKER, series) - before[outcome] == more
    assert value_of(Process.WORKER, 'trainmaster_task_seconds_count{task="test.half"}') >= 3


def run(script: str, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *words], capture_output=True, text=True, check=False, timeout=60
    )


def test_without_the_client_library_the_package_says_what_to_install() -> None:
    ended = run(
        """
        import sys, importlib.util as util
        found = util.find_spec
        util.find_spec = lambda name, *rest: None if name == "prometheus_client" else found(name, *rest)
        import trainmaster.metrics
        """
    )
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1] == (
        "ModuleNotFoundError: metrics need the package prometheus-client:"
        " install trainmaster-agent or trainmaster-dispatcher"
    )


def test_the_agent_works_without_the_client_library() -> None:
    ended = run("import sys; import trainmaster_agent.sync; print('prometheus_client' in sys.modules)")
    assert ended.stdout == "False\n", ended.stderr


_FORKING = """
    import os, sys, urllib.request
    from pathlib import Path
    from trainmaster.metrics import exporter
    Path(sys.argv[1]).mkdir()
    (Path(sys.argv[1]) / "counter_1.db").write_bytes(b"left by an earlier life")
    exporter.share_between_processes(Path(sys.argv[1]))
    from trainmaster.metrics import definitions as m
    from trainmaster.metrics.kinds import Process
    server = exporter.start_shared_exporter(0, Process.WORKER, "127.0.0.1")
    for number in (1, 2):
        child = os.fork()
        if child == 0:
            m.tasks.labels("webhooks", "success").inc(number)
            m.task_seconds.labels("webhooks").observe(0.02)
            m.starts.labels("private").inc()
            os._exit(0)
        os.waitpid(child, 0)
        exporter.forget_process(child)
    m.tasks.labels("webhooks", "success").inc(10)
    print(urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics").read().decode())
"""


def test_a_process_that_forks_shows_the_sum_of_all_its_children(tmp_path: Path) -> None:
    ended = run(_FORKING, str(tmp_path / "shared"))
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    assert 'trainmaster_tasks_total{outcome="success",task="webhooks"} 13.0' in lines
    assert 'trainmaster_task_seconds_bucket{le="0.025",task="webhooks"} 2.0' in lines
    assert any(line.startswith("trainmaster_build_info{") for line in lines)
    assert not any("trainmaster_starts" in line for line in lines), "a worker starts no runs"


def test_sharing_that_comes_too_late_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="was called too late"):
        exporter.share_between_processes(tmp_path)
