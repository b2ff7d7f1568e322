"""Scores, one by one and all in the same way: what they measure, how people are told, and that the documentation says the same."""

import pickle
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.building import StateBuilder, nodes
from trainmaster.protocol.quantities import Resources
from trainmaster.protocol.scoring import PROFILES, SCORE_WEIGHTS, ProfileName, WeightsSpec
from trainmaster.protocol.states import ClusterKind
from trainmaster_dispatcher.domain.weights import BALANCED, Weights
from trainmaster_dispatcher.scheduling.selection import scores
from trainmaster_dispatcher.scheduling.selection.scores import (
    SCORES,
    Fit,
    deciding,
    headroom,
    is_quick,
    score,
    scorer,
    usage_of,
    varies,
)
from trainmaster_dispatcher.scheduling.selection.scores.base import Applies, DependsOn
from trainmaster_dispatcher.scheduling.state.declared_objects import Cluster

PAGE = Path(__file__).parents[2] / "docs/explanation/scheduling.md"
FOUNDATIONS = {"__init__", "base", "registry", "totals"}


def at(free: int = 4, *, kind: ClusterKind = ClusterKind.PRIVATE, **scored: Any) -> Fit:
    """Return the fit of a gang of 2 cores on a cluster that has ``free`` of 8 cores free; ``scored``: what its scores depend on."""
    return Fit(Cluster(1, "c", kind), {"cpu": free}, {"cpu": 8}, {"cpu": 2}, **scored)


CASES: dict[str, tuple[tuple[Fit, float], tuple[Fit, float], str]] = {
    "kind": (
        (at(kind=ClusterKind.EDGE), 0.6),
        (at(kind=ClusterKind.PUBLIC), 0.0),
        "edge clusters are preferred to public ones",
    ),
    "packing": ((at(4), 0.75), (at(8), 0.25), "it packs tighter there"),
    "money": (
        (at(cost=10.0), 0.5),
        (at(cost=30.0), 0.25),
        "it is expected to cost 10.00 there and 30.00 on the other",
    ),
    "wait": ((at(wait=0.0), 1.0), (at(wait=300.0), 0.5), "it is expected to start sooner there"),
    "data": ((at(local=0.75), 0.75), (at(local=0.0), 0.0), "more of its data is there"),
    "reliability": ((at(trouble=4.0), 0.5), (at(trouble=12.0), 0.25), "fewer runs were returned or lost there lately"),
    "affinity": ((at(preferred=0.5), 0.5), (at(preferred=0.1), 0.1), "the job prefers it"),
    "topology": ((at(domains=1), 1.0), (at(domains=4), 0.25), "it is spread over fewer domains there"),
    "spread": ((at(elsewhere=0.9), 0.9), (at(elsewhere=0.2), 0.2), "fewer of the runs of its queue are there"),
    "sparing": ((at(common=1.0), 1.0), (at(common=0.25), 0.25), "fewer others ask for the devices that it takes there"),
    "predecessors": (
        (at(predecessors=0.75), 0.75),
        (at(predecessors=0.25), 0.25),
        "more of the jobs that it starts after ran there",
    ),
}
"""By score: a fit and its score, a worse one and its score, and why the first is better."""


def test_each_score_has_a_case() -> None:
    assert list(CASES) == list(SCORES), "CASES has one case for each score, in the order of the registry"


@pytest.mark.parametrize(("better", "worse", "words"), CASES.values(), ids=CASES)
def test_a_score_is_what_it_measures_on_its_curve(
    better: tuple[Fit, float], worse: tuple[Fit, float], words: str, request: pytest.FixtureRequest
) -> None:
    name = request.node.callspec.id
    weights = Weights(**{name: 2.0})
    for fit, value in (better, worse):
        total, parts = score(fit, weights)
        assert (parts[name], total) == (value, 2 * value)
    decides = deciding(score(better[0])[1], score(worse[0])[1], weights)
    assert (decides.name, decides.words(better[0], worse[0])) == (name, words)


