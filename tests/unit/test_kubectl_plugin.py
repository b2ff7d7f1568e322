"""The command line as kubectl's plugin: the dispatcher and the key of the kubeconfig in use."""

import os
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainmaster.cli import kubectl_plugin, start
from trainmaster.client.config import CONTEXT_VARIABLE, KEY_VARIABLE, URL_VARIABLE

_VARIABLES = (URL_VARIABLE, KEY_VARIABLE, CONTEXT_VARIABLE, "SSL_CERT_FILE")


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (*_VARIABLES, "KUBECONFIG"):
        monkeypatch.setenv(name, "to be restored")
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["/usr/bin/kubectl-trainmaster", "queues"])
    monkeypatch.setattr(start, "main", lambda: None)


def kubeconfig(path: Path, name: str, cluster: dict[str, Any], user: dict[str, Any], *, current: bool = True) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    value = {
        "clusters": [{"name": name, "cluster": cluster}],
        "users": [{"name": name, "user": user}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
    }
    path.write_text(yaml.safe_dump(value | ({"current-context": name} if current else {})))
    return path


def given() -> dict[str, str]:
    """Return the variables with which the command line is run."""
    kubectl_plugin.main()
    return {name: os.environ[name] for name in _VARIABLES if name in os.environ}


def test_the_context_in_use_names_the_dispatcher_and_the_key(tmp_path: Path) -> None:
    kubeconfig(tmp_path / ".kube/config", "fleet", {"server": "https://tm.example:8471"}, {"token": "tmk_a"})
    assert given() == {URL_VARIABLE: "https://tm.example:8471", KEY_VARIABLE: "tmk_a"}


def test_the_authority_of_the_cluster_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = {"server": "https://tm", "certificate-authority-data": b64encode(b"PEM").decode()}
    kubeconfig(tmp_path / ".kube/config", "fleet", cluster, {"token": "tmk_a"})
    assert Path(given()["SSL_CERT_FILE"]).read_text() == "PEM"
    for name in _VARIABLES:
        monkeypatch.delenv(name, raising=False)
    kubeconfig(
        tmp_path / ".kube/config",
        "fleet",
        {"server": "https://tm", "certificate-authority": "/ca.pem"},
        {"token": "tmk_a"},
    )
    monkeypatch.setenv("SSL_CERT_FILE", "/etc/ssl/all.pem")
    assert given()["SSL_CERT_FILE"] == "/ca.pem"


@pytest.mark.parametrize("name", [URL_VARIABLE, KEY_VARIABLE, CONTEXT_VARIABLE])
def test_the_environment_comes_before_the_kubeconfig(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    kubeconfig(tmp_path / ".kube/config", "fleet", {"server": "https://tm"}, {"token": "tmk_a"})
    monkeypatch.setenv(name, "x")
    assert given() == {name: "x"}


def test_a_cluster_of_kubernetes_is_not_taken_for_a_dispatcher(tmp_path: Path) -> None:
    kubeconfig(tmp_path / ".kube/config", "kind", {"server": "https://kind"}, {"token": "eyJ"})
    assert given() == {}
    kubeconfig(tmp_path / ".kube/config", "kind", {"server": "https://kind"}, {"exec": {"command": "aws"}})
    assert given() == {}


def test_of_several_files_the_first_with_a_name_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = tmp_path / "key"
    key.write_text("tmk_of_a_file\n")
    first = kubeconfig(tmp_path / "1", "other", {"server": "https://one"}, {"token": "eyJ"}, current=False)
    second = kubeconfig(tmp_path / "2", "fleet", {"server": "https://two"}, {"tokenFile": str(key)})
    third = kubeconfig(tmp_path / "3", "fleet", {"server": "https://three"}, {"token": "tmk_c"})
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(map(str, (tmp_path / "missing", first, second, third))))
    assert given() == {URL_VARIABLE: "https://two", KEY_VARIABLE: "tmk_of_a_file"}


@pytest.mark.parametrize("text", ["", "[]", "contexts: 3", "current-context: x", "contexts: [{name: a}, 3]"])
def test_what_is_no_kubeconfig_names_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / ".kube").mkdir()
    (tmp_path / ".kube/config").write_text(text)
    assert given() == {}


def test_what_cannot_be_read_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / ".kube").mkdir()
    (tmp_path / ".kube/config").write_text("a: [")
    with pytest.raises(SystemExit) as ended:
        kubectl_plugin.main()
    assert ended.value.code == 2
    assert f"cannot read the kubeconfig {tmp_path}/.kube/config: " in capsys.readouterr().err
    cluster = {"server": "https://tm", "certificate-authority-data": "%"}
    kubeconfig(tmp_path / ".kube/config", "fleet", cluster, {"token": "tmk_a"})
    with pytest.raises(SystemExit):
        kubectl_plugin.main()
    assert "certificate-authority-data is not base64" in capsys.readouterr().err
