"""Entry points of images, read from a registry over HTTP: with and without identification, of images for one platform or several."""

import json
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.image_registry import DOCKER, OCI, TOKEN, USER, ImageRegistry, digest_of, serving_images
from trainmaster_agent.images import registry as client_module
from trainmaster_agent.images.credentials import RegistryCredentials, find_credentials
from trainmaster_agent.images.program import AWAY, REFUSED
from trainmaster_agent.images.references import BadReferenceError, parse_reference, place_of
from trainmaster_agent.images.registry import (
    EntryPoint,
    ImageRefusedError,
    RegistryAwayError,
    RegistryClient,
    architecture_of,
    challenges_in,
)

CONFIG = {"architecture": "amd64", "os": "linux", "config": {"Entrypoint": ["/bin/train", "-v"], "Cmd": ["--all"]}}
FOUND = EntryPoint(("/bin/train", "-v"), ("--all",))
READER = RegistryCredentials("reader", "secret")


@pytest.fixture
def registry() -> Iterator[ImageRegistry]:
    with serving_images(ImageRegistry()) as served:
        yield served


def read(
    registry: ImageRegistry,
    version: str = ":1",
    credentials: RegistryCredentials | None = None,
    *,
    architecture: str = "amd64",
    patience: float = 0.0,
) -> EntryPoint:
    image = parse_reference(f"registry.example.com/team/train{version}")
    place = place_of(image, {"registry.example.com": registry.url})
    client = RegistryClient(place, credentials, patience=patience, pause=lambda _seconds: None)
    return client.entry_point(image, architecture)


class TestImages:
    @pytest.mark.parametrize("kind", [f"{OCI}.manifest.v1+json", f"{DOCKER}.distribution.manifest.v2+json"])
    def test_an_image_is_read_by_its_tag_or_its_digest(self, registry: ImageRegistry, kind: str) -> None:
        digest = registry.add_image(CONFIG, "1", kind)
        assert read(registry) == read(registry, f"@{digest}") == read(registry, f":other@{digest}") == FOUND

    @pytest.mark.parametrize("kind", [f"{OCI}.index.v1+json", f"{DOCKER}.distribution.manifest.list.v2+json"])
    def test_of_several_platforms_that_of_the_machine_is_read(self, registry: ImageRegistry, kind: str) -> None:
        def image(word: str) -> str:
            return registry.add_image({"config": {"Cmd": [word]}})

        platforms = {
            ("windows", "amd64", ""): image("windows"),
            ("unknown", "unknown", ""): image("attestation"),
            ("linux", "amd64", ""): image("amd64"),
            ("linux", "arm64", "v8"): image("arm64"),
            ("linux", "arm", "v6"): image("v6"),
            ("linux", "arm", "v7"): image("v7"),
        }
        registry.add_index(platforms, "1", kind)
        found = {one: read(registry, architecture=one).cmd for one in ("amd64", "arm64", "arm")}
        assert found == {"amd64": ("amd64",), "arm64": ("arm64",), "arm": ("v7",)}
        with pytest.raises(ImageRefusedError, match="does not exist for linux/s390x: it is for amd64, arm64, arm"):
            read(registry, architecture="s390x")

    def test_indexes_in_each_other_have_an_end(self, registry: ImageRegistry) -> None:
        digest = registry.add_image(CONFIG)
        for number in range(4):
            digest = registry.add_index({("linux", "amd64", ""): digest}, str(number))
        assert read(registry, ":1") == FOUND
        with pytest.raises(ImageRefusedError, match="more than 3 indexes in each other"):
            read(registry, ":3")

    @pytest.mark.parametrize(
        ("own", "expected"),
        [
            ({"Entrypoint": ["a"], "Cmd": None}, EntryPoint(("a",), ())),
            ({"Cmd": ["sh", "-c", "true"]}, EntryPoint((), ("sh", "-c", "true"))),
            ({"Entrypoint": [], "Cmd": ["b"]}, EntryPoint((), ("b",))),
        ],
    )
    def test_either_of_both_may_be_missing(
        self, registry: ImageRegistry, own: dict[str, Any], expected: EntryPoint
    ) -> None:
        registry.add_image({"config": own}, "1")
        assert read(registry) == expected

    @pytest.mark.parametrize(
        "config", [{}, {"config": None}, {"config": {"Entrypoint": [], "Cmd": None}}, {"config": 3}]
    )
    def test_an_image_without_both_is_refused(self, registry: ImageRegistry, config: dict[str, Any]) -> None:
        registry.add_image(config, "1")
        with pytest.raises(
            ImageRefusedError, match="neither an ENTRYPOINT nor a CMD: write what each element executes"
        ):
            read(registry)