@pytest.mark.parametrize("name", SCORES)
def test_a_score_that_counts_alone_decides_and_is_told(name: str) -> None:
    """The table of a decision has the score where clusters differ in it, by the name that profiles have for it."""
    (better, _), (worse, _), _ = CASES[name]
    options = [(score(fit)[1], Weights(**{name: 1.0})) for fit in (better, worse)]
    assert name in scores.shown(options)
    unweighted = [(parts, Weights()) for parts, _ in options]
    assert (name in scores.shown(unweighted)) == SCORES[name].is_always_shown


def test_the_registry_has_each_module_once() -> None:
    folder = Path(scores.__file__).parent
    assert list(SCORES) == [one.name for one in SCORES.values()] == list(SCORE_WEIGHTS)
    modules = {path.stem for path in folder.glob("*.py")} - FOUNDATIONS
    assert set(SCORES) == modules, "each module has an entry in the registry, trainmaster/protocol/scoring.py"


def test_profiles_have_a_field_and_a_weight_for_each_score() -> None:
    assert list(WeightsSpec.model_fields) == list(SCORES)
    given = {name: float(number) for number, name in enumerate(SCORES)}
    assert Weights(**given) == Weights(*given.values()) == tuple(given.values())
    assert Weights(**WeightsSpec(**given).model_dump()) == Weights(**given)


def test_weights_are_the_same_after_a_copy() -> None:
    """Studies copy them between processes."""
    (weights,) = pickle.loads(pickle.dumps([BALANCED]))  # noqa: S301 - made here
    assert (weights, type(weights), eval(repr(weights))) == (BALANCED, Weights, BALANCED)  # noqa: S307 - made here


@pytest.mark.parametrize("wrong", [lambda: Weights(speed=1), lambda: Weights(1, kind=1), lambda: Weights(*range(99))])
def test_weights_of_what_is_no_score_are_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match="weights are for kind, packing"):
        wrong()


