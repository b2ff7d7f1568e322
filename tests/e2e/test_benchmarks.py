"""Benchmarks of the Kubernetes API, with few jobs: what they measure is there, and what they count is right."""

from pathlib import Path

from bench import informers


def test_informers_have_what_the_store_has_after_a_restart_of_their_api(tmp_path: Path) -> None:
    words = ["--seconds", "6", "--rate", "200", "--restart-seconds", "3", "--jobs", "200"]
    found = informers.run(tmp_path, informers.parser().parse_args(words))
    assert not informers.is_wrong(found), found
    assert found["kills"] > 0
    assert found["deleted"] > 0
    assert found["listed_by_hand"]["stored"] == 200 + found["made"] - found["deleted"]
    assert found["python"]["cached"] == found["listed_by_hand"]["stored"] + 1, "all jobs and the queue"
