"""The dashboard in a real browser on a running installation: sign-in through a real OpenID provider, each page with live data, jobs
submitted, followed and cancelled, a policy edited with its preview, and no serious finding of axe.
"""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
import yaml
from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page, expect, sync_playwright

from tests.e2e.test_up import Starter
from tests.programs import PROGRAMS, needed
from tests.waiting import eventually_sync
from trainmaster import Client, JobFilter
from trainmaster.protocol.member_use import JobUse, TopAnswer, TopJob, UsedAmount
from trainmaster_dispatcher.cli.embedded import free_port
from trainmaster_dispatcher.web.assets import ASSETS

ROOT = Path(__file__).resolve().parents[2]
AXE = ROOT / "dispatcher/web/node_modules/axe-core/axe.min.js"
SHOTS = os.environ.get("TRAINMASTER_SCREENSHOTS", "")
"""A folder for screenshots of all pages; empty: none are made."""
PAGES = {
    "/": "Fleet",
    "/queues": "Queues",
    "/jobs": "Jobs",
    "/submit": "Submit a job",
    "/sessions": "Sessions",
    "/policies": "Policies",
    "/usage": "Usage and cost",
    "/audit": "Audit",
    "/simulations": "Simulations",
}
"""Address and heading of each page."""
MARKUP = "<img src=x onerror=\"window.__ran='yes'\"><script>window.__ran='yes'</script>"
POLICY = {
    "kind": "BurstPolicy",
    "name": "overflow",
    "queues": ["default"],
    "budget": {"day": "50", "job": "5"},
    "timeLimit": "1h",
    "description": MARKUP,
}

pytestmark = pytest.mark.wheel


@dataclass(frozen=True)
class Site:
    """A running ``trainmaster up`` whose people have accounts of an OpenID provider."""

    url: str
    key: str

    def client(self) -> Client:
        return Client(self.url, self.key)

    def submit(self, name: str, *command: str, **fields: Any) -> str:
        spec = {"name": name, "queue": "default", "roles": [{"name": "main", "template": {"command": list(command)}}]}
        with self.client() as client:
            return client.submit(spec | fields)[0]

    def state(self, job: str) -> str:
        with self.client() as client:
            return str(client.job(job).state)


