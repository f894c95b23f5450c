"""The page in notebooks of a real JupyterLab server, in Chromium.

These tests are skipped without the packages jupyterlab and jupyter-server-proxy and without a
browser and its driver. With ``VRAMSCOPE_PICTURES`` set to a folder, they write a picture of each
notebook there; ``notebook.png`` is the one in ``docs/images``.
"""

import contextlib
import glob
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
import unittest
import urllib.error
import urllib.request

from harness import BINARY, LIMIT, PRELUDE, ROOT, STANDIN, ProgramTest, library, package
from webdriver import Browser

PACKAGES = ("jupyterlab", "jupyter_server_proxy")
MISSING = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
MISSING += [name for name in ("chromedriver",) if shutil.which(name) is None]
#: JavaScript that shows a moment and returns the page's state then.
SEEK = """
const page = document.querySelector("iframe[title^=vramscope]").contentWindow.vramscope;
return page.seek(arguments[0]).then(() => page.state());
"""
#: A name of this machine that the page's server does not know, as of a notebook server elsewhere.
HOST = "hub.localhost"
TOKEN = "token-of-the-notebook-server"
RECORDING = os.path.join(ROOT, "tests/data/mlp_train.pickle.zst")
PICTURES = os.environ.get("VRAMSCOPE_PICTURES")

#: JavaScript that returns the page's state, through the iframe in the notebook; null until the page
#: shows a recording.
STATE = """
const page = document.querySelector("iframe[title^=vramscope]")?.contentWindow.vramscope;
return page?.ready?.then(() => page.state()).then(state => state.events > 0 ? state : null) ?? null;
"""


class Server:
    """A JupyterLab server below a path, with an own configuration."""

    def __init__(self, folder, base="/user/me/", has_proxy=True):
        self.base = base
        self._folder = os.path.join(folder, "jupyter")
        os.makedirs(os.path.join(self._folder, "config/labconfig"))
        with open(os.path.join(self._folder, "config/labconfig/page_config.json"), "w") as file:
            # It asks whether to fetch news from the network.
            json.dump({"disabledExtensions": {"@jupyterlab/apputils-extension:announcements": True}}, file)
        variables = {name: value for name, value in os.environ.items() if not name.startswith("VRAMSCOPE_")}
        folders = {"CONFIG_DIR": "config", "DATA_DIR": "data", "RUNTIME_DIR": "runtime"}
        variables |= {f"JUPYTER_{name}": os.path.join(self._folder, folder) for name, folder in folders.items()}
        variables |= {
            "IPYTHONDIR": os.path.join(self._folder, "ipython"),
            "PATH": os.pathsep.join([os.path.dirname(BINARY), os.environ["PATH"]]),
            "PYTHONPATH": os.pathsep.join(filter(None, [package(), STANDIN])),
            "PYTHONDONTWRITEBYTECODE": "1",
            "STANDIN_LIBRARY": library(11),
            "STANDIN_TORCH_VERSION": "2.11.0+standin",
        }
        self._log = open(os.path.join(self._folder, "log.txt"), "w+")
        self._process = subprocess.Popen(
            [
                sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--port=0",
                f"--ServerApp.root_dir={folder}", f"--ServerApp.base_url={base}", f"--IdentityProvider.token={TOKEN}",
                f"--ServerApp.local_hostnames={HOST}", "--ServerApp.terminals_enabled=False",
                f"--ServerApp.jpserver_extensions={{'jupyter_server_proxy': {has_proxy}}}",
                "--LabApp.expose_app_in_browser=True",
            ],
            env=variables, stdin=subprocess.DEVNULL, stdout=self._log, stderr=subprocess.STDOUT,
        )
        self.port = self._wait_for_port()

    def _wait_for_port(self):
        end = time.monotonic() + LIMIT
        while time.monotonic() < end and self._process.poll() is None:
            for path in glob.glob(os.path.join(self._folder, "runtime/jpserver-*.json")):
                with contextlib.suppress(ValueError), open(path) as file:
                    return json.load(file)["port"]
            time.sleep(0.05)
        raise AssertionError(f"JupyterLab does not start:\n{self.log()}")

    def log(self):
        self._log.seek(0)
        return self._log.read()

    def url(self, path, host=HOST):
        return f"http://{host}:{self.port}{self.base}{path}"

    def stop(self):
        # Ends the kernels first.
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()


