"""From ``pip install`` in an empty environment to the live page, by the documents' two commands."""

import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request
import venv
import zipfile

from harness import IS_INSTALLED, LIMIT, ROOT, STANDIN, ProgramTest

#: The wheel that is tested: that of `cargo xtask wheel`, or another one.
WHEEL = os.environ.get("VRAMSCOPE_WHEEL") or next(iter(glob.glob(os.path.join(ROOT, "target/wheels/*.whl"))), None)
#: Runs a program without the packages of the interpreter's environment, but with the stand-in.
START = "import runpy, sys; sys.path[:] = [p for p in sys.path if 'site-packages' not in p]; " \
    "sys.path.insert(0, sys.argv[1]); runpy.run_path('program.py', run_name='__main__')"


@unittest.skipUnless(
    WHEEL and (IS_INSTALLED or "VRAMSCOPE_WHEEL" in os.environ), "the checkout is tested: VRAMSCOPE_WHEEL is unset"
)
class InstallTest(ProgramTest):
    def test_wheel_has_the_module_that_run_starts(self):
        with zipfile.ZipFile(WHEEL) as wheel:
            text = wheel.read("vramscope/_site/sitecustomize.py")
        with open(os.path.join(ROOT, "python/vramscope/_site/sitecustomize.py"), "rb") as file:
            self.assertEqual(text, file.read())

    def test_program_without_python_can_load_the_library(self):
        with zipfile.ZipFile(WHEEL) as wheel:
            library = wheel.extract("vramscope/_native.abi3.so", self.folder)
        # `true` ends with an error if a function or variable is missing.
        variables = {"LD_PRELOAD": library, "LD_BIND_NOW": "1"}
        program = subprocess.run(["true"], env=variables, capture_output=True, timeout=LIMIT)
        self.assertEqual((program.returncode, program.stderr), (0, b""))

    def test_command_in_a_target_folder_finds_its_package(self):
        # Not in the temporary folder: others can write there.
        parent = tempfile.mkdtemp(dir=os.path.join(ROOT, "target"))
        self.addCleanup(shutil.rmtree, parent)
        target = os.path.join(parent, "packages")
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--disable-pip-version-check"]
        subprocess.run([*pip, "--target", target, WHEEL], check=True)
        command = os.path.join(target, "bin/vramscope")
        self.write_program(
            """
            kept = train(1)
            print("ready", flush=True)
            while True:
                train(1)
                time.sleep(0.01)
            """
        )
        job = self.start(sys.executable, "-I", "-c", START, STANDIN, packages=[])
        self.assertEqual(job.stdout.readline(), "ready\n")
        attach = [command, "attach", str(job.pid), "--listen", "127.0.0.1:0", "--for", "1s", "--no-open"]
        done = subprocess.run(attach, cwd=self.folder, capture_output=True, text=True, timeout=LIMIT)
        if "no permission to attach" in done.stderr:
            self.skipTest(done.stderr)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.write_program("print(os.environ['PYTHONPATH'].split(os.pathsep)[0])")
        run = [command, "run", "--listen", "127.0.0.1:0", sys.executable, "program.py"]
        done = subprocess.run(
            run, cwd=self.folder, env=self.variables(packages=[]), capture_output=True, text=True, timeout=LIMIT
        )
        self.assertEqual(done.stdout, f"{target}/vramscope/_site\n", done.stderr)
        found = subprocess.run(
            [sys.executable, "-c", "from vramscope import _command; print(_command.find())"], capture_output=True,
            text=True, env={**os.environ, "PYTHONPATH": target}, timeout=LIMIT,
        )
        self.assertEqual(found.stdout, f"{command}\n", found.stderr)

    def test_two_commands_lead_to_a_live_page(self):
        environment = os.path.join(self.folder, "environment")
        venv.create(environment, with_pip=True)
        programs = os.path.join(environment, "bin")
        self.write_program(
            """
            print(sys.prefix, flush=True)
            while True:
                kept = train(1)
                time.sleep(0.01)
            """,
            "train.py",
        )

        # Builds the stand-in.
        self.variables()
        start = time.monotonic()
        # `pip install vramscope`, from a file in place of PyPI.
        subprocess.run(
            [os.path.join(programs, "pip"), "install", "--quiet", "--no-index", "--disable-pip-version-check", WHEEL],
            check=True,
        )
        installed = time.monotonic()
        # `vramscope run train.py`, with the environment's Python.
        command = [os.path.join(programs, "vramscope"), "run", "--listen", "127.0.0.1:0", "train.py"]
        process = self.start(*command, packages=[])
        url = next(found for found in (re.search(r"listening: (\S+)", line) for line in process.stderr) if found)[1]
        with urllib.request.urlopen(url, timeout=LIMIT) as page:
            self.assertIn(b"<title>", page.read())
        base, _, token = url.partition("?token=")
        request = urllib.request.Request(f"{base}metrics", headers={"Authorization": f"Bearer {token}"})
        metrics = ""
        while not re.search(r"^vramscope_memory_allocated_bytes\{.*\} [1-9]", metrics, re.MULTILINE):
            self.assertLess(time.monotonic() - start, LIMIT, "the page shows no memory")
            self.assertIsNone(process.poll(), "the program has ended")
            with urllib.request.urlopen(request, timeout=LIMIT) as page:
                metrics = page.read().decode()
            time.sleep(0.02)
        end = time.monotonic()
        print(
            f"pip install {installed - start:.1f} s, then memory on the page after {end - installed:.1f} s",
            file=sys.stderr,
        )
        self.assertEqual(process.stdout.readline(), f"{environment}\n")