class TestWrongAnswers:
    def test_what_its_digest_does_not_name_is_refused(self, registry: ImageRegistry) -> None:
        digest = registry.add_image(CONFIG, "1")
        (config,) = registry.blobs
        registry.blobs[config] = b'{"config": {"Cmd": ["evil"]}}'
        with pytest.raises(ImageRefusedError, match=f"configuration of image .* is not what its digest {config} names"):
            read(registry)
        registry.manifests[digest] = registry.manifests[digest][0], b'{"config": {}}'
        with pytest.raises(ImageRefusedError, match=f"manifest of image .* is not what its digest {digest} names"):
            read(registry, f"@{digest}")

    @pytest.mark.parametrize("bound", ["MOST_MANIFEST", "MOST_CONFIG"])
    def test_what_is_too_large_is_not_read(
        self, registry: ImageRegistry, bound: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        registry.add_image({"config": {"Cmd": ["x"]}, "history": ["x" * 5000]}, "1")
        assert read(registry).cmd == ("x",)
        monkeypatch.setattr(client_module, bound, 100)
        with pytest.raises(ImageRefusedError, match="answers with more than 100 bytes"):
            read(registry)

    @pytest.mark.parametrize(
        ("body", "words"),
        [
            (b"no json", "is no JSON"),
            (b"[" * 100_000, "is no JSON"),
            (b"[]", "is no object"),
            (b'{"schemaVersion": 1, "fsLayers": []}', "a type that is not known"),
            (b'{"config": {"digest": "sha256:12"}}', "names no configuration"),
            (b'{"config": "x", "manifests": []}', "a type that is not known"),
            (b'{"manifests": 7}', "does not exist for linux/amd64: it is for none"),
        ],
    )
    def test_manifests_that_mean_nothing_are_refused(self, registry: ImageRegistry, body: bytes, words: str) -> None:
        registry.manifests["1"] = f"{OCI}.manifest.v1+json", body
        with pytest.raises(ImageRefusedError, match=words):
            read(registry)

    @pytest.mark.parametrize("words", ["sh", [1], {"a": 1}])
    def test_an_entry_point_is_a_list_of_texts(self, registry: ImageRegistry, words: Any) -> None:
        registry.add_image({"config": {"Entrypoint": words}}, "1")
        with pytest.raises(ImageRefusedError, match="no list of texts"):
            read(registry)

    def test_an_image_that_is_not_there_is_refused_with_the_registrys_words(self, registry: ImageRegistry) -> None:
        with pytest.raises(ImageRefusedError, match=r"does not have image .*/team/train:1 \(manifest unknown\)"):
            read(registry)


class TestIdentification:
    @pytest.mark.parametrize("credentials", [None, READER])
    def test_a_token_is_fetched_once(self, credentials: RegistryCredentials | None) -> None:
        with serving_images(ImageRegistry("token")) as registry:
            registry.add_image(CONFIG, "1")
            assert read(registry, credentials=credentials) == FOUND
            tokens = [given for path, given in registry.calls if path.startswith("/token")]
            assert tokens == ["" if credentials is None else USER]
            assert [given for path, given in registry.calls if "/blobs/" in path] == [f"Bearer {TOKEN}"]

    @pytest.mark.parametrize("auth", ["private", "basic"])
    def test_credentials_open_what_is_closed_without(self, auth: str) -> None:
        with serving_images(ImageRegistry(auth)) as registry:
            registry.add_image(CONFIG, "1")
            assert read(registry, credentials=READER) == FOUND
            with pytest.raises(
                ImageRefusedError, match=r"be read without credentials.*write the entry point as `command`"
            ):
                read(registry)
            with pytest.raises(ImageRefusedError, match="be read with the credentials that were found"):
                read(registry, credentials=RegistryCredentials("reader", "other"))

    def test_they_do_not_go_where_a_blob_is_redirected_to(self) -> None:
        with serving_images(ImageRegistry()) as store, serving_images(ImageRegistry("basic", store.url)) as registry:
            registry.add_image(CONFIG, "1")
            store.blobs = registry.blobs
            assert read(registry, credentials=READER) == FOUND
            assert [given for _, given in store.calls] == [""]
            assert {given for path, given in registry.calls if "/blobs/" in path} == {USER}

    def test_a_redirect_to_another_protocol_is_refused(self) -> None:
        with serving_images(ImageRegistry(redirects_to="ftp://127.0.0.1")) as registry:
            registry.add_image(CONFIG, "1")
            with pytest.raises(ImageRefusedError, match="leads to ftp, which is not https"):
                read(registry)

    def test_challenges_are_read_by_their_schemes(self) -> None:
        several = 'Basic realm="a, b", Bearer realm="https://x/t?a=1",service="s\\"t",scope="repository:a/b:pull,push"'
        assert challenges_in(several) == {
            "basic": {"realm": "a, b"},
            "bearer": {"realm": "https://x/t?a=1", "service": 's"t', "scope": "repository:a/b:pull,push"},
        }
        assert challenges_in("Negotiate") == {}


class TestPatience:
    def test_what_passes_is_tried_again(self, registry: ImageRegistry) -> None:
        registry.add_image(CONFIG, "1")
        registry.answers = [(503, b""), (429, b"{}"), (502, b"<html>")]
        assert read(registry, patience=60.0) == FOUND
        assert len(registry.calls) == 5

    def test_it_is_not_tried_for_ever(self, registry: ImageRegistry) -> None:
        registry.answers = [(503, b'{"errors": [{"message": "in maintenance"}]}')] * 100
        with pytest.raises(RegistryAwayError, match=r"answers 503 \(in maintenance\)"):
            read(registry, patience=60.0)
        assert 5 < len(registry.calls) < 20

    def test_a_registry_that_cannot_be_reached_is_away(self) -> None:
        with serving_images(ImageRegistry()) as registry:
            pass
        with pytest.raises(
            RegistryAwayError, match=r"cannot be reached .*write the entry point as `command`, or allow"
        ):
            read(registry)


class TestReferences:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("busybox", "docker.io/library/busybox:latest"),
            ("team/train:1", "docker.io/team/train:1"),
            ("index.docker.io/team/train", "docker.io/team/train:latest"),
            ("localhost/train", "localhost/train:latest"),
            ("localhost:5000/train:1", "localhost:5000/train:1"),
            ("ghcr.io/a/b/c:v1.2_3", "ghcr.io/a/b/c:v1.2_3"),
            (f"ghcr.io/a/b:v1@sha256:{'a' * 64}", f"ghcr.io/a/b@sha256:{'a' * 64}"),
        ],
    )
    def test_they_mean_what_they_mean_to_container_runtimes(self, text: str, expected: str) -> None:
        assert str(parse_reference(text)) == expected

    @pytest.mark.parametrize(
        "text", ["", "Train", "train:", "train@sha256:12", "https://a/b", "a//b", "a.io/../b", "a.io/b c", "a.io/b?x:1"]
    )
    def test_other_texts_are_refused(self, text: str) -> None:
        with pytest.raises(BadReferenceError, match="image"):
            parse_reference(text)

    def test_a_mirror_has_the_repositories_below_a_path_of_its_own(self) -> None:
        place = place_of(parse_reference("busybox"), {"docker.io": "https://mirror.example.com/hub"})
        assert (place.url, place.host) == ("https://mirror.example.com", "mirror.example.com")
        assert place.repository == "hub/library/busybox"
        assert place_of(parse_reference("busybox"), {}).url == "https://registry-1.docker.io"

    def test_architectures_have_the_names_that_images_use(self) -> None:
        assert [architecture_of(one) for one in ("x86_64", "aarch64", "ppc64le")] == ["amd64", "arm64", "ppc64le"]


