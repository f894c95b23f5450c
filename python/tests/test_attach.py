"""``vramscope attach``: jobs that were started without vramscope."""

import hashlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
import unittest
import urllib.request

from harness import BINARY, LIMIT, ProgramTest, package

#: What the command prints where the system does not let it trace the job.
NOT_PERMITTED = "no permission to attach to process"
#: How long a command waits for the job's answer.
TIMEOUT = "--timeout", f"{LIMIT}s"
#: Attach and detach cycles, and how often the command is killed at a random moment.
CYCLES = 20
KILLS = 10
#: Events of some steps of the job.
EVENTS = 500

#: A job that trains for ten steps and until the file `stop` exists. Each step's loss depends on all
#: steps before. When the file `pause` exists, the job writes the allocator's log and renames the
#: file to `paused`; it goes on when that is removed.
JOB = """
import hashlib

loss = b""
step = 0
kept = train(1)
print("ready", flush=True)
while step < 10 or not os.path.exists("stop"):
    kept = train(1)
    step += 1
    loss = hashlib.sha256(loss + str(step).encode()).digest()
    if os.path.exists("pause"):
        write_log()
        os.rename("pause", "paused")
        while os.path.exists("paused"):
            time.sleep(0.002)
    time.sleep(0.002)
print(step, loss.hex(), flush=True)
"""


def expected_loss(steps):
    """Returns the job's loss after a number of undisturbed steps."""
    loss = b""
    for step in range(1, steps + 1):
        loss = hashlib.sha256(loss + str(step).encode()).digest()
    return loss.hex()


def skip_if_not_permitted(errors):
    """Skips the test if the command printed that the system does not let it trace the job."""
    if NOT_PERMITTED in errors:
        raise unittest.SkipTest(f"vramscope attach is not permitted here: {errors.strip()}")


