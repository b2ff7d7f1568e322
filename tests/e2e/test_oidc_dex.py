"""People sign in with accounts of dex, a real OpenID Connect issuer: by the command line, by kubectl through its exec plugin, and by
browsers, one of them a real one at the dashboard.
"""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urljoin

import httpx
import pytest
import yaml
from playwright.sync_api import Browser, expect

from tests.e2e.test_dashboard import chromium as chromium
from tests.e2e.test_up import PROGRAM, Starter
from tests.waiting import eventually_sync
from trainmaster.client.http import Client
from trainmaster.client.sign_in import end_of
from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.protocol.states import Exit, JobState
from trainmaster_dispatcher.cli.embedded import free_port
from trainmaster_dispatcher.web.assets import ASSETS

DEX = shutil.which("dex", path=os.environ.get("TRAINMASTER_OIDC_ASSETS", ""))
KUBECTL = shutil.which("kubectl", path=os.environ.get("KUBEBUILDER_ASSETS", ""))
if DEX is None:
    pytest.skip("TRAINMASTER_OIDC_ASSETS names no folder with the program dex", allow_module_level=True)
PASSWORD = "password"
_HASH = "$2a$10$2b2cU8CPhOTaGrs1HRQuAueS7JTT5ZHsHSzYiFPm1leZck7Mc8T4W"
CLIENT, OTHER_CLIENT = "trainmaster", "wiki"
WEB_CLIENT, WEB_SECRET = "trainmaster-web", "secret of the web client"
DAY, SOON = "24h", "20s"
JOB = {
    "kind": "Job",
    "name": "of-the-admin",
    "queue": "default",
    "roles": [{"name": "main", "template": {"command": ["true"]}}],
}


@dataclass
class Dex:
    """A dex with two people, whose tokens are for the clients trainmaster and wiki. It keeps nothing over a start.

    It has sessions of its own (DEX_SESSIONS_ENABLED), which a browser ends at its end_session_endpoint.
    """

    folder: Path
    port: int = field(default_factory=free_port)
    origin: str = ""
    """Address of the dispatcher, to which browsers return."""
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/dex"

    def start(self, tokens: str = DAY) -> None:
        """Start it, with keys of its own. ``tokens``: the time for which ID tokens count."""
        people = (("ana", "1001", ["vision"]), ("bo", "1002", ["nlp"]))
        config = {
            "issuer": self.url,
            "storage": {"type": "memory"},
            "web": {"http": f"127.0.0.1:{self.port}"},
            "expiry": {"idTokens": tokens},
            "oauth2": {"skipApprovalScreen": True, "passwordConnector": "local"},
            "enablePasswordDB": True,
            "staticClients": [
                {"id": name, "name": name, "public": True, "redirectURIs": ["/device/callback"]}
                for name in (CLIENT, OTHER_CLIENT)
            ]
            + [
                {
                    "id": WEB_CLIENT,
                    "name": WEB_CLIENT,
                    "secret": WEB_SECRET,
                    "redirectURIs": [f"{self.origin}/v1/sign-in/callback"],
                    "postLogoutRedirectURIs": [f"{self.origin}/"],
                }
            ],
            "staticPasswords": [
                {"email": f"{name}@example.com", "username": name, "userID": user, "groups": groups, "hash": _HASH}
                for name, user, groups in people
            ],
        }
        path = self.folder / "dex.yaml"
        path.write_text(yaml.safe_dump(config))
        with (self.folder / "dex.log").open("ab") as log:
            env = os.environ | {"DEX_SESSIONS_ENABLED": "true"}
            self.process = subprocess.Popen([str(DEX), "serve", str(path)], stdout=log, stderr=log, env=env)
        eventually_sync(self._answers, 60)

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/keys").is_success
        except httpx.TransportError:
            return False

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def token(self, user: str, client: str = CLIENT) -> str:
        """Return a token by the password grant, as programs that test ask for it."""
        form = {"grant_type": "password", "client_id": client, "username": f"{user}@example.com", "password": PASSWORD}
        answer = httpx.post(f"{self.url}/token", data=form | {"scope": "openid email groups"})
        assert answer.is_success, answer.text
        return str(answer.json()["id_token"])

    def enter_code(self, address: str, code: str, user: str) -> None:
        """Do what a person does in a browser: enter the code, then name and password."""
        with httpx.Client(follow_redirects=True) as browser:
            page = browser.post(urljoin(address, "/dex/device/auth/verify_code"), data={"user_code": code})
            assert "password" in page.text, page.text
            done = browser.post(page.url, data={"login": f"{user}@example.com", "password": PASSWORD})
            assert done.is_success, done.text
            assert "Login Successful" in done.text, done.text


