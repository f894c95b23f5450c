"""From ``pip install`` in an empty environment to the live page, by the documents' two commands."""

import glob
import os
import re
import subprocess
import sys
import time
import unittest
import urllib.request
import venv

from harness import IS_INSTALLED, ROOT, ProgramTest

#: The wheel that is tested: that of `cargo xtask wheel`, or another one.
WHEEL = os.environ.get("VRAMSCOPE_WHEEL") or next(iter(glob.glob(os.path.join(ROOT, "target/wheels/*.whl"))), None)
#: The longest time to the page, in seconds.
LIMIT = 30


class InstallTest(ProgramTest):
    @unittest.skipUnless(
        WHEEL and (IS_INSTALLED or "VRAMSCOPE_WHEEL" in os.environ), "the checkout is tested: VRAMSCOPE_WHEEL is unset"
    )
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
        with urllib.request.urlopen(url, timeout=10) as page:
            self.assertIn(b"<title>", page.read())
        base, _, token = url.partition("?token=")
        request = urllib.request.Request(f"{base}metrics", headers={"Authorization": f"Bearer {token}"})
        metrics = ""
        while not re.search(r"^vramscope_memory_allocated_bytes\{.*\} [1-9]", metrics, re.MULTILINE):
            self.assertLess(time.monotonic() - start, LIMIT, "the page shows no memory")
            self.assertIsNone(process.poll(), "the program has ended")
            with urllib.request.urlopen(request, timeout=10) as page:
                metrics = page.read().decode()
            time.sleep(0.02)
        end = time.monotonic()
        print(
            f"pip install {installed - start:.1f} s, then memory on the page after {end - installed:.1f} s",
            file=sys.stderr,
        )
        self.assertEqual(process.stdout.readline(), f"{environment}\n")
