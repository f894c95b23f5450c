"""A headless Chromium, controlled through chromedriver by the WebDriver protocol."""

import base64
import json
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

from harness import LIMIT

ARGUMENTS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)


def start_driver():
    """Starts chromedriver and returns the process and its port.

    chromedriver lets the system choose a port of one address family, needs the port with this
    number of the other too, and exits if another program has it: it is then started again.
    """
    for _ in range(10):
        driver = subprocess.Popen(
            ["chromedriver", "--port=0"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True,
        )
        for line in driver.stdout:
            if "started successfully on port" in line:
                return driver, int(line.split()[-1].rstrip("."))
        driver.stdout.close()
        driver.wait()
    raise RuntimeError("chromedriver exited ten times without naming a port: run it by hand to see why")


class Browser:
    """A running browser with one window and a fresh profile."""

    def __init__(self, width=1280, height=1050):
        self._profile = tempfile.mkdtemp(prefix="chromium-")
        self._session = None
        self._driver, port = start_driver()
        try:
            self._address = f"http://127.0.0.1:{port}"
            arguments = [*ARGUMENTS, f"--user-data-dir={self._profile}", f"--window-size={width},{height}"]
            capabilities = {"browserName": "chrome", "goog:chromeOptions": {"args": arguments}}
            body = {"capabilities": {"alwaysMatch": capabilities}}
            self._session = self._request("POST", "/session", body)["sessionId"]
        except BaseException:
            self.close()
            raise

    def _request(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._address + path, data, method=method)
        try:
            with urllib.request.urlopen(request, timeout=LIMIT) as response:
                return json.load(response)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(json.load(error)["value"]["message"].splitlines()[0]) from None

    def _command(self, name, body):
        return self._request("POST", f"/session/{self._session}/{name}", body)

    def open(self, url):
        self._command("url", {"url": url})

    def run(self, script, *arguments):
        """Runs the body of a JavaScript function in the page and returns its result; awaits a
        promise."""
        return self._command("execute/sync", {"script": script, "args": arguments})

    def wait(self, what, script, *arguments):
        """Waits until the body of a JavaScript function returns a truthy value, and returns it."""
        end = time.monotonic() + LIMIT
        while True:
            value = self.run(script, *arguments)
            if value:
                return value
            if time.monotonic() > end:
                raise AssertionError(f"waited {LIMIT} s until {what}: {self.run('return document.body.innerText')}")
            time.sleep(0.1)

    def screenshot(self, path):
        with open(path, "wb") as file:
            file.write(base64.b64decode(self._request("GET", f"/session/{self._session}/screenshot")))

    def close(self):
        try:
            if self._session is not None:
                # Ends Chromium.
                self._request("DELETE", f"/session/{self._session}")
        finally:
            self._driver.kill()
            self._driver.wait()
            self._driver.stdout.close()
            shutil.rmtree(self._profile, ignore_errors=True)
