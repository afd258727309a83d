"""A headless Chromium, driven through a pair of pipes by its own protocol; nothing has to be installed for that."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = """--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --disable-extensions
--disable-background-networking --disable-component-update --hide-scrollbars --force-color-profile=srgb
--remote-debugging-pipe""".split()
_KEYS = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Home": 36, "End": 35, "Escape": 27}


def find_browser() -> str | None:
    """Return the path of Chromium, or None."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def _pipe() -> tuple[int, int]:
    """Both ends of a pipe, by numbers above those of the protocol."""
    ends = os.pipe()
    moved = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 16) for end in ends)
    for end in ends:
        os.close(end)
    return moved


class Browser:
    """One browser with one page; ``profile`` is an empty folder for its files."""

    def __init__(self, profile: Path) -> None:
        path = find_browser()
        assert path is not None
        to_read, self._out = _pipe()
        self._in, to_write = _pipe()
        # The protocol is read from descriptor 3 and written to descriptor 4.
        actions = [(os.POSIX_SPAWN_DUP2, to_read, 3), (os.POSIX_SPAWN_DUP2, to_write, 4)]
        actions += [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (0, 1, 2)]
        command = [path, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        self._process = os.posix_spawn(path, command, os.environ, file_actions=actions)
        os.close(to_read)
        os.close(to_write)
        self._number, self._held = 0, b""
        self.events: list[dict[str, Any]] = []
        self._session: str | None = None
        targets = self.send("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        self._session = self.send("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> Any:
        """Send a command and return its answer; events meanwhile are appended to ``events``."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + 30
        while True:
            answer = self._read(until)
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self.events.append(answer)

    def _read(self, until: float) -> Any:
        while b"\0" not in self._held:
            ready, _, _ = select.select([self._in], [], [], max(0.0, until - time.monotonic()))
            assert ready, "the browser did not answer in time"
            content = os.read(self._in, 1 << 20)
            assert content, "the browser has ended"
            self._held += content
        message, self._held = self._held.split(b"\0", 1)
        return json.loads(message)

    def open(self, path: Path) -> None:
        """Load a file and wait until its script is done."""
        self.run("document.documentElement && delete document.documentElement.dataset.ready")  # of the page before
        self.events.clear()
        self.send("Page.navigate", url=path.resolve().as_uri())
        self.wait("document.documentElement?.dataset.ready === 'yes'")

    def run(self, expression: str) -> Any:
        """Return the value of an expression in the page."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, expression: str) -> None:
        """Wait until an expression is true."""
        until = time.monotonic() + 20
        while not self.run(f"Boolean({expression})"):
            assert time.monotonic() < until, f"never came: {expression}"
            time.sleep(0.02)

    def press(self, *keys: str, shift: bool = False) -> None:
        """Press keys, one after another."""
        for key in keys:
            code = {"windowsVirtualKeyCode": _KEYS[key]} if key in _KEYS else {"text": key}
            common = {"key": key, "modifiers": 8 if shift else 0}
            self.send("Input.dispatchKeyEvent", type="keyDown", **common, **code)
            self.send("Input.dispatchKeyEvent", type="keyUp", **common)

    def point(self, x: float, y: float) -> None:
        """Move the mouse."""
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def touch(self, x: float, y: float) -> None:
        """Touch the screen."""
        self.send("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
        self.send("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])

    def size(self, width: int, height: int, *, mobile: bool = False) -> None:
        """Set the size of the window."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1.0}
        self.send("Emulation.setDeviceMetricsOverride", **size, mobile=mobile)
        self.send("Emulation.setTouchEmulationEnabled", enabled=mobile)

    def prefer(self, scheme: str) -> None:
        """Prefer ``light`` or ``dark``, as a system does."""
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def picture(self, path: Path) -> None:
        """Write a PNG of the window."""
        path.write_bytes(base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"]))

    def complaints(self) -> list[str]:
        """Return errors of the page's script and of its security policy since it was opened."""
        thrown = [e["params"]["exceptionDetails"] for e in self.events if e["method"] == "Runtime.exceptionThrown"]
        logged = [e["params"]["entry"] for e in self.events if e["method"] == "Log.entryAdded"]
        return [str(complaint) for complaint in thrown + logged]

    def requests(self) -> list[str]:
        """Return the addresses that were fetched since the page was opened."""
        urls = [e["params"]["request"]["url"] for e in self.events if e["method"] == "Network.requestWillBeSent"]
        return [url for url in urls if not url.startswith("data:")]

    def close(self) -> None:
        """End the browser."""
        self._session = None
        with suppress(AssertionError, OSError):
            self.send("Browser.close")
        until = time.monotonic() + 5
        while os.waitpid(self._process, os.WNOHANG)[0] == 0:
            if time.monotonic() > until:
                os.kill(self._process, signal.SIGKILL)
            time.sleep(0.02)
        os.close(self._in)
        os.close(self._out)
