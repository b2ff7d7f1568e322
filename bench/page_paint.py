"""The dashboard in a real Chromium on a system with many stored jobs: the time until something, and until rows of data, are seen."""

import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.page_jobs import QUEUES, fill
from bench.stage import ADMIN_KEY, Stage
from tests.programs import PROGRAMS, UnavailableError
from trainmaster_dispatcher.web.assets import ASSETS

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext

_PAGES = {"fleet": "/", "jobs": "/jobs", "queues": "/queues"}
_LONGEST_MS = 60_000
_WATCH = """
(() => {
  const look = () => {
    const row = document.querySelector('main [role=rowgroup] [role=row]');
    if (!row || !row.innerText.trim()) requestAnimationFrame(look);
    // The frame that has the row is drawn before the next task.
    else setTimeout(() => { window.firstRows = performance.now(); });
  };
  requestAnimationFrame(look);
})();
"""
"""Notes when the first row of a table has been drawn. It stands beside the page, which is measured as it is."""
_READ = """
() => {
  const [paint] = performance.getEntriesByName('first-contentful-paint');
  const scripts = performance.getEntriesByType('resource').filter((one) => new URL(one.name).pathname.endsWith('.js'));
  return {
    first_contentful_paint_ms: paint.startTime,
    first_rows_ms: window.firstRows,
    scripts: scripts.length,
    javascript_bytes: scripts.reduce((sum, one) => sum + one.encodedBodySize, 0),
  };
}
"""


def paint(folder: Path, jobs: int, loads: int) -> dict[str, Any]:
    """Return the figures of pages that are opened by somebody who has signed in, and the bytes of JavaScript as they are sent; or why
    there are none.
    """
    chromium = PROGRAMS["chromium"]
    try:
        chromium.fetch()
    except UnavailableError as error:
        return {"skipped": f"no Chromium: {error}"}
    if not (ASSETS / "index.html").exists():
        return {"skipped": "the dashboard is not built: scripts/build-web"}
    from playwright.sync_api import sync_playwright

    stage = Stage(folder, [], schedulers=0, queues=QUEUES)
    try:
        stage.start()
        fill(stage, jobs)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=chromium.bin / "chromium", args=["--no-sandbox", "--disable-dev-shm-usage"]
            )
            pages = {name: _page(browser, stage.urls[0], path, loads) for name, path in _PAGES.items()}
            browser.close()
    finally:
        stage.stop()
    every = sum(path.stat().st_size for path in ASSETS.rglob("*.js.gz"))
    return {
        "browser": chromium.version,
        "jobs": jobs,
        "loads": loads,
        "javascript_of_all_pages_bytes": every,
        "pages": pages,
    }


def _page(browser: "Browser", url: str, path: str, loads: int) -> dict[str, Any]:
    signed_in = browser.new_context()
    answer = signed_in.request.post(f"{url}/v1/sign-in/key", data={"key": ADMIN_KEY})
    if not answer.ok:
        raise RuntimeError(f"the sign-in is refused: {answer.text()}")
    state = signed_in.storage_state()
    cold = []
    for _ in range(loads):
        # A context of its own has nothing in its cache.
        with browser.new_context(storage_state=state) as context:
            cold.append(_load(context, url + path))
    _load(signed_in, url + path)
    warm = [_load(signed_in, url + path) for _ in range(loads)]
    signed_in.close()
    first = cold[0]
    return {
        "javascript_of_first_load": {"files": first["scripts"], "bytes": first["javascript_bytes"]},
        "cold": _figures(cold),
        "warm": _figures(warm),
    }


def _load(context: "BrowserContext", address: str) -> dict[str, float]:
    page = context.new_page()
    page.add_init_script(_WATCH)
    page.goto(address)
    page.wait_for_function("window.firstRows", timeout=_LONGEST_MS)
    found: dict[str, float] = page.evaluate(_READ)
    page.close()
    return found


def _figures(loads: list[dict[str, float]]) -> dict[str, dict[str, int]]:
    found = {}
    for name in ("first_contentful_paint_ms", "first_rows_ms"):
        values = [one[name] for one in loads]
        found[name] = {"median": round(statistics.median(values)), "max": round(max(values))}
    return found
