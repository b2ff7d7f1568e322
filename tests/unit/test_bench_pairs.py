"""The comparison of two checkouts by a benchmark."""

from pathlib import Path

import pytest

from bench.pairs import Tree, compared, figures, last_json, run


def test_figures_have_their_paths() -> None:
    value = {"name": "x", "safe": True, "cases": {"mixed": {"rss_bytes": 7, "waits": [0.5, 2]}}}
    assert dict(figures(value)) == {
        "cases.mixed.rss_bytes": 7.0,
        "cases.mixed.waits[0]": 0.5,
        "cases.mixed.waits[1]": 2.0,
    }


@pytest.mark.parametrize("text", ['{"a": 1}\n', 'begins\n{"b": 2}\n{\n  "a": 1\n}\n'])
def test_the_last_object_counts(text: str) -> None:
    assert last_json(text) == {"a": 1}


def test_output_without_an_object_is_an_error() -> None:
    with pytest.raises(ValueError, match="no JSON object"):
        last_json("nothing\n")


@pytest.mark.parametrize("turns", [True, False])
def test_each_round_runs_in_both_trees_and_means_are_compared(tmp_path: Path, turns: bool) -> None:
    trees = []
    for name, rate in (("base", 100), ("head", 110)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "measure.py").write_text(
            f'import json, sys; print(json.dumps({{"rate": {rate} * int(sys.argv[1])}}))'
        )
        trees.append(Tree(name, folder))
    base, head = trees
    run(base, head, ["measure", "2"], 2, turns=turns)
    assert compared(base, head, "rate") == {"rate": {"base": [200.0, 200.0], "head": [220.0, 220.0], "percent": 10.0}}
    (tmp_path / "head" / "measure.py").write_text("raise SystemExit(3)")
    with pytest.raises(RuntimeError, match="failed in head with 3"):
        run(base, head, ["measure", "2"], 1, turns=True)