@dataclass
class Installation:
    """A running ``trainmaster up`` whose issuer is dex."""

    dex: Dex
    starter: Starter
    url: str
    """Its address over TLS."""
    variables: dict[str, str]
    """With which programs find each other and trust the certificate."""
    admin: Client

    def run(self, *words: str) -> "subprocess.CompletedProcess[str]":
        return self.starter.run(*words, **self.variables)

    def ran(self, *words: str) -> str:
        done = self.run(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def login(self, user: str) -> "subprocess.CompletedProcess[str]":
        """Sign in by the command line and, beside it, in a browser. The context has the name of the user."""
        command = [str(PROGRAM), "login", self.url, "--oidc", "--name", user]
        env = self.starter.env | self.variables
        with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            words = process.stderr.readline().split()
            assert words[:1] == ["open"], words
            self.dex.enter_code(words[1], words[-1], user)
            said, rest = process.communicate(timeout=120)
        return subprocess.CompletedProcess(command, process.returncode, said, rest)

    def signed_in(self, user: str) -> None:
        done = self.login(user)
        assert done.returncode == 0, done.stderr

    def as_token(self, token: str) -> Client:
        return Client(self.admin.url, token)


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    folder = tmp_path_factory.mktemp("oidc")
    dex, starter, port, tls_port = Dex(folder), Starter(folder), free_port(), free_port()
    dex.origin = f"http://127.0.0.1:{port}"
    dex.start()
    as_root = ["--trust-submitters"] if os.geteuid() == 0 else []
    settings = {"TRAINMASTER_OIDC_ISSUER": dex.url, "TRAINMASTER_OIDC_CLIENT_IDS": CLIENT}
    settings |= {"TRAINMASTER_PUBLIC_URL": dex.origin, "TRAINMASTER_OIDC_BROWSER_CLIENT_ID": WEB_CLIENT}
    settings |= {"TRAINMASTER_OIDC_BROWSER_CLIENT_SECRET": WEB_SECRET}
    starter.up(folder / "data", port, "--tls-port", str(tls_port), *as_root, **settings)
    variables = {
        "SSL_CERT_FILE": str(folder / "data/tls/certificate.pem"),
        "PATH": f"{PROGRAM.parent}{os.pathsep}{os.environ['PATH']}",
        "KUBECONFIG": str(folder / "kubeconfig"),
        "HOME": str(folder),
    }
    with Client(f"http://127.0.0.1:{port}", (folder / "data/keys/admin").read_text()) as admin:
        admin.apply(
            [
                {"kind": "RoleBinding", "name": "vision", "groups": ["vision"], "role": "user", "queues": ["default"]},
            ]
        )
        yield Installation(dex, starter, f"https://127.0.0.1:{tls_port}", variables, admin)
    for process in starter.started:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    for left in starter.living():
        left.kill()
    dex.stop()


def test_a_person_signs_in_and_submits_a_job(installation: Installation) -> None:
    installation.signed_in("ana")
    shown = json.loads(installation.ran("--context", "ana", "whoami", "-o", "json"))
    assert (shown["name"], shown["role"], shown["queues"]) == ("ana@example.com", "user", ["default"])
    assert (shown["issuer"], shown["groups"]) == (installation.dex.url, ["vision"])
    job_id = installation.ran(
        "--context", "ana", "run", "--queue", "default", "--name", "hello", "--", "echo", "hi"
    ).strip()
    (job,) = installation.admin.wait([job_id], timeout=120)
    assert (job.state, job.submitted_by) == (JobState.SUCCEEDED, "ana@example.com")
    assert "hello" in installation.ran("--context", "ana", "jobs", "--state", "succeeded")
    people = [one for one in installation.admin.keys() if one.issuer == installation.dex.url]  # noqa: SIM118 - not a mapping
    assert [(one.name, one.groups) for one in people] == [("ana@example.com", ("vision",))]


def test_a_person_signs_in_by_a_browser(installation: Installation) -> None:
    url = installation.admin.url
    with httpx.Client(base_url=url, follow_redirects=True, timeout=60) as browser:
        assert browser.get("/v1/whoami").status_code == 401
        page = browser.get("/v1/sign-in/browser", params={"return": "/healthz"})
        assert "password" in page.text, page.text
        done = browser.post(page.url, data={"login": "ana@example.com", "password": PASSWORD})
        assert (str(done.url), done.json()["status"]) == (f"{url}/healthz", "alive"), done.text
        found = browser.get("/v1/whoami").json()
        assert (found["name"], found["groups"], found["issuer"]) == (
            "ana@example.com",
            ["vision"],
            installation.dex.url,
        )
        assert browser.post("/v1/jobs", json=JOB).json()["code"] == "csrf"
        csrf = {"X-Trainmaster-CSRF": found["csrfToken"], "Origin": url}
        made = browser.post("/v1/jobs", json=JOB | {"name": "of-the-browser"}, headers=csrf)
        assert made.status_code == 201, made.text
        assert installation.admin.job(made.json()["id"]).submitted_by == "ana@example.com"
        assert browser.get("/apis/trainmaster.dev/v1/jobs").status_code == 401
        assert "password" not in browser.get("/v1/sign-in/browser", params={"return": "/healthz"}).text, (
            "dex has a session of its own"
        )
        csrf["X-Trainmaster-CSRF"] = browser.get("/v1/whoami").json()["csrfToken"]
        ended = browser.post("/v1/sign-out", headers=csrf)
        assert (ended.status_code, browser.get("/v1/whoami").status_code) == (200, 401), ended.text
        back = browser.get(ended.json()["endSessionUrl"])
        assert [one.status_code for one in back.history] == [303], back.text
        assert str(back.url) == f"{url}/"
        assert "password" in browser.get("/v1/sign-in/browser", params={"return": "/healthz"}).text


def test_a_person_signs_in_and_out_at_the_dashboard(installation: Installation, chromium: Browser) -> None:
    if not (ASSETS / "index.html").exists():
        pytest.fail("the dashboard is not built: scripts/build-web")
    context = chromium.new_context()
    context.set_default_timeout(30_000)
    page, url = context.new_page(), installation.admin.url
    page.goto(f"{url}/jobs?state=running")
    page.get_by_role("link", name="Sign in with your company's account").click()
    page.locator("input[name=login]").fill("ana@example.com")
    page.locator("input[name=password]").fill(PASSWORD)
    page.get_by_role("button", name="Login").click()
    expect(page.get_by_role("heading", name="Jobs", exact=True)).to_be_visible()
    expect(page.get_by_text("ana@example.com")).to_be_visible()
    assert page.url == f"{url}/jobs?state=running", "the page that was wanted before the sign-in"
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_url(f"{url}/")
    expect(page.get_by_label("API key")).to_be_visible()
    assert page.request.get(f"{url}/v1/whoami").status == 401
    page.get_by_role("link", name="Sign in with your company's account").click()
    expect(page.locator("input[name=password]")).to_be_visible()
    context.close()


def test_who_is_not_bound_is_refused_until_an_admin_binds(installation: Installation) -> None:
    refused = installation.login("bo")
    assert (refused.returncode, "the user 'bo@example.com', who is in the groups nlp" in refused.stderr) == (
        Exit.DENIED,
        True,
    )
    installation.admin.apply([{"kind": "RoleBinding", "name": "bo", "users": ["bo@example.com"], "role": "admin"}])
    installation.signed_in("bo")
    assert "vision" in installation.ran("--context", "bo", "role-bindings")
    installation.admin.delete("RoleBinding", "bo")

    def is_refused() -> bool:
        return installation.run("--context", "bo", "jobs").returncode == Exit.DENIED

    eventually_sync(is_refused, 30)


@pytest.mark.skipif(KUBECTL is None, reason="KUBEBUILDER_ASSETS has no kubectl")
def test_kubectl_asks_the_command_line_for_tokens(installation: Installation) -> None:
    installation.signed_in("ana")
    path = Path(installation.variables["KUBECONFIG"])
    path.write_text(installation.ran("--context", "ana", "kubeconfig", "--namespace", "default"))
    assert "eyJ" not in path.read_text(), "there is no secret in the file"

    def kubectl(*words: str) -> str:
        done = subprocess.run(
            [str(KUBECTL), *words],
            env=installation.starter.env | installation.variables,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    installation.admin.submit(JOB)
    assert "of-the-admin" in kubectl("get", "jobs.trainmaster.dev")
    who = json.loads(kubectl("auth", "whoami", "-o", "json"))["status"]["userInfo"]
    assert (who["username"], who["groups"]) == (
        "ana@example.com",
        ["vision", "trainmaster:user", "system:authenticated"],
    )
    assert kubectl("auth", "can-i", "create", "jobs.trainmaster.dev").strip() == "yes"


def test_tokens_for_another_client_are_refused(installation: Installation) -> None:
    with installation.as_token(installation.dex.token("ana")) as ana:
        assert ana.whoami().name == "ana@example.com"
    with (
        installation.as_token(installation.dex.token("ana", OTHER_CLIENT)) as ana,
        pytest.raises(ProblemError) as error,
    ):
        ana.whoami()
    assert (error.value.code, "is for another client" in error.value.detail) == (Code.UNAUTHENTICATED, True)


def test_keys_of_an_issuer_that_was_started_anew_count_and_old_ones_do_not(installation: Installation) -> None:
    old = installation.dex.token("ana")
    installation.dex.stop()
    with installation.as_token(old) as ana:
        assert ana.whoami().name == "ana@example.com", "the keys are known while the issuer is down"
    installation.dex.start(tokens=SOON)
    new = installation.dex.token("ana")

    def is_taken() -> bool:
        with installation.as_token(new) as ana:
            try:
                return ana.whoami().name == "ana@example.com"
            except ProblemError:
                return False

    eventually_sync(is_taken, 60)
    with installation.as_token(old) as ana, pytest.raises(ProblemError) as error:
        ana.whoami()
    assert "does not publish" in error.value.detail


def test_tokens_are_replaced_before_they_end(installation: Installation) -> None:
    installation.dex.stop()
    installation.dex.start(tokens=SOON)
    installation.signed_in("ana")
    first = installation.ran("--context", "ana", "token").strip()

    def is_replaced() -> bool:
        return installation.ran("--context", "ana", "token").strip() != first

    eventually_sync(is_replaced, 60)
    assert end_of(installation.ran("--context", "ana", "token").strip()) > end_of(first)