@unittest.skipIf(MISSING, f"not installed: {', '.join(MISSING)}")
class NotebookTest(ProgramTest):
    @classmethod
    def setUpClass(cls):
        cls.browser = Browser()
        cls.addClassCleanup(cls.browser.close)

    def start(self, **options):
        server = Server(self.folder, **options)
        self.addCleanup(server.stop)
        return server

    def open_notebook(self, server, *cells):
        """Opens a notebook with these cells and runs all of them."""
        notebook = {
            "cells": [
                {
                    "cell_type": "code", "id": f"cell-{index}", "metadata": {}, "outputs": [], "execution_count": None,
                    "source": textwrap.dedent(cell).strip(),
                }
                for index, cell in enumerate(cells)
            ],
            "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
            "nbformat": 4, "nbformat_minor": 5,
        }
        with open(os.path.join(self.folder, "test.ipynb"), "w") as file:
            json.dump(notebook, file)
        self.browser.open(server.url(f"lab/tree/test.ipynb?token={TOKEN}"))
        self.browser.wait("the kernel runs", """
            const shell = window.jupyterapp?.shell;
            const panel = [...shell?.widgets("main") ?? []].find(widget => widget.sessionContext);
            // Without the focus, the window of a headless browser makes no widget the current one.
            if (panel && shell.currentWidget !== panel) {
                shell.activateById(panel.id);
            }
            return panel?.sessionContext.isReady && panel.sessionContext.session?.kernel?.status === "idle";
        """)
        self.browser.run("""
            jupyterapp.commands.execute("application:toggle-left-area");
            return jupyterapp.commands.execute("notebook:run-all-cells");
        """)

    def state(self):
        return self.browser.wait("the page shows a recording", STATE)

    def text(self):
        """Returns the text of the notebook's outputs."""
        script = "return [...document.querySelectorAll('.jp-OutputArea-output')].map(e => e.innerText).join('\\n')"
        return self.browser.run(script)

    def picture(self, name):
        if PICTURES:
            self.browser.run("document.querySelector('iframe[title^=vramscope]')?.scrollIntoView({block: 'end'})")
            time.sleep(1)
            self.browser.screenshot(os.path.join(PICTURES, f"{name}.png"))

    def status_of(self, url):
        """Returns the status of the response to a request without cookies. Follows no redirect."""

        class Unfollowed(urllib.request.HTTPRedirectHandler):
            def redirect_request(self, *_):
                return None

        try:
            # Only browsers resolve `*.localhost`.
            return urllib.request.build_opener(Unfollowed).open(url.replace(HOST, "127.0.0.1"), timeout=LIMIT).status
        except urllib.error.HTTPError as error:
            return error.code

    def test_recording_is_shown_through_the_proxy(self):
        server = self.start()
        shutil.copy(RECORDING, os.path.join(self.folder, "run.pickle.zst"))
        self.open_notebook(
            server,
            "import vramscope",
            'vramscope.show("run.pickle.zst")',
            """
            import os

            with open("kernel.txt", "w") as file:
                file.write(str(os.getpid()))
            """,
        )
        opened = self.state()
        expected = self.info("run.pickle.zst")
        device = expected["devices"][opened["device"]]
        self.assertEqual(opened["events"], expected["events"])
        self.assertEqual(opened["allocated_bytes"], device["peak_allocated_bytes"])
        self.picture("notebook")
        at_end = self.browser.run(SEEK, expected["events"])
        self.assertEqual(at_end["allocated_bytes"], device["allocated_bytes"])
        self.assertEqual(at_end["reserved_bytes"], device["reserved_bytes"])

        # Both tokens are needed.
        page = self.browser.run("return document.querySelector('iframe[title^=vramscope]').contentWindow.location.href")
        self.assertRegex(page, rf"^http://{HOST}:{server.port}/user/me/proxy/\d+/")
        self.assertNotIn("token", page)
        data = re.split("[?#]", page)[0] + "files"
        self.assertIn(self.status_of(data), (302, 403))
        self.assertIn(self.status_of(f"{data}?token=wrong"), (302, 403))
        self.assertEqual(self.status_of(f"{data}?token={TOKEN}"), 401)
        self.assertEqual(self.browser.run("return fetch(arguments[0]).then(r => r.status)", data), 200)

        # The browser does not keep the page's files, which it does after 2 s outside of notebooks.
        frame = "document.querySelector('iframe[title^=vramscope]').contentWindow"
        self.browser.run(f"return new Promise(resolve => {frame}.setTimeout(resolve, 2500))")
        script = "return navigator.serviceWorker.getRegistrations().then(found => found.length)"
        self.assertEqual(self.browser.run(script), 0)

        # The page outlives an interrupt of the kernel, but not the kernel.
        with open(os.path.join(self.folder, "kernel.txt")) as file:
            kernel = int(file.read())
        os.killpg(os.getpgid(kernel), signal.SIGINT)
        time.sleep(0.5)
        self.assertEqual(len(self.viewers()), 1)
        os.kill(kernel, signal.SIGKILL)
        end = time.monotonic() + LIMIT
        while self.viewers() and time.monotonic() < end:
            time.sleep(0.05)
        self.assertEqual(self.viewers(), [])

    def viewers(self):
        """Returns the ids of processes that serve a file of this test."""
        found = []
        for path in glob.glob("/proc/[0-9]*/cmdline"):
            with contextlib.suppress(OSError), open(path) as file:
                if "--until-stdin-closes" in (command := file.read()) and self.folder in command:
                    found.append(int(path.split("/")[2]))
        return found

    def test_live_page_follows_the_kernel(self):
        server = self.start(base="/")
        # The page of another program, which accepts no other host names.
        other = subprocess.Popen(
            [BINARY, "view", "--no-open", "--listen", "127.0.0.1:0", "--until-stdin-closes", RECORDING],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        self.addCleanup(other.communicate)
        other_url = other.stdout.readline().split()[1]
        self.open_notebook(
            server,
            """
            import vramscope

            # Live.
            %vramscope --height 700
            """,
            f"%vramscope {other_url}",
            PRELUDE,
            """
            import threading

            import torch

            kept = train()

            def allocate():
                blocks = []
                while True:
                    blocks.append(torch.empty(1 << 20, dtype=torch.uint8, device="cuda"))
                    if len(blocks) == 100:
                        blocks.clear()
                    time.sleep(0.01)

            threading.Thread(target=allocate, daemon=True).start()
            """,
        )
        first = self.state()
        self.assertEqual(first["connection"], "live")
        frame = "document.querySelector('iframe[title^=vramscope]')"
        self.assertEqual(self.browser.run(f"return {frame}.offsetHeight"), 700)
        allocated = set()
        end = time.monotonic() + LIMIT
        while len(allocated) <= 5 and time.monotonic() < end:
            state = self.state()
            allocated.add(state["allocated_bytes"])
        self.assertGreater(len(allocated), 5)
        self.assertGreater(state["events"], first["events"])
        self.assertEqual((state["missed_events"], state["lost_events"]), (0, 0))
        self.assertIn(f"start it with VRAMSCOPE_ALLOW_HOST={HOST}", self.text())
        self.picture("live")

    def test_without_the_proxy_the_user_is_told_to_install_it(self):
        server = self.start(has_proxy=False)
        shutil.copy(RECORDING, os.path.join(self.folder, "run.pickle.zst"))
        self.open_notebook(server, "%load_ext vramscope", "%vramscope run.pickle.zst", "%vramscope missing.vram")
        self.browser.wait("the output has a link", "return document.querySelector('[data-vramscope] a')")
        self.browser.wait(
            "the last cell has run", "return document.body.innerText.includes('UsageError: %vramscope: cannot open')"
        )
        self.assertIn("pip install jupyter-server-proxy", self.text())
        self.picture("without_proxy")
        # The link works on the kernel's machine.
        address = self.browser.run("return document.querySelector('[data-vramscope] a').href")
        self.assertTrue(re.match(r"http://127\.0\.0\.1:\d+/\?token=", address), address)
        self.assertEqual(self.status_of(address), 303)
        self.assertEqual(self.status_of(address.split("?")[0]), 401)
