"""A headless Chromium for tests: found on the machine or not, driven over the DevTools protocol."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FOUND = next((path for name in NAMES if (path := shutil.which(name))), None)
NONE = f"none of {', '.join(NAMES)} is installed: the page is not opened in a browser"
ANSWER_S = 60.0


class Browser:
    """One headless Chromium with one tab, driven over the DevTools protocol through a pair of pipes."""

    def __init__(self, profile: Path) -> None:
        assert FOUND is not None
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()

        def at_three_and_four() -> None:
            low, high = fcntl.fcntl(to_read, fcntl.F_DUPFD, 10), fcntl.fcntl(to_write, fcntl.F_DUPFD, 10)
            os.dup2(low, 3)
            os.dup2(high, 4)

        self._process = subprocess.Popen(
            [
                FOUND, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                "--no-first-run", "--disable-extensions", "--disable-background-networking",
                f"--user-data-dir={profile}", "--window-size=1280,900", "--remote-debugging-pipe",
                "about:blank",
            ],
            preexec_fn=at_three_and_four, pass_fds=(3, 4), stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        os.close(to_read)
        os.close(to_write)
        self._rest, self._number, self._session = b"", 0, ""
        self.events: list[dict[str, Any]] = []
        try:
            target = self.call("Target.createTarget", url="about:blank")["targetId"]
            self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log"):
                self.call(f"{domain}.enable")
        except BaseException:
            self.close()
            raise

    def call(self, method: str, **params: Any) -> Any:
        """Send a command and wait for its answer; events that come meanwhile are kept."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + ANSWER_S
        while True:
            answer = self._next(deadline)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def _next(self, deadline: float) -> Any:
        while b"\0" not in self._rest:
            left = deadline - time.monotonic()
            ready, _, _ = select.select([self._read], [], [], max(0.0, left))
            part = os.read(self._read, 1 << 20) if ready else b""
            assert part, f"Chromium gave no answer within {ANSWER_S:.0f} s"
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\0")
        return json.loads(line)

    def run(self, script: str) -> Any:
        """Value of an expression in the page; awaits a promise."""
        out = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in out, out["exceptionDetails"]
        return out["result"].get("value")

    def until(self, script: str, what: str) -> Any:
        """Wait until an expression holds; returns its value."""
        deadline = time.monotonic() + ANSWER_S
        while not (value := self.run(script)):
            assert time.monotonic() < deadline, f"{what}: not within {ANSWER_S:.0f} s"
            time.sleep(0.02)
        return value

    def open(self, page: Path) -> None:
        """Open a page from disk and wait until its script is done starting."""
        self.events.clear()
        self.call("Page.navigate", url=page.resolve().as_uri())
        ready = "document.documentElement?.dataset.readyMs || document.querySelector('main > .warning')"
        self.until(ready, "the start of the page's script")

    def key(self, key: str) -> None:
        """Press a key."""
        text = {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def write(self, into: str, text: str) -> None:
        """Replace the text of an input, as typing does."""
        self.run(f"document.getElementById({json.dumps(into)}).select()")
        if text:
            self.call("Input.insertText", text=text)
        else:
            self.call("Input.dispatchKeyEvent", type="keyDown", key="Delete", windowsVirtualKeyCode=46)

    def text(self, name: str) -> str:
        """Text of the element of an id."""
        return str(self.run(f"document.getElementById({json.dumps(name)}).textContent"))

    def middle(self, name: str) -> tuple[float, float]:
        """Where the middle of an element is, scrolled into view."""
        x, y = self.run(
            f"(() => {{ const e = document.getElementById({json.dumps(name)}); e.scrollIntoView("
            "{block: 'center'}); const r = e.getBoundingClientRect(); "
            "return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        return float(x), float(y)

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """A mouse event."""
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def complaints(self) -> list[str]:
        """Console errors, warnings, dialogs and uncaught exceptions since the page was opened."""
        self.run("0")
        out = []
        for event in self.events:
            method, params = event.get("method"), event.get("params", {})
            if method in ("Runtime.exceptionThrown", "Page.javascriptDialogOpening"):
                out.append(json.dumps(params))
            elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
                out.append(json.dumps(params["args"]))
            elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
                out.append(json.dumps(params["entry"]))
        return out

    def close(self) -> None:
        """End the browser and all its children, which are one group of processes."""
        os.close(self._write)
        os.close(self._read)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(20)
