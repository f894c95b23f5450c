"""A headless Chromium, controlled by the DevTools protocol over a pipe.

Needs only the browser's executable: no driver, no Python package.
"""

import base64
import json
import os
import subprocess
import tempfile

ARGUMENTS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--no-zygote",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
)


class Chromium:
    """A running browser with one page."""

    def __init__(self, executable, width=1400, height=960):
        self._profile = tempfile.TemporaryDirectory(prefix="chromium-")
        command_end, self._commands = os.pipe()
        self._answers, answer_end = os.pipe()
        # Chromium reads commands from descriptor 3 and writes answers to descriptor 4.
        script = f'exec 3<&{command_end} 4>&{answer_end}; exec "$0" "$@"'
        self._process = subprocess.Popen(
            ["bash", "-c", script, executable, *ARGUMENTS, "--remote-debugging-pipe",
             f"--window-size={width},{height}", f"--user-data-dir={self._profile.name}", "about:blank"],
            pass_fds=(command_end, answer_end), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(command_end)
        os.close(answer_end)
        self._received = b""
        self._last = 0
        target = self._call("Target.createTarget", {"url": "about:blank", "width": width, "height": height})
        attached = self._call("Target.attachToTarget", {"targetId": target["targetId"], "flatten": True})
        self._session = attached["sessionId"]

    def _call(self, method, parameters, session=None):
        """Sends a command and returns its result."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._commands, data):]
        while True:
            while b"\0" not in self._received:
                part = os.read(self._answers, 1 << 20)
                if not part:
                    raise RuntimeError(f"Chromium ended with status {self._process.wait()}")
                self._received += part
            answer, _, self._received = self._received.partition(b"\0")
            answer = json.loads(answer)
            # Messages without this number are events.
            if answer.get("id") == self._last:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]

    def open(self, url):
        """Starts to load a page."""
        self._call("Page.navigate", {"url": url}, self._session)

    def run(self, expression):
        """Evaluates JavaScript in the page and returns its value; awaits a promise."""
        parameters = {"expression": expression, "awaitPromise": True, "returnByValue": True}
        answer = self._call("Runtime.evaluate", parameters, self._session)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"].get("exception", {}).get("description", "error in the page"))
        return answer["result"].get("value")

    def screenshot(self, path):
        """Writes the page as PNG."""
        data = self._call("Page.captureScreenshot", {"format": "png"}, self._session)["data"]
        path.write_bytes(base64.b64decode(data))

    def close(self):
        """Ends the browser and removes its profile."""
        os.close(self._commands)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._answers)
        self._profile.cleanup()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
