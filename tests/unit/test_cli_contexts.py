"""Contexts: logging in and out, several dispatchers in one file, and whose key goes where."""

import json
import stat
from base64 import b64encode
from pathlib import Path

import httpx
import pytest
import yaml

from tests.unit.fake_api import Api, connected, run
from tests.unit.scripted import problem
from trainmaster.client import config
from trainmaster.client.errors import ConfigurationError
from trainmaster.protocol.errors import Code
from trainmaster.protocol.states import Exit

ME = {"id": 7, "name": "ann", "role": "user", "queues": ["a"], "version": "9.9", "expiresAt": None}
PROD, LAB = "https://prod.example.org", "https://lab.example.org"


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Api:
    fake = connected(monkeypatch, tmp_path)
    monkeypatch.delenv("TRAINMASTER_CONTEXT", raising=False)
    fake.on("GET /v1/whoami", ME)
    fake.on("GET /v1/jobs", {"jobs": [], "next": None})
    return fake


def last_call(api: Api) -> tuple[str, str]:
    """Return address and key of the last call."""
    request = api.requests[-1]
    return f"{request.url.scheme}://{request.url.host}", request.headers["authorization"].removeprefix("Bearer ")


@pytest.mark.parametrize("given", ["--url", "--context", "TRAINMASTER_URL", "TRAINMASTER_CONTEXT"])
def test_an_empty_address_or_context_is_not_the_stored_one(
    api: Api, given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRAINMASTER_URL", raising=False)
    if given.startswith("--"):
        done = run(given, "", "jobs")
    else:
        monkeypatch.setenv(given, " ")
        done = run("jobs")
    assert (done.exit_code, api.calls()) == (Exit.USAGE, [])
    named = given.replace("--context", "the context")
    assert done.stderr == f"error: {named} is empty; leave it out to use what is stored\n"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("contexts: [", ", line 1, column 12: this is no YAML: "),
        ("contxts: {}", ": the field 'contxts' is not known; did you mean 'contexts'?"),
        ("contexts: {a: {url: http://x, kei: k}}", ": context 'a': the field 'kei' is not known; did you mean 'key'?"),
        ("url: http://x\nkye: tmk_x", ": the field 'kye' is not known; did you mean 'key'?"),
        ("current: [a]\ncontexts: {a: {url: http://x, key: k}}", ": current has to be the name of a context"),
        ("current: b\ncontexts: {a: {url: http://x, key: k}}", "there is no context 'b' in "),
    ],
)
def test_a_mistyped_configuration_file_is_told_as_such(
    api: Api, content: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRAINMASTER_URL", raising=False)
    monkeypatch.delenv("TRAINMASTER_API_KEY", raising=False)
    config.config_path().parent.mkdir(parents=True, exist_ok=True)
    config.config_path().write_text(content)
    done = run("jobs")
    assert (done.exit_code, api.calls(), done.stderr.count("\n")) == (Exit.USAGE, [], 1)
    assert said in done.stderr


def test_a_given_address_needs_no_context_in_use(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRAINMASTER_URL", raising=False)
    monkeypatch.delenv("TRAINMASTER_API_KEY", raising=False)
    config.config_path().parent.mkdir(parents=True, exist_ok=True)
    config.config_path().write_text(f"current: gone\ncontexts: {{lab: {{url: '{LAB}', key: tmk_lab}}}}")
    assert run("--url", LAB, "jobs").exit_code == 0
    assert last_call(api) == (LAB, "tmk_lab")
    assert "there is no context 'gone'" in run("jobs").stderr


def test_login_checks_the_key_and_keeps_it_for_the_owner_alone(api: Api) -> None:
    done = run("login", PROD, says="tmk_prod\n")
    assert (done.exit_code, done.stdout) == (0, f"prod.example.org  logged in at {PROD} as ann (user)\n")
    assert last_call(api) == (PROD, "tmk_prod")
    assert stat.S_IMODE(config.config_path().stat().st_mode) == 0o600
    run("jobs")
    assert last_call(api) == (PROD, "tmk_prod")
    assert config.read_contexts().by_name["default"].url == "http://dispatcher.test", "the context from before stays"


def test_a_key_that_the_dispatcher_refuses_is_not_stored(api: Api) -> None:
    before = config.config_path().read_text()
    api.on("GET /v1/whoami", problem(Code.UNAUTHENTICATED))
    done = run("login", PROD, says="tmk_wrong\n")
    assert done.exit_code == Exit.DENIED
    assert done.stderr.splitlines()[-1].strip() == f"{PROD} does not accept the key of stdin; nothing was stored"
    assert "TRAINMASTER_API_KEY" not in done.stderr
    assert config.config_path().read_text() == before


IMPOSSIBLE = {
    "tmk_secret\nsecret": "character 11 of 17 is a line break",
    "tmk_secret secret": "character 11 of 17 is a space",
    "tmk_\u00fcsecret": "character 5 of 11 is not printable ASCII",
    "tmk_secret\x00": "character 11 of 11 is not printable ASCII",
}


@pytest.mark.parametrize("key", IMPOSSIBLE)
def test_what_cannot_be_a_key_is_refused_at_once_and_never_shown(
    api: Api, key: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "key").write_text(key)
    said = {
        "--key": run("--key", key, "jobs"),
        str(tmp_path / "key"): run("login", PROD, "--key-file", str(tmp_path / "key")),
    }
    if "\0" not in key:
        monkeypatch.setenv("TRAINMASTER_API_KEY", key)
        said["TRAINMASTER_API_KEY"] = run("jobs")
        monkeypatch.delenv("TRAINMASTER_API_KEY")
    said |= {"--key of login": run("--key", key, "login", PROD)}
    write = {"url": "http://dispatcher.test", "key": key}
    config.config_path().write_text(yaml.safe_dump(write))
    said[str(config.config_path())] = run("jobs")
    for origin, done in said.items():
        assert done.exit_code == Exit.USAGE, origin
        assert done.stderr.replace("\n  ", " ").startswith(
            f"error: {origin.removesuffix(' of login')}: this is no API key: its {IMPOSSIBLE[key]};"
        ), done.stderr
        assert "secret" not in done.stderr
    assert api.calls() == []


def test_white_space_around_a_key_does_not_count(api: Api, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run("--key", " tmk_flag\r\n", "jobs")
    assert last_call(api)[1] == "tmk_flag"
    monkeypatch.setenv("TRAINMASTER_API_KEY", "tmk_env\r")
    run("jobs")
    assert last_call(api)[1] == "tmk_env"
    (tmp_path / "key").write_bytes(b"tmk_file\r\n")
    run("login", PROD, "--key-file", str(tmp_path / "key"))
    assert last_call(api)[1] == "tmk_file"


@pytest.mark.parametrize("key", ["", " \n"])
def test_an_empty_key_is_not_the_same_as_none(api: Api, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    done = [run("--key", key, "jobs"), run("--key", key, "login", PROD, says="tmk_other\n")]
    monkeypatch.setenv("TRAINMASTER_API_KEY", key)
    done.append(run("jobs"))
    assert [one.exit_code for one in done] == [Exit.USAGE] * 3
    assert done[0].stderr.startswith("error: --key is empty; give a key")
    assert done[2].stderr.startswith("error: TRAINMASTER_API_KEY is empty; give a key")
    assert api.calls() == []
    run("--key", "tmk_flag", "jobs")
    assert last_call(api)[1] == "tmk_flag", "the empty variable is not looked at"


def test_a_key_comes_from_a_file_too(api: Api, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("tmk_file\n")
    assert run("login", "prod.example.org", "--key-file", str(tmp_path / "key"), "--name", "p").exit_code == 0
    assert last_call(api) == (PROD, "tmk_file")
    assert config.read_contexts().current == "p"
    assert run("login", PROD, "--key-file", "/nowhere").exit_code == Exit.USAGE
    assert run("login", PROD, says="\n").stderr == "error: stdin: the API key is empty; a key looks like tmk_...\n"
    (tmp_path / "picture").write_bytes(b"\x89PNG\xff")
    assert "picture does not hold an API key" in run("login", PROD, "--key-file", str(tmp_path / "picture")).stderr


def test_without_an_address_the_one_in_use_gets_another_key(api: Api) -> None:
    assert run("login", says="tmk_new\n").exit_code == 0
    assert last_call(api) == ("http://dispatcher.test", "tmk_new")
    assert config.config_path().read_text() == "url: http://dispatcher.test\nkey: tmk_new\n", (
        "as earlier versions read it"
    )


def test_login_with_an_address_leaves_other_keys_for_it_as_they_are(api: Api) -> None:
    """An admin who tries a user's key keeps the admin's."""
    run("login", PROD, "--name", "admin", says="tmk_admin\n")
    done = run("login", PROD, says="tmk_user\n")
    assert done.stdout.startswith("prod.example.org  logged in")
    assert "replaces" not in done.stderr
    assert {name: one.key for name, one in config.read_contexts().by_name.items()} == {
        "default": "tmk_x",
        "admin": "tmk_admin",
        "prod.example.org": "tmk_user",
    }
    again = run("login", PROD, says="tmk_other\n")
    assert f"it replaces the key of this context for {PROD}" in again.stderr
    assert run("--context", "admin", "login", says="tmk_rotated\n").stdout.startswith("admin  logged in")
    assert config.read_contexts().by_name["admin"].key == "tmk_rotated"


def test_the_environments_context_chooses_among_the_keys_of_one_address(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("login", PROD, "--name", "admin", says="tmk_admin\n")
    run("login", PROD, "--name", "user", says="tmk_user\n")
    monkeypatch.setenv("TRAINMASTER_CONTEXT", "admin")
    run("--url", PROD, "jobs")
    assert last_call(api) == (PROD, "tmk_admin")
    monkeypatch.setenv("TRAINMASTER_URL", PROD)
    run("jobs")
    assert last_call(api) == (PROD, "tmk_admin")
    monkeypatch.delenv("TRAINMASTER_CONTEXT")
    run("jobs")
    assert last_call(api) == (PROD, "tmk_user"), "that of the context in use"


def test_contexts_are_listed_chosen_and_removed(api: Api) -> None:
    run("login", PROD, "--name", "prod", says="tmk_prod\n")
    run("login", LAB, "--name", "lab", says="tmk_lab\n")
    rows = [line.split() for line in run("contexts").stdout.splitlines()]
    assert rows[1:] == [
        ["default", "http://dispatcher.test", "stored"],
        ["prod", PROD, "stored"],
        ["lab", "(in", "use)", LAB, "stored"],
    ]
    assert "tmk_" not in run("contexts", "-o", "json").stdout
    assert [one["name"] for one in json.loads(run("contexts", "-o", "json").stdout) if one["isCurrent"]] == ["lab"]
    assert run("contexts", "use", "prod").stdout == f"prod  in use: {PROD}\n"
    run("jobs")
    assert last_call(api) == (PROD, "tmk_prod")
    assert run("contexts", "remove", "prod").exit_code == 0
    assert run("contexts", "-o", "name").stdout == "default\nlab\n"
    assert run("jobs").exit_code == Exit.USAGE
    assert "did you mean 'lab'?" in run("contexts", "use", "labs").stderr


def test_a_configuration_that_cannot_be_read_is_said_in_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRAINMASTER_CONFIG", str(tmp_path))
    done = run("jobs")
    assert (done.exit_code, " ".join(done.stderr.split())) == (2, f"error: cannot read {tmp_path}: Is a directory")


def test_a_context_is_chosen_for_one_command(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    run("login", PROD, "--name", "prod", says="tmk_prod\n")
    run("login", LAB, "--name", "lab", says="tmk_lab\n")
    run("--context", "prod", "jobs")
    assert last_call(api) == (PROD, "tmk_prod")
    monkeypatch.setenv("TRAINMASTER_CONTEXT", "prod")
    run("jobs")
    assert last_call(api) == (PROD, "tmk_prod")
    run("--context", "lab", "jobs")
    assert last_call(api) == (LAB, "tmk_lab")
    monkeypatch.setenv("TRAINMASTER_URL", "http://dispatcher.test")
    run("jobs")
    assert last_call(api) == ("http://dispatcher.test", "tmk_x"), (
        "the address of the environment comes before its context"
    )
    monkeypatch.setenv("TRAINMASTER_API_KEY", "tmk_env")
    run("--context", "lab", "jobs")
    assert last_call(api) == (LAB, "tmk_lab"), "a context that is given comes before the environment"
    assert run("--context", "nosuch", "jobs").exit_code == Exit.USAGE


def test_a_stored_key_goes_to_its_own_address_only(api: Api) -> None:
    run("login", PROD, "--name", "prod", says="tmk_prod\n")
    before = len(api.requests)
    for words in (["--url", LAB], ["--context", "prod", "--url", LAB], ["--url", f"{PROD}.evil.example.org"]):
        done = run(*words, "jobs")
        assert (done.exit_code, "no API key for" in done.stderr) == (Exit.USAGE, True)
    assert len(api.requests) == before
    run("--url", "http://dispatcher.test", "jobs")
    assert last_call(api) == ("http://dispatcher.test", "tmk_x"), "each context's key is for its own address"


def test_logout_forgets_the_key(api: Api) -> None:
    run("login", PROD, "--name", "prod", says="tmk_prod\n")
    assert run("logout").stdout == f"prod  logged out of {PROD}\n"
    assert "tmk_prod" not in config.config_path().read_text()
    done = run("jobs")
    assert (done.exit_code, f"trainmaster login {PROD}" in done.stderr) == (Exit.USAGE, True)
    assert run("logout", "nosuch").exit_code == Exit.USAGE


def test_whoami_shows_rights_and_versions(api: Api) -> None:
    lines = run("whoami").stdout
    for part in ("ann (id 7)", "user: ", "never", "http://dispatcher.test", "dispatcher 9.9"):
        assert part in lines
    assert json.loads(run("whoami", "-o", "json").stdout)["url"] == "http://dispatcher.test"
    assert (run("whoami", "-o", "id").stdout, run("whoami", "-o", "name").stdout) == ("7\n", "ann\n")


def test_the_clusters_of_an_owner_are_given_and_shown(api: Api) -> None:
    api.on("GET /v1/whoami", ME | {"role": "owner", "queues": [], "clusters": ["east", "west"]})
    lines = run("whoami").stdout
    assert "owner: these clusters" in lines
    assert "east, west" in lines
    api.on("POST /v1/keys", {"id": 8, "name": "olga", "role": "owner", "key": "tmk_o"})
    made = run("keys", "make", "olga", "--role", "owner", "--cluster", "east", "--cluster", "west")
    assert made.stdout == "tmk_o\n"
    sent = json.loads(api.requests[-1].content)
    assert (sent["role"], sent["clusters"], sent.get("cluster")) == ("owner", ["east", "west"], None)
    several = run("keys", "make", "a", "--role", "agent", "--cluster", "east", "--cluster", "west")
    assert (several.exit_code, "only an owner's key has several clusters" in several.stderr) == (Exit.USAGE, True)
    line = {"id": 8, "name": "olga", "role": "owner", "clusters": ["east"], "createdAt": "2026-01-01T00:00:00Z"}
    api.on("GET /v1/keys", {"keys": [line]})
    assert "east" in run("keys").stdout


def test_up_writes_its_own_context_beside_the_others(api: Api) -> None:
    run("login", PROD, "--name", "prod", says="tmk_prod\n")
    config.write_context("http://127.0.0.1:8470", "tmk_up")
    assert (config.load().url, config.read_contexts().by_name["prod"].key) == ("http://127.0.0.1:8470", "tmk_prod")
    config.config_path().write_text(f"url: {PROD}\nkey: tmk_prod\n")
    config.write_context("http://127.0.0.1:8470", "tmk_up")
    config.write_context("http://127.0.0.1:9999", "tmk_again")
    found = config.read_contexts()
    assert {name: one.url for name, one in found.by_name.items()} == {"default": PROD, "local": "http://127.0.0.1:9999"}


@pytest.mark.parametrize(
    "text", ["contexts: [a]", "contexts: {a: 3}", "contexts: {a: {url: [x]}}", "contexts: {3: {url: http://a}}"]
)
def test_a_file_of_another_form_is_refused(api: Api, text: str) -> None:
    config.config_path().write_text(text)
    with pytest.raises(ConfigurationError, match="has to be a mapping"):
        config.read_contexts()
    assert run("contexts").exit_code == Exit.USAGE


def test_the_file_of_an_earlier_version_is_read(api: Api) -> None:
    config.config_path().write_text(yaml.safe_dump({"url": f"{LAB}/", "key": "tmk_old"}))
    run("jobs")
    assert last_call(api) == (LAB, "tmk_old")
    api.on("GET /v1/whoami", httpx.Response(200, json=ME))
    assert run("contexts", "-o", "name").stdout == "default\n"


def test_kubectl_gets_an_address_over_tls_and_its_authority(
    api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    config.write_context("http://127.0.0.1:8470", "tmk_up")
    refused = run("kubeconfig")
    assert (refused.exit_code, "kubectl sends a key over https alone" in refused.stderr) == (Exit.USAGE, True)
    authority = tmp_path / "authority.pem"
    authority.write_text("certificate")
    config.write_context("http://127.0.0.1:8470", "tmk_up", "https://127.0.0.1:8471", str(authority))
    assert config.load().url == "http://127.0.0.1:8470"
    (cluster,) = yaml.safe_load(run("kubeconfig").stdout)["clusters"]
    encoded = b64encode(b"certificate").decode()
    assert cluster["cluster"] == {"server": "https://127.0.0.1:8471", "certificate-authority-data": encoded}
    # Another address than that of the context has nothing of it.
    (cluster,) = yaml.safe_load(run("--url", PROD, "--key", "tmk_x", "kubeconfig").stdout)["clusters"]
    assert cluster["cluster"] == {"server": PROD}
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none"))
    missing = run("--url", PROD, "--key", "tmk_x", "kubeconfig")
    assert (missing.exit_code, "cannot read" in missing.stderr) == (Exit.USAGE, True)