class AttachTest(ProgramTest):
    def setUp(self):
        super().setUp()
        self.start_job()
        done = subprocess.run(self.command("detach"), capture_output=True, text=True, timeout=LIMIT)
        skip_if_not_permitted(done.stderr)
        self.assertIn("vramscope attach does not record it", done.stderr)

    def start_job(self, **environment):
        path = self.write_program(JOB)
        # The job has the stand-in for PyTorch, but not the package.
        self.job = self.start(sys.executable, path, packages=[], **environment)
        self.assertEqual(self.job.stdout.readline(), "ready\n")

    def command(self, name, *arguments):
        folder = ["--package", package()] if package() else []
        return [BINARY, name, str(self.job.pid), *folder, *TIMEOUT, *arguments]

    def attach_command(self, *arguments):
        return self.command("attach", "--listen", "127.0.0.1:0", "--no-open", *arguments)

    def attach(self, *arguments):
        """Attaches and returns the command and the address of its page."""
        command = self.start(*self.attach_command(*arguments))
        line = command.stdout.readline()
        if not line.startswith("listening: "):
            self.fail(f"{line}{command.stderr.read()}")
        self.read_until(command, "attached to process")
        return command, line.removeprefix("listening: ").strip()

    def read_until(self, command, text):
        """Reads what a command prints on standard errors until a line contains a text."""
        for line in command.stderr:
            if text in line:
                return
        self.fail(f"the command does not print {text!r}")

    def detach(self, command):
        command.send_signal(signal.SIGINT)
        output, errors = command.communicate(timeout=LIMIT)
        self.assertEqual(command.returncode, 0, output + errors)

    def wait_for(self, condition, what):
        end = time.monotonic() + LIMIT
        while not condition():
            self.assertIsNone(self.job.poll(), "the job has ended")
            self.assertLess(time.monotonic(), end, what)
            time.sleep(0.005)

    def file(self, name):
        return os.path.join(self.folder, name)

    def pause(self):
        """Makes the job write the allocator's log and wait."""
        open(self.file("pause"), "w").close()
        self.wait_for(lambda: os.path.exists(self.file("paused")), "the job does not pause")

    def resume(self):
        os.remove(self.file("paused"))

    def finish_job(self):
        """Ends the job, and checks its losses."""
        open(self.file("stop"), "w").close()
        output, errors = self.job.communicate(timeout=LIMIT)
        # The stand-in has no autograd; a session may notice that its command has ended, or connect
        # at the second try.
        retry = "push to .*(; trying again|: connected$)"
        expected = re.compile(f"vramscope: (the backward pass has no call stacks|{retry})")
        errors = [line for line in errors.splitlines() if not expected.match(line)]
        self.assertEqual((self.job.returncode, errors), (0, []))
        steps, loss = output.split()
        self.assertEqual(loss, expected_loss(int(steps)), "the losses differ from an undisturbed job's")

    def metric(self, url, name):
        """Returns a metric on the page of a command; 0 if it is missing."""
        base, _, token = url.partition("?token=")
        request = urllib.request.Request(f"{base}metrics", headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(request, timeout=LIMIT) as page:
            found = re.search(rf"^vramscope_{name}(?:\{{.*\}})? (\d+)$", page.read().decode(), re.MULTILINE)
        return int(found[1]) if found else 0

    def wait_for_events(self, url):
        """Waits until some steps of the job are on the page of a command."""
        start = self.metric(url, "events_total")
        self.wait_for(lambda: self.metric(url, "events_total") > start + EVENTS, "the page shows no events")

    def snapshots(self):
        """Returns the number of snapshots in the log that the job wrote last."""
        with open(self.file("log.json")) as file:
            return sum(entry[0] == 7 for entry in json.load(file)["logs"][0])

    def test_recording_equals_the_allocators_log(self):
        snapshots = 0
        for number in range(3):
            name = f"run{number}.vram"
            command, url = self.attach("--record", name)
            self.wait_for_events(url)
            self.pause()
            self.detach(command)
            self.assertGreater(self.assert_recording_equals_log(name, starts_after_snapshot=snapshots + 1), 100)
            self.vramscope("verify", name)
            # The command may have taken one while it detached.
            self.resume()
            self.pause()
            snapshots = self.snapshots()
            self.resume()
        self.finish_job()

    def test_memory_is_on_the_page(self):
        seconds = []
        for _ in range(3):
            start = time.monotonic()
            command, url = self.attach()
            self.wait_for(lambda: self.metric(url, "memory_allocated_bytes") > 0, "the page shows no memory")
            seconds.append(time.monotonic() - start)
            self.detach(command)
        print(f"memory on the page after {' s, '.join(f'{time:.2f}' for time in seconds)} s", file=sys.stderr)
        self.finish_job()

    def test_attach_and_detach_again_and_again(self):
        for cycle in range(CYCLES):
            command, _ = self.attach("--record", "run.vram")
            self.detach(command)
            self.assertIsNone(self.info()["damage"], cycle)
        self.finish_job()

    def test_command_that_is_killed_leaves_the_job_unharmed(self):
        moments = random.Random(12)
        start = time.monotonic()
        command, _ = self.attach()
        longest = 1.5 * (time.monotonic() - start)
        self.detach(command)
        for _ in range(KILLS):
            command = self.start(*self.attach_command())
            time.sleep(moments.uniform(0, longest))
            command.kill()
            command.communicate()
            self.assertIsNone(self.job.poll(), "the job has ended")
        command, url = self.attach("--record", "run.vram")
        self.wait_for_events(url)
        self.detach(command)
        self.assertGreater(self.info()["events"], EVENTS)
        self.finish_job()

    def test_detach_ends_the_session(self):
        command, _ = self.attach()
        done = subprocess.run(self.command("detach"), capture_output=True, text=True, timeout=LIMIT)
        self.assertEqual(done.returncode, 0, done.stderr)
        again = subprocess.run(self.command("detach"), capture_output=True, text=True, timeout=LIMIT)
        self.assertEqual(again.returncode, 2)
        self.assertIn("vramscope attach does not record it", again.stderr)
        self.detach(command)
        self.finish_job()

    def test_job_that_redacts_sends_no_names(self):
        self.start_job(VRAMSCOPE_REDACT="1")
        command, url = self.attach("--record", "run.vram")
        self.wait_for_events(url)
        self.detach(command)
        self.finish_job()
        stacks = {row["stack"] for row in self.events() if row["kind"] == "alloc"}
        self.assertIn("function_", "".join(stacks))
        self.assertNotRegex("".join(stacks), r"program\.py|_allocate|forward")

    def test_job_is_recorded_by_one_command(self):
        command, _ = self.attach()
        done = subprocess.run(self.attach_command(), capture_output=True, text=True, timeout=LIMIT)
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("another vramscope attach records it", done.stderr)
        self.detach(command)
        self.finish_job()

    def test_job_that_ends_while_it_is_recorded(self):
        command, url = self.attach("--record", "run.vram")
        self.wait_for_events(url)
        self.finish_job()
        self.read_until(command, f"process {self.job.pid} has ended")
        self.detach(command)
        self.assertIsNone(self.info()["damage"])


class RefusalTest(ProgramTest):
    """Programs that cannot be recorded: the command says why, and they continue."""

    def check(self, code, expected, **environment):
        path = self.write_program(code + "\nprint('ready', flush=True)\nwhile True: time.sleep(0.02)")
        job = self.start(sys.executable, path, **{"packages": []} | environment)
        self.assertEqual(job.stdout.readline(), "ready\n")
        folder = ["--package", package()] if package() else []
        done = subprocess.run(
            [BINARY, "attach", str(job.pid), *folder, "--listen", "127.0.0.1:0", "--for", "1s", *TIMEOUT],
            cwd=self.folder, capture_output=True, text=True, timeout=LIMIT,
        )
        skip_if_not_permitted(done.stderr)
        self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
        self.assertIn(expected, done.stderr)
        self.assertIsNone(job.poll())

    def test_program_without_pytorch(self):
        self.check("", "it has not imported PyTorch")

    def test_program_that_records_itself(self):
        code = "import vramscope\nsession = vramscope.watch('127.0.0.1:0')\nkept = train(1)"
        self.check(code, "it records itself already, by vramscope.watch() or vramscope run", packages=None)