def _provider_terms(port: int, url: str) -> dict[str, Any]:
    people = {"ana": ["vision"], "olaf": ["nobody"], "vera": ["viewers"]}
    web = {
        "client_id": "web",
        "token_endpoint_auth_method": "none",
        "application_type": "native",
        "redirect_uris": [f"{url}/v1/sign-in/callback"],
        "post_logout_redirect_uris": [f"{url}/"],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
    }
    accounts = [
        {"login": name, "claims": {"email": f"{name}@example.com", "email_verified": True, "groups": groups}}
        for name, groups in people.items()
    ]
    return {"issuer": f"http://127.0.0.1:{port}", "port": port, "clients": [web], "accounts": accounts}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    if not (ASSETS / "index.html").exists():
        pytest.fail("the dashboard is not built: scripts/build-web")
    needed("oidc-provider")
    folder = tmp_path_factory.mktemp("dashboard")
    starter, port, provider_port = Starter(folder), free_port(), free_port()
    url = f"http://127.0.0.1:{port}"
    terms = folder / "provider.json"
    terms.write_text(json.dumps(_provider_terms(provider_port, url)))
    with (folder / "provider.log").open("wb") as log:
        provider = subprocess.Popen([PROGRAMS["oidc-provider"].bin / "oidc-provider", terms], stdout=log, stderr=log)
    discovery = f"http://127.0.0.1:{provider_port}/.well-known/openid-configuration"

    def answers() -> bool:
        try:
            return httpx.get(discovery).status_code == 200
        except httpx.HTTPError:
            return False

    eventually_sync(answers, 30)
    settings = {
        "TRAINMASTER_OIDC_ISSUER": f"http://127.0.0.1:{provider_port}",
        "TRAINMASTER_OIDC_CLIENT_IDS": "command-line",
        "TRAINMASTER_OIDC_BROWSER_CLIENT_ID": "web",
        "TRAINMASTER_PUBLIC_URL": url,
    }
    as_root = ["--trust-submitters"] if os.geteuid() == 0 else []
    up = starter.up(folder / "data", port, *as_root, **settings)
    made = Site(url, (folder / "data/keys/admin").read_text())
    with made.client() as client:
        for group, role in (("vision", "submitter"), ("viewers", "viewer")):
            binding = {"kind": "RoleBinding", "name": group, "groups": [group], "role": role, "queues": ["default"]}
            client.apply([binding])
        client.apply([POLICY | {"paused": True}])
    yield made
    with made.client() as client:
        client.bulk("cancel", JobFilter(queue="default"), grace="0s")
    for process in (up, *starter.started, provider):
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.wait(60)
    for left in starter.living():
        left.kill()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    needed("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=PROGRAMS["chromium"].bin / "chromium", args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield browser
        browser.close()


@dataclass
class Visit:
    """A page of a browser, and what went wrong in it."""

    page: Page
    site: Site
    problems: list[str]
    edits: bool = False
    """Whether text is inserted into an editor: Chromium tries to keep its looks by inline styles, which the policy refuses."""

    def open(self, path: str, heading: str) -> None:
        self.page.goto(self.site.url + path)
        expect(self.page.get_by_role("heading", name=heading, exact=True, level=1)).to_be_visible()

    def sign_in_by_key(self) -> None:
        self.page.goto(self.site.url + "/jobs")
        self.page.get_by_label("API key").fill(self.site.key)
        self.page.get_by_role("button", name="Sign in", exact=True).click()
        expect(self.page.get_by_role("heading", name="Jobs", exact=True)).to_be_visible()

    def sign_in_as(self, name: str, path: str = "/jobs") -> None:
        """Sign in with an account of the provider, through its own pages."""
        self.page.goto(self.site.url + path)
        self.page.get_by_role("link", name="Sign in with your company's account").click()
        self.page.locator("input[name=login]").fill(name)
        self.page.locator("input[name=password]").fill("any")
        self.page.get_by_role("button", name="Sign-in").click()
        self.page.get_by_role("button", name="Continue").click()
        self.page.wait_for_url(f"{self.site.url}/**")


@pytest.fixture
def visit(chromium: Browser, site: Site, request: pytest.FixtureRequest) -> Iterator[Visit]:
    terms: dict[str, Any] = getattr(request, "param", {})
    context = chromium.new_context(**({"viewport": {"width": 1280, "height": 800}} | terms))
    context.set_default_timeout(30_000)
    page = context.new_page()
    made = Visit(page, site, [])

    def refuse(dialog: Dialog) -> None:
        made.problems.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    page.on("dialog", refuse)
    page.on("pageerror", lambda error: made.problems.append(str(error)))

    def note(message: ConsoleMessage) -> None:
        is_own = str(message.location.get("url", "")).startswith(site.url)
        is_of_editing = made.edits and message.text.startswith("Applying inline style")
        if message.type == "error" and is_own and "status of 4" not in message.text and not is_of_editing:
            made.problems.append(message.text)

    page.on("console", note)
    yield made
    assert page.evaluate("window.__ran") is None, "markup of others was executed"
    assert made.problems == []
    context.close()


def shoot(page: Page, name: str) -> None:
    if SHOTS:
        page.screenshot(path=Path(SHOTS) / f"{name}.png")


# -- sign-in


def test_a_person_signs_in_with_an_account_of_a_real_provider(visit: Visit) -> None:
    visit.sign_in_as("ana", "/jobs?state=running")
    page = visit.page
    expect(page.get_by_role("heading", name="Jobs", exact=True)).to_be_visible()
    assert page.url.endswith("/jobs?state=running"), "the page that was wanted before the sign-in"
    expect(page.get_by_text("ana@example.com")).to_be_visible()
    shown = page.get_by_role("navigation").get_by_role("listitem").all_inner_texts()
    assert "Jobs" in shown
    assert "Submit" in shown
    assert "Audit" not in shown, "submitters do not read the audit"
    visit.open("/audit", "Not for your role")
    with page.expect_request(lambda one: "/session/end?" in one.url) as sent:
        page.get_by_role("button", name="Sign out").click()
    query = parse_qs(urlsplit(sent.value.url).query)
    assert query.keys() == {"client_id", "post_logout_redirect_uri", "id_token_hint"}
    assert page.request.get(visit.site.url + "/v1/whoami").status == 401, "whatever the person does at the provider"
    page.get_by_role("button", name="Yes, sign me out").click()
    page.wait_for_url(f"{visit.site.url}/")
    expect(page.get_by_label("API key")).to_be_visible()
    page.get_by_role("link", name="Sign in with your company's account").click()
    expect(page.locator("input[name=login]")).to_be_visible()


def test_a_provider_keeps_its_session_without_a_sign_out(visit: Visit) -> None:
    visit.sign_in_as("ana")
    visit.page.context.clear_cookies(name="trainmaster")
    visit.page.goto(visit.site.url + "/jobs")
    visit.page.get_by_role("link", name="Sign in with your company's account").click()
    expect(visit.page.get_by_text("previously given authorization")).to_be_visible()
    expect(visit.page.locator("input[name=login]")).to_have_count(0)
    visit.page.get_by_role("button", name="Continue").click()
    expect(visit.page.get_by_role("heading", name="Jobs", exact=True)).to_be_visible()


def test_who_has_no_role_hears_so(visit: Visit) -> None:
    visit.page.goto(visit.site.url + "/jobs")
    visit.page.get_by_role("link", name="Sign in with your company's account").click()
    visit.page.locator("input[name=login]").fill("olaf")
    visit.page.locator("input[name=password]").fill("any")
    visit.page.get_by_role("button", name="Sign-in").click()
    visit.page.get_by_role("button", name="Continue").click()
    expect(visit.page.get_by_text("no role binding names the user")).to_be_visible()


def test_a_viewer_changes_nothing(visit: Visit) -> None:
    visit.sign_in_as("vera")
    expect(visit.page.get_by_role("heading", name="Jobs", exact=True)).to_be_visible()
    expect(visit.page.get_by_role("button", name="Cancel")).to_have_count(0)
    expect(visit.page.get_by_role("link", name="Submit")).to_have_count(0)


def test_a_wrong_key_is_refused(visit: Visit) -> None:
    visit.page.goto(visit.site.url + "/jobs")
    visit.page.get_by_label("API key").fill("tmk_of_nobody")
    visit.page.get_by_role("button", name="Sign in", exact=True).click()
    expect(visit.page.get_by_role("alert")).to_be_visible()
    assert visit.page.context.cookies() == []


# -- pages


def axe(page: Page) -> list[str]:
    """Return the serious and critical findings of axe on a page."""
    page.evaluate(AXE.read_text())
    found = page.evaluate(
        "async () => (await axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa']})).violations"
    )
    return [
        f"{one['id']}: {one['help']}: {one['nodes'][0]['html'][:200]}"
        for one in found
        if one["impact"] in ("serious", "critical")
    ]


@pytest.mark.parametrize(
    "visit",
    [
        {"color_scheme": "light"},
        {"color_scheme": "dark"},
        {"color_scheme": "light", "viewport": {"width": 390, "height": 844}},
    ],
    indirect=True,
    ids=["light", "dark", "phone"],
)
def test_each_page_shows_live_data_and_axe_finds_nothing_serious(visit: Visit, request: pytest.FixtureRequest) -> None:
    look = request.node.callspec.id
    running = visit.site.submit(f"live-{look}", "sh", "-c", "while true; do echo tick; sleep 1; done")
    visit.sign_in_by_key()
    eventually_sync(lambda: visit.site.state(running) == "running", 60)
    for path, heading in PAGES.items():
        visit.open(path, heading)
        visit.page.wait_for_load_state("networkidle") if path == "/submit" else visit.page.wait_for_timeout(500)
        assert axe(visit.page) == [], path
        width = visit.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert width <= 0, f"{path} is wider than the window"
        shoot(visit.page, f"{look}-{heading.lower().replace(' ', '-')}")
    visit.open("/usage?tab=efficiency", "Usage and cost")
    expect(visit.page.get_by_role("heading", name="Suggestions for recurring jobs")).to_be_visible()
    assert axe(visit.page) == []
    for tab in ("Overview", "Logs", "Events", "Use", "Specification"):
        visit.open(f"/jobs/{running}", running)
        visit.page.get_by_role("tab", name=tab).click()
        visit.page.wait_for_timeout(500)
        assert axe(visit.page) == [], tab
        shoot(visit.page, f"{look}-job-{tab.lower()}")


def test_the_page_works_by_keys_alone(visit: Visit) -> None:
    visit.sign_in_by_key()
    page = visit.page
    page.keyboard.press("g")
    page.keyboard.press("q")
    expect(page.get_by_role("heading", name="Queues", exact=True)).to_be_visible()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.keyboard.press("g")
    page.keyboard.press("j")
    expect(page.get_by_role("heading", name="Jobs", exact=True)).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("nothing-has-this-name")
    expect(page.get_by_text("No job matches these filters.")).to_be_visible()
    assert "search=nothing-has-this-name" in page.url


# -- jobs


def test_a_job_is_submitted_followed_and_cancelled(visit: Visit) -> None:
    visit.sign_in_as("ana", "/submit")
    page = visit.page
    expect(page.get_by_role("heading", name="Submit a job")).to_be_visible()
    page.get_by_label("Name").fill("from-the-page")
    page.get_by_label("Command, each argument on its own line").fill(
        "sh\n-c\nfor i in $(seq 1 1000); do echo line $i; sleep 0.3; done"
    )
    page.get_by_role("button", name="Check").click()
    expect(page.get_by_text("It would start now on")).to_be_visible()
    page.get_by_role("button", name="Submit", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("from-the-page-")
    job = page.get_by_role("heading", level=1).inner_text()
    page.get_by_role("tab", name="Logs").click()
    expect(page.get_by_role("log")).to_contain_text("line 8", timeout=60_000)
    page.get_by_role("tab", name="Overview").click()
    page.get_by_role("button", name="Cancel …").click()
    page.get_by_role("button", name="Cancel the job").click()
    expect(page.locator(".title .state")).to_contain_text("cancelled", timeout=60_000)
    page.get_by_role("tab", name="Events").click()
    expect(page.get_by_text("by ana@example.com").first).to_be_visible()
    with visit.site.client() as client:
        assert client.job(job).submitted_by == "ana@example.com"
    page.get_by_role("link", name="Submit again with changes").click()
    expect(page.get_by_role("heading", name=f"Submit {job} again")).to_be_visible()
    expect(page.get_by_label("Name")).to_have_value("from-the-page")


def test_a_mistake_is_shown_where_it_is(visit: Visit) -> None:
    visit.sign_in_by_key()
    visit.open("/submit?tab=yaml", "Submit a job")
    page, visit.edits = visit.page, True
    editor = page.get_by_role("textbox", name="Specification of the job")
    editor.click()
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.insert_text("name: x\nqueue: default\nroles:\n- name: main\n  template:\n    comand: [a]\n")
    page.get_by_role("button", name="Check").click()
    expect(page.get_by_role("alert")).to_contain_text("did you mean command?")
    editor.click()
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.insert_text("na")
    page.keyboard.press("Control+Space")
    expect(page.locator(".cm-tooltip-autocomplete")).to_contain_text("name")


def test_many_jobs_are_cancelled_after_they_were_counted(visit: Visit) -> None:
    jobs = [visit.site.submit(f"bulk-{number}", "sleep", "600", labels={"of": "bulk"}) for number in range(3)]
    other = visit.site.submit("stays", "sleep", "600")
    visit.sign_in_by_key()
    visit.open("/jobs?label=of%3Dbulk", "Jobs")
    page = visit.page
    expect(page.get_by_role("row").filter(has_text="bulk-")).to_have_count(3)
    page.get_by_role("button", name="Cancel all that match …").click()
    expect(page.get_by_role("dialog")).to_contain_text("3 jobs match the filters")
    page.get_by_role("button", name="Cancel 3 jobs").click()
    eventually_sync(lambda: all(visit.site.state(one) == "cancelled" for one in jobs), 60)
    expect(page.get_by_role("row").filter(has_text="cancelled")).to_have_count(3, timeout=30_000)
    assert visit.site.state(other) != "cancelled"
    visit.open("/jobs?name=stays", "Jobs")
    page.get_by_role("checkbox", name=f"Select {other}").check()
    page.get_by_role("button", name="Cancel …").click()
    page.get_by_role("button", name="Cancel 1 job").click()
    eventually_sync(lambda: visit.site.state(other) == "cancelled", 60)


def test_text_of_users_stays_text(visit: Visit) -> None:
    command = f"printf '%s\\n' {json.dumps(MARKUP)!s}; printf '\\033]0;title\\007\\033[31mred\\033[0m\\n'; exit 3"
    job = visit.site.submit("markup", "sh", "-c", command.replace('\\"', '"'), labels={"note": "plain"})
    eventually_sync(lambda: visit.site.state(job) == "failed", 60)
    visit.sign_in_by_key()
    visit.open(f"/jobs/{job}?tab=logs", job)
    expect(visit.page.get_by_role("log")).to_contain_text("<script>")
    expect(visit.page.get_by_role("log")).to_contain_text("red")
    assert "]0;title" not in visit.page.get_by_role("log").inner_text()
    visit.open("/policies", "Policies")
    expect(visit.page.get_by_text(MARKUP)).to_be_visible()
    for path in (f"/jobs/{job}?tab=spec", "/audit", "/jobs?name=markup"):
        visit.page.goto(visit.site.url + path)
        visit.page.wait_for_timeout(500)


def test_a_policy_is_edited_with_a_preview(visit: Visit) -> None:
    visit.sign_in_by_key()
    visit.open("/policies", "Policies")
    page, visit.edits = visit.page, True
    page.get_by_role("button", name="Edit …").first.click()
    editor = page.get_by_role("textbox", name="Declaration of the policy")
    editor.click()
    page.keyboard.press("ControlOrMeta+a")
    changed = POLICY | {"description": "edited", "paused": False, "budget": {"day": "70", "job": "5"}}
    page.keyboard.insert_text(yaml.safe_dump(changed))
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_role("dialog").get_by_role("status")).to_be_visible(timeout=30_000)
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.get_by_text("edited")).to_be_visible()
    with visit.site.client() as client:
        assert client.get_object("BurstPolicy", "overflow")["budget"]["day"] == "70"
        client.apply([POLICY | {"paused": True}])


