"""``vramscope.show()`` in programs, and in a kernel with a stand-in for IPython.

``test_notebook.py`` has the tests with real notebooks.
"""

import os
import shutil
import textwrap

from harness import BINARY, ROOT, ProgramTest

RECORDING = os.path.join(ROOT, "tests/data/mlp_train.pickle.zst")

#: A stand-in for IPython in a kernel. `shown` has what was displayed, `magics` what was registered.
KERNEL = """
import types

shown, magics = [], {}

class Shell:
    kernel = object()

    def find_line_magic(self, name):
        return magics.get(name)

    def register_magic_function(self, function, kind, name):
        magics[name] = function

shell = Shell()
ipython = types.ModuleType("IPython")
ipython.get_ipython = lambda: shell
ipython.display = types.ModuleType("IPython.display")
ipython.display.display = lambda data, raw: shown.append(data)
sys.modules |= {"IPython": ipython, "IPython.display": ipython.display}
"""

#: Requests a path of a page and returns the status.
STATUS = """
import urllib.error
import urllib.request

def status_of(url, host=None):
    request = urllib.request.Request(url, headers={"Host": host} if host else {})
    try:
        return urllib.request.urlopen(request).status
    except urllib.error.HTTPError as error:
        return error.code
"""


class ShowTest(ProgramTest):
    def setUp(self):
        super().setUp()
        shutil.copy(RECORDING, os.path.join(self.folder, "run.pickle.zst"))

    def run_show(self, code, prelude=STATUS, **environment):
        path = os.pathsep.join([os.path.dirname(BINARY), os.environ["PATH"]])
        return self.run_program(prelude + textwrap.dedent(code), PATH=path, **environment)

    def test_program_prints_the_address_of_a_recording(self):
        output, errors = self.run_show(
            """
            import vramscope

            vramscope.show("run.pickle.zst")
            """,
            # No browser opens.
            DISPLAY="",
            WAYLAND_DISPLAY="",
        )
        self.assertRegex(output, r"^vramscope: run\.pickle\.zst: http://127\.0\.0\.1:\d+/\?token=\S{22}\n$")
        self.assertEqual(errors, "")

    def test_recording_is_served_with_a_token_until_the_program_ends(self):
        output, _ = self.run_show(
            """
            from vramscope import _view

            url = _view.serve("run.pickle.zst").url
            files = url.replace("/?", "/files?")
            print(status_of(files), status_of(files.split("?")[0]), status_of(files, "hub.example.org"))
            print(_view.serve("./run.pickle.zst").url == url)
            os.utime("run.pickle.zst", (1, 1))
            print(_view.serve("run.pickle.zst").url == url)
            print(_view._servers[os.path.realpath("run.pickle.zst")]._process.pid)
            # As a process of a data loader, which must leave the server alone.
            if os.fork() == 0:
                _view._servers[os.path.realpath("run.pickle.zst")].stop()
                os._exit(0)
            os.wait()
            print(_view.serve("run.pickle.zst").is_running())
            """
        )
        *lines, pid, is_running = output.splitlines()
        self.assertEqual(lines, ["200 401 200", "True", "False"])
        self.assertEqual(is_running, "True")
        self.assertFalse(os.path.exists(f"/proc/{pid}"))

    def test_files_that_cannot_be_shown_are_errors(self):
        with open(os.path.join(self.folder, "text.vram"), "w") as file:
            file.write("no recording")
        output, _ = self.run_show(
            """
            import vramscope

            for path in "missing.vram", "text.vram":
                try:
                    vramscope.show(path)
                except RuntimeError as error:
                    print(error)
            """
        )
        missing, text = output.splitlines()
        self.assertRegex(missing, r"^cannot open /.*/missing\.vram: No such file or directory$")
        self.assertRegex(text, r"/text\.vram: ")

    def test_kernel_gets_the_page_and_the_magic(self):
        # Markup in the name of a file is text.
        name = "run <b>.pickle.zst"
        os.rename(os.path.join(self.folder, "run.pickle.zst"), os.path.join(self.folder, name))
        output, _ = self.run_show(
            """
            import vramscope

            vramscope.show("run <b>.pickle.zst", height=700)
            (data,) = shown
            print(data["text/plain"])
            print(list(magics))
            print(data["text/html"])
            """,
            KERNEL,
        )
        verdict, plain, registered, html = output.split("\n", 3)
        self.assertRegex(verdict, r"^No problem found: ")
        self.assertRegex(plain, r"^vramscope: run <b>\.pickle\.zst: http://127\.0\.0\.1:\d+/\?token=")
        self.assertEqual(registered, "['vramscope']")
        self.assertIn("run &lt;b&gt;.pickle.zst", html)
        self.assertNotIn("<b>.pickle", html)
        self.assertIn('"height": 700', html)

    def test_kernel_keeps_a_magic_of_the_user(self):
        output, _ = self.run_show(
            """
            magics["vramscope"] = "mine"
            import vramscope

            print(magics)
            vramscope.load_ipython_extension(shell)
            print(magics["vramscope"] == "mine")
            """,
            KERNEL,
        )
        self.assertEqual(output, "{'vramscope': 'mine'}\nFalse\n")

    def test_page_of_a_kernel_needs_the_token_and_accepts_any_host(self):
        code = """
            import vramscope

            vramscope.show()
            url = vramscope.watch().url
            metrics = url.replace("/?", "/metrics?")
            print(status_of(metrics.split("?")[0]), status_of(metrics), status_of(metrics, "hub.example.org"))
            """
        output, errors = self.run_show(code, KERNEL + STATUS, VRAMSCOPE_LISTEN="127.0.0.1:0")
        self.assertEqual(output, "401 200 200\n")
        # Of a program that is not a kernel.
        output, errors = self.run_show(code, STATUS, VRAMSCOPE_LISTEN="127.0.0.1:0", DISPLAY="", WAYLAND_DISPLAY="")
        self.assertTrue(output.endswith("\n200 200 403\n"), output)

    def test_session_without_a_page_is_an_error(self):
        output, _ = self.run_show(
            """
            import vramscope

            with vramscope.record("run.vram"):
                try:
                    vramscope.show()
                except vramscope.WatchError as error:
                    print(error)
            """
        )
        self.assertIn("the session in progress has no page", output)
