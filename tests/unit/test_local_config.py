"""The declared nodes of a local cluster, as the page of the command line shows them."""

from pathlib import Path

import yaml

from trainmaster_agent.runtime.local.config import LocalCluster, LocalNodes

PAGE = Path(__file__).parents[2] / "docs/reference/cli.md"


def test_the_example_of_the_page_is_a_cluster_with_every_field() -> None:
    _, _, rest = PAGE.read_text().partition("`NODES.yaml` of `agent run --cluster`")
    cluster = LocalCluster.model_validate(yaml.safe_load(rest.split("```")[1].removeprefix("yaml")))
    assert cluster.group_names == ("cpu", "gpu")
    assert cluster.model_fields_set == set(LocalCluster.model_fields)
    assert set.union(*(nodes.model_fields_set for nodes in cluster.nodes)) == set(LocalNodes.model_fields)