def test_a_change_elsewhere_is_seen_without_a_reload(visit: Visit) -> None:
    visit.sign_in_by_key()
    visit.open("/jobs?name=elsewhere", "Jobs")
    expect(visit.page.get_by_text("No job matches these filters.")).to_be_visible()
    visit.site.submit("elsewhere", "sleep", "600")
    expect(visit.page.get_by_role("row").filter(has_text="running")).to_have_count(1, timeout=40_000)


@pytest.mark.parametrize(
    "visit",
    [{"color_scheme": "dark"}, {"color_scheme": "light", "viewport": {"width": 390, "height": 844}}],
    indirect=True,
    ids=["dark", "phone"],
)
def test_gpus_that_do_nothing_are_shown_with_their_jobs(visit: Visit, request: pytest.FixtureRequest) -> None:
    look = request.node.callspec.id
    job = visit.site.submit(f"idle-{look}", "sleep", "600")
    use = JobUse(
        attempt=1,
        sampled_at=datetime.now(UTC),
        gpu=UsedAmount(used=0.04, requested=4, percent=1.0),
        gpus_idle_since=datetime.now(UTC) - timedelta(hours=3),
    )
    found = TopJob(job=job, queue="default", cluster="private", user="ana@example.com", members=1, use=use)
    # No cluster of `up` has GPUs. tests/integration/test_idle_gpu_jobs.py has what the api answers.
    answer = TopAnswer(at=datetime.now(UTC), running=1, jobs=(found,)).model_dump_json(by_alias=True, exclude_none=True)
    visit.page.route(
        "**/v1/top?gpusIdle=true*", lambda route: route.fulfill(body=answer, content_type="application/json")
    )
    visit.sign_in_by_key()
    visit.open("/", "Fleet")
    expect(visit.page.get_by_text("4 GPUs of 1 running job are idle")).to_be_visible()
    row = visit.page.get_by_role("table", name="Jobs whose GPUs do nothing").get_by_role("row").last
    expect(row).to_contain_text("3h")
    assert axe(visit.page) == []
    width = visit.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert width <= 0, "wider than the window"
    shoot(visit.page, f"{look}-idle-gpus")
    if look == "dark":
        row.get_by_role("link", name="ana@example.com").click()
        expect(visit.page.get_by_role("heading", name="Jobs", exact=True)).to_be_visible()
        query = parse_qs(urlsplit(visit.page.url).query)
        assert query == {"state": ["running"], "submittedBy": ["ana@example.com"]}
        visit.page.go_back()
    row.get_by_role("link", name=job).click()
    expect(visit.page.get_by_role("heading", name=job, level=1)).to_be_visible()


def test_a_fleet_without_idle_gpus_has_no_such_part(visit: Visit) -> None:
    visit.sign_in_by_key()
    with visit.page.expect_response(lambda one: "/v1/top?gpusIdle=true" in one.url) as heard:
        visit.open("/", "Fleet")
    assert heard.value.json()["running"] == 0
    expect(visit.page.get_by_role("heading", name="Clusters", exact=True)).to_be_visible()
    expect(visit.page.get_by_role("heading", name="GPUs that do nothing")).to_have_count(0)


def test_the_javascript_of_all_pages_is_below_400_kb() -> None:
    sizes = {path.name: path.stat().st_size for path in ASSETS.rglob("*.js.gz")}
    assert len(sizes) >= 10
    assert sum(sizes.values()) < 400_000, sizes
    first = [size for name, size in sizes.items() if name.startswith("index-")]
    assert sum(first) < 60_000, "what every page loads first"
