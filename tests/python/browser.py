# SPDX-License-Identifier: Apache-2.0
"""Debian's chromium without a window, by its DevTools protocol over two pipes."""

import base64
import json
import os
import subprocess

# A guard against a hang, no part of what is tested.
TIME_LIMIT = 60
# Bazel's sandbox has no room for Chromium's own.
FLAGS = [
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"),
    *(
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
        "--remote-debugging-pipe",
    ),
    *("--disable-background-networking", "--disable-component-update"),
]


class Browser:
    """One page. `errors`: what its console complained of."""

    def __init__(self, folder):
        """folder: an empty one for its files."""
        self.errors = []
        self._number = 0
        to_read, self._to = os.pipe()
        self._from, to_write = os.pipe()
        # It reads commands from descriptor 3 and writes answers to 4.
        command = f'exec chromium "$@" 3<&{to_read} 4>&{to_write}'
        self._log = open(os.path.join(folder, "log"), "w+b")
        self._process = subprocess.Popen(
            ["bash", "-c", command, "bash", *FLAGS]
            + [f"--user-data-dir={folder}/profile", "about:blank"],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            pass_fds=(to_read, to_write),
            env={**os.environ, "HOME": folder, "TMPDIR": folder},
        )
        os.close(to_read)
        os.close(to_write)
        self._rest = b""
        self._session = None
        target = self.call("Target.createTarget", url="about:blank")
        self._session = self.call(
            "Target.attachToTarget", targetId=target["targetId"], flatten=True
        )["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def close(self):
        os.close(self._to)
        os.close(self._from)
        try:
            self._process.wait(TIME_LIMIT)
        finally:
            self._process.kill()
            self._log.close()

    def _message(self):
        while b"\0" not in self._rest:
            more = os.read(self._from, 65536)
            if not more:
                self._log.seek(0)
                said = self._log.read().decode(errors="replace")
                raise AssertionError("chromium does not run: " + said)
            self._rest += more
        text, self._rest = self._rest.split(b"\0", 1)
        message = json.loads(text)
        method, what = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown" or (
            method == "Log.entryAdded" and what["entry"]["level"] == "error"
        ):
            self.errors.append(what)
        if method == "Runtime.consoleAPICalled" and what["type"] == "error":
            self.errors.append(what)
        return message

    def call(self, method, **params):
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._message()
            if answer.get("id") == self._number:
                break
        if "error" in answer:
            raise AssertionError(f"{method}: {answer['error']}")
        return answer["result"]

    def open(self, path, width, dark=False):
        """Loads a file, as a device of `width` CSS pixels shows it."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=800,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = "dark" if dark else "light"
        self.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )
        url = f"file://{os.path.abspath(path)}"
        failure = self.call("Page.navigate", url=url).get("errorText")
        if failure:
            raise AssertionError(f"{url}: {failure}")
        while self._message().get("method") != "Page.loadEventFired":
            pass

    def run(self, script):
        """The value of a JavaScript expression in the page."""
        answer = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True
        )
        if "exceptionDetails" in answer:
            raise AssertionError(f"{script}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def screenshot(self, path):
        """The whole page as a PNG."""
        answer = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        with open(path, "wb") as file:
            file.write(base64.b64decode(answer["data"]))