class TestCredentials:
    def test_the_longest_match_counts(self) -> None:
        configs = [
            {"auths": {"https://index.docker.io/v1/": {"username": "hub", "password": "p"}}},
            {"auths": {"registry.example.com": {"username": "all", "password": "p"}}},
            {"auths": {"registry.example.com/team": {"auth": "dGVhbTpwOnE="}, "*.corp.example.com": {"auth": "YTpi"}}},
        ]

        def user(host: str, repository: str) -> str | None:
            found = find_credentials(configs, host, repository)
            return None if found is None else f"{found.user}:{found.password}"

        assert user("docker.io", "library/busybox") == "hub:p"
        assert user("registry.example.com", "team/train") == "team:p:q"
        assert user("registry.example.com", "teams/train") == "all:p"
        assert user("west.corp.example.com", "x") == "a:b"
        assert user("a.west.corp.example.com", "x") is None
        assert user("evil-registry.example.com", "team/train") is None

    @pytest.mark.parametrize(
        "config",
        [
            [],
            {},
            {"auths": 3},
            {"auths": {"a.io": 3}},
            {"auths": {"a.io": {"auth": "%"}}},
            {"auths": {"a.io": {"auth": ""}}},
        ],
    )
    def test_what_cannot_be_read_has_none(self, config: Any) -> None:
        assert find_credentials([config], "a.io", "x") is None


