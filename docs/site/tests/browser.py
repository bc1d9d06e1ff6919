"""Chromium without a window, controlled by the DevTools protocol through pipes."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import http.server
import json
import os
import pathlib
import select
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any

PROGRAMS = ("chromium", "chromium-headless-shell", "google-chrome")
OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
           "--no-first-run", "--disable-background-networking", "--disable-component-update",
           "--remote-debugging-pipe")  # fmt: skip
DOMAINS = ("Page", "Runtime", "Log", "Network")
DEADLINE = 120.0  # seconds, for a busy machine


def find() -> str | None:
    """The path of a browser, or None."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


class Page:
    """A page of the browser. `errors` and `addresses` are of the last visit."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        attached = browser.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        self.errors: list[str] = []
        self.addresses: list[str] = []
        for domain in DOMAINS:
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, self._note, **parameters)

    def visit(self, address: str, width: int, height: int = 900) -> None:
        """Opens the address in a window of this width, and waits until the page is loaded."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=False)  # fmt: skip
        self.errors, self.addresses = [], []
        self._loaded = False
        self.call("Page.navigate", url=address)
        self._browser.wait_until(lambda: self._loaded, self._note, f"{address} is not loaded")

    def evaluate(self, program: str) -> Any:
        """The value of a JavaScript expression."""
        done = self.call(
            "Runtime.evaluate", expression=program, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def wait_for(self, program: str) -> Any:
        """The value of the expression as soon as the value is true."""
        end = time.monotonic() + DEADLINE
        while not (value := self.evaluate(program)):
            assert time.monotonic() < end, f"never true: {program}"
            time.sleep(0.1)
        return value

    def _note(self, event: dict[str, Any]) -> None:
        if event.get("sessionId") != self._session:
            return
        method, values = event["method"], event["params"]
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Network.requestWillBeSent":
            self.addresses.append(values["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(values["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and values["type"] in ("error", "assert"):
            self.errors.append(json.dumps(values["args"]))
        elif method == "Log.entryAdded" and values["entry"]["level"] == "error":
            self.errors.append(f"{values['entry']['text']} {values['entry'].get('url', '')}")


class Browser:
    """A running browser."""

    def __init__(self, program: str, profile: str) -> None:
        there, self._write = map(_high, os.pipe())
        self._read, back = map(_high, os.pipe())
        start = f'exec "$0" "$@" 3<&{there} 4>&{back}'  # the protocol's descriptors
        self._process = subprocess.Popen(
            ["bash", "-c", start, program, *OPTIONS, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(there, back), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(there)
        os.close(back)
        self._number = 0
        self._bytes = b""

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._send({"id": self._number + 1, "method": "Browser.close"})
        os.close(self._write)
        try:
            self._process.wait(timeout=DEADLINE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._read)

    def call(
        self, method: str, session: str | None = None, note: Any = None, /, **parameters: Any
    ) -> Any:
        """The answer to a command. `note` gets the events that come before."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        self._send(message | ({"sessionId": session} if session else {}))
        while True:
            answer = self._receive(f"{method} is not answered")
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            if note and "method" in answer:
                note(answer)

    def wait_until(self, done: Any, note: Any, failure: str) -> None:
        while not done():
            event = self._receive(failure)
            if "method" in event:
                note(event)

    def _send(self, message: dict[str, Any]) -> None:
        os.write(self._write, json.dumps(message).encode() + b"\0")

    def _receive(self, failure: str) -> Any:
        while b"\0" not in self._bytes:
            ready, _, _ = select.select([self._read], [], [], DEADLINE)
            assert ready, failure
            more = os.read(self._read, 1 << 16)
            assert more, f"{failure}: the browser ended"
            self._bytes += more
        message, _, self._bytes = self._bytes.partition(b"\0")
        return json.loads(message)


def _high(descriptor: int) -> int:
    """A copy that is not one of the protocol's descriptors."""
    copy = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(descriptor)
    return copy


@contextlib.contextmanager
def running(program: str) -> Iterator[Browser]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = Browser(program, profile)
        try:
            yield browser
        finally:
            browser.close()


class _Silent(http.server.SimpleHTTPRequestHandler):
    def do_GET(self) -> None:  # the base class's
        if self.path != "/favicon.ico":
            return super().do_GET()
        self.send_response(204)  # browsers ask, whatever a page has
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@contextlib.contextmanager
def served(folder: pathlib.Path) -> Iterator[str]:
    """The address of a server of this folder on this machine."""
    handler = functools.partial(_Silent, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