def row_of(name: str) -> list[str]:
    """Return the cells of the score's line in the documentation, links as their text."""
    section = PAGE.read_text().split("\n## 6. Scores\n")[1].split("\n## ")[0]
    rows = re.findall(rf"^\| `{name}` \|(.*)\|$", section, re.MULTILINE)
    assert len(rows) == 1, f"the table of {PAGE} has a line for the score {name}"
    return [cell.strip() for cell in re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", rows[0]).split("|")]


@pytest.mark.parametrize("name", SCORES)
def test_the_documentation_has_formula_unit_and_weights_of_each_score(name: str) -> None:
    description, *weights = row_of(name)
    assert SCORES[name].curve.formula in description
    assert SCORES[name].unit in description
    assert [float(weight) for weight in weights] == [getattr(PROFILES[profile], name) for profile in ProfileName]


amounts = st.dictionaries(st.sampled_from(["cpu", "memory", "gpu"]), st.integers(0, 6))
part = st.floats(0, 1)
much = st.one_of(st.just(0.0), st.floats(1e-6, 1e6))
fits = st.builds(
    Fit,
    st.sampled_from(list(ClusterKind)).map(lambda kind: Cluster(1, "c", kind)),
    *(amounts, amounts, amounts, much, much, part, much, part, st.integers(1, 9), part, part, part),
)
any_weights = st.builds(Weights, *(st.sampled_from([0.0, 0.1, 1.0, 2.5]) for _ in SCORES))


@given(fits, any_weights)
def test_each_score_is_between_0_and_1_and_the_total_their_weighted_sum(fit: Fit, by: Weights) -> None:
    total, parts = score(fit, by)
    assert all(0.0 <= value <= 1.0 for value in parts.values())
    assert total == pytest.approx(sum(weight * parts[name] for name, weight in zip(SCORES, by, strict=True)), abs=1e-4)


@pytest.mark.parametrize("one", [one for one in SCORES.values() if one.applies is not Applies.ALWAYS])
def test_a_score_is_1_for_jobs_that_it_is_not_for(one: Any) -> None:
    assert one.of(at()) == 1.0


@given(amounts, amounts, amounts, amounts, any_weights)
def test_what_depends_on_capacity_is_never_lower_where_more_is_in_use_or_needed(
    free: Resources, less: Resources, capacity: Resources, needs: Resources, by: Weights
) -> None:
    fuller = {name: max(0, amount - less.get(name, 0)) for name, amount in free.items()}
    least = {name: amount for name, amount in capacity.items() if amount}
    for name, one in SCORES.items():
        if one.depends_on is DependsOn.CAPACITY:
            value = one.of(usage_of(free, capacity), needs)
            assert value <= one.of(usage_of(fuller, capacity), needs), name
            assert value <= one.of(usage_of(free, capacity), dict.fromkeys(needs, 0)) + headroom(
                needs, least, Weights(**{name: 1.0})
            )


@given(much, st.floats(1, 100))
def test_what_depends_on_cost_is_1_at_0_and_falls(cost: float, times: float) -> None:
    for one in SCORES.values():
        if one.depends_on is DependsOn.COST:
            assert one.of(0.0) == 1.0
            assert one.of(cost) >= one.of(cost * times)


def test_what_depends_on_devices_is_1_where_they_are_most_common() -> None:
    assert [one.of(1.0) for one in SCORES.values() if one.depends_on is DependsOn.DEVICES] == [1.0]


def test_the_quick_way_is_for_scores_that_are_known_without_a_fit() -> None:
    for name, one in SCORES.items():
        weights = Weights(**{name: 1.0})
        late = one.depends_on in (DependsOn.PLACEMENT, DependsOn.QUEUE)
        assert is_quick(weights, prefers_level=True) != late, name
        assert is_quick(weights, prefers_level=False) != (late and one.applies is not Applies.WITH_LEVEL), name


@pytest.mark.parametrize("name", SCORES)
def test_a_score_of_the_cluster_alone_is_measured_for_the_jobs_that_it_is_for(name: str) -> None:
    one, weights = SCORES[name], Weights(**{name: 1.0})
    every = {
        Applies.WITH_DATA: "with_data",
        Applies.WITH_PREFERENCES: "with_preferences",
        Applies.WITH_TROUBLE: "with_trouble",
        Applies.WITH_PREDECESSORS: "with_predecessors",
    }
    nothing = dict.fromkeys(every.values(), False)
    is_fixed = one.depends_on is DependsOn.CLUSTER
    assert varies(weights, **nothing) == (is_fixed and one.applies is Applies.ALWAYS)
    for applies, argument in every.items():
        expected = is_fixed and one.applies in (Applies.ALWAYS, applies)
        assert varies(weights, **{**nothing, argument: True}) == expected


@given(fits, any_weights)
def test_no_score_but_those_of_a_placement_or_a_queue_is_left_out_by_the_quick_way(fit: Fit, by: Weights) -> None:
    later = (DependsOn.PLACEMENT, DependsOn.QUEUE)
    counted = Weights(
        *(0.0 if one.depends_on in later else weight for one, weight in zip(SCORES.values(), by, strict=True))
    )
    usage = usage_of(fit.free, fit.capacity)
    fixed = scores.fixed_score(fit, counted)
    quick = scorer(counted)(fit.cluster.kind, usage, fit.needs, fit.cost, fixed, fit.common)
    assert quick == score(fit, counted)[0]
    assert quick <= scorer(counted)(fit.cluster.kind, usage, fit.needs, fit.cost, None, None), "at best"


def test_a_decision_without_a_profile_shows_the_scores_that_make_a_difference() -> None:
    start = StateBuilder().cluster("a", nodes(2)).cluster("b", nodes(3)).job("j").cycle().start("j")
    assert [list(line) for line in start.table] == [["cluster", "score", "kind", "packing", "money"]] * 2