class TestProgram:
    """The program of the init container, as a process."""

    def run(self, registry: ImageRegistry, tmp_path: Path, tag: str = "1") -> subprocess.CompletedProcess[str]:
        folder = tmp_path / "credentials"
        folder.mkdir(exist_ok=True)
        secret = {"auths": {registry.host: {"username": "reader", "password": "secret"}}}
        (folder / "00.json").write_text(json.dumps(secret))
        (folder / "01.json").write_text("no json")
        argv = [
            sys.executable,
            "-m",
            "trainmaster_agent.images.program",
            "--image",
            f"{registry.host}/team/train:{tag}",
        ]
        argv += ["--file", str(tmp_path / "entrypoint.json"), "--folder", str(folder)]
        argv += ["--registry", f"{registry.host}={registry.url}"]
        return subprocess.run(argv, text=True, capture_output=True, check=False, timeout=60)

    def test_it_writes_the_entry_point_for_this_machine(self, tmp_path: Path) -> None:
        with serving_images(ImageRegistry("private")) as registry:
            mine = registry.add_image(CONFIG)
            registry.add_index({("linux", architecture_of(platform.machine()), ""): mine}, "1")
            ended = self.run(registry, tmp_path)
            assert ended.returncode == 0, ended.stderr
            assert "01.json cannot be read" in ended.stderr
        found = json.loads((tmp_path / "entrypoint.json").read_text())
        assert found == {"entrypoint": ["/bin/train", "-v"], "cmd": ["--all"]}

    def test_it_says_why_it_could_not(self, tmp_path: Path) -> None:
        with serving_images(ImageRegistry("private")) as registry:
            ended = self.run(registry, tmp_path, "2")
        assert ended.returncode == REFUSED != AWAY
        assert "does not have image" in ended.stderr
        assert "Traceback" not in ended.stderr
        assert "secret" not in ended.stderr
        assert not (tmp_path / "entrypoint.json").exists()

    def test_it_imports_nothing_but_the_standard_library(self) -> None:
        code = (
            "import json, sys, trainmaster_agent.images.program\n"
            "print(json.dumps([name for name in sys.modules if name.partition('.')[0] not in sys.stdlib_module_names]))"
        )
        ended = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, check=True, timeout=60)
        found = [name for name in json.loads(ended.stdout) if name != "__main__" and not name.startswith("_")]
        assert {name.partition(".")[0] for name in found} <= {"trainmaster_agent", "sitecustomize"}


def test_digests_of_the_test_registry_are_right() -> None:
    assert digest_of(b"") == "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
