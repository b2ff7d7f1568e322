"""A real headless Chromium, driven by the Chrome DevTools Protocol over one WebSocket.

https://chromedevtools.github.io/devtools-protocol/. Nothing but its program is needed, which ``tests.programs`` fetches.
"""

import itertools
import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

from tests.waiting import eventually_sync

Event = dict[str, Any]

_OPTIONS = (
    "--no-sandbox",  # tests may run as root
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--remote-debugging-port=0",
    "--window-size=1400,900",
)
_SECONDS = 120.0
_LOOK_SECONDS = 0.1
_SHIFT = 8


class PageError(Exception):
    """JavaScript has thrown, or the browser refuses a command."""


@dataclass
class Browser:
    """A browser with a profile of its own. ``events``: what it has reported of all tabs, in order."""

    _line: ClientConnection
    events: list[Event] = field(default_factory=list)
    _numbers: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    def call(self, method: str, session: str | None = None, **parameters: Any) -> Any:
        """Call a method of the protocol and return its result. Raises PageError."""
        number = self._send(method, session, parameters)
        until = time.monotonic() + _SECONDS
        while True:
            answer = json.loads(self._line.recv(max(0.0, until - time.monotonic())))
            if answer.get("id") == number:
                break
            self.events.append(answer)
            if (
                answer.get("method") == "Page.javascriptDialogOpening"
            ):  # as of notebooks that are not saved; all else waits for it
                self._send("Page.handleJavaScriptDialog", answer["sessionId"], {"accept": True})
        if "error" in answer:
            raise PageError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def _send(self, method: str, session: str | None, parameters: dict[str, Any]) -> int:
        """Send a command and return its number."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        self._line.send(json.dumps(message | ({"sessionId": session} if session else {})))
        return number

    def tab(self, url: str, *, apart: bool = False) -> "Tab":
        """Open a tab. ``apart``: without the cookies of the others, as in another browser."""
        more = {"browserContextId": self.call("Target.createBrowserContext")["browserContextId"]} if apart else {}
        target = self.call("Target.createTarget", url="about:blank", **more)["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        made = Tab(self, session)
        for area in ("Page", "Runtime", "Network"):
            made.call(f"{area}.enable")
        made.call("Emulation.setFocusEmulationEnabled", enabled=True)  # as if each tab were in front
        made.go(url)
        return made


@dataclass(frozen=True)
class Tab:
    """A page of a browser."""

    browser: Browser
    session: str

    def call(self, method: str, **parameters: Any) -> Any:
        return self.browser.call(method, self.session, **parameters)

    def go(self, url: str) -> None:
        """Follow a link, and wait until its page has come. Raises PageError where none comes."""
        gone = self.call("Page.navigate", url=url)
        if gone.get("errorText"):
            raise PageError(f"{url}: {gone['errorText']}")
        self.until("document.readyState == 'complete'")

    def reload(self) -> None:
        self.evaluate("window.isOld = true")
        self.call("Page.reload")
        self.until("!window.isOld && document.readyState == 'complete'")

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression, of what it promises where it is a promise. Raises PageError."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            details = found["exceptionDetails"]
            raise PageError(details.get("exception", {}).get("description") or details["text"])
        return found["result"].get("value")

    def until(self, expression: str, seconds: float = _SECONDS) -> Any:
        """Wait until an expression has a value that counts as true, and return it. Raises AssertionError with the page's text."""
        until = time.monotonic() + seconds
        while True:
            try:
                if value := self.evaluate(expression):
                    return value
            except PageError:  # the page is not there yet, or is just being replaced
                if time.monotonic() > until:
                    raise
            assert time.monotonic() < until, f"{expression} at {self.evaluate('location.href')}:\n{self.text}"
            time.sleep(_LOOK_SECONDS)

    def click(self, selector: str) -> None:
        """Click on the first element that a CSS selector finds, once there is one."""
        one = f"document.querySelector({json.dumps(selector)})"
        self.until(f"{one} !== null")
        self.evaluate(f"{one}.click()")

    def type(self, text: str) -> None:
        """Type a text into what has the focus."""
        self.call("Input.insertText", text=text)

    def press_shift_enter(self) -> None:
        key = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "modifiers": _SHIFT}
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, **key)

    @property
    def text(self) -> str:
        """The text that a person sees."""
        return str(self.evaluate("document.body.innerText"))

    @property
    def url(self) -> str:
        return str(self.evaluate("location.href"))

    def events(self, method: str) -> list[Event]:
        """Return the parameters of what the browser has reported of this tab by a name, so far."""
        self.evaluate("1")
        return [
            event["params"]
            for event in self.browser.events
            if event.get("method") == method and event.get("sessionId") == self.session
        ]


@contextmanager
def started(program: Path, folder: Path) -> Iterator[Browser]:
    """Start a browser whose profile is in ``folder``, and end it with all of its processes."""
    active = folder / "DevToolsActivePort"
    with (folder.with_suffix(".log")).open("wb") as log:
        command = [str(program), *_OPTIONS, f"--user-data-dir={folder}", "about:blank"]
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        eventually_sync(lambda: active.exists() and active.read_text().count("\n") > 0, _SECONDS)
        port, path = active.read_text().splitlines()
        with connect(f"ws://127.0.0.1:{port}{path}", max_size=None, proxy=None) as line:
            made = Browser(line)
            yield made
            made.call("Browser.close")
        process.wait(_SECONDS)
    finally:
        process.kill()
        process.wait()
