"""``vramscope run`` and ``python -m vramscope``: programs that are watched unchanged."""

import os
import re
import signal
import subprocess
import sys
import threading
import urllib.request

from harness import BINARY, ProgramTest, package

TRAIN = """
kept = train(1)
# Ends after the self-test, which the recording has, too.
wait_until_live(sys.modules["vramscope"]._watch._current)
kept += train(2)
write_log()
print("trained", sys.argv[1:])
"""
#: A program that runs until it is ended.
ENDLESS = """
while True:
    train(1)
    print("step", flush=True)
    time.sleep(0.01)
"""


class RunTest(ProgramTest):
    def command(self, *arguments):
        return [BINARY, "run", "--listen", "127.0.0.1:0", *arguments]

    def run_command(self, *command, status=0, **environment):
        """Runs a command, checks its exit status, and returns its standard output and errors."""
        done = subprocess.run(
            command, cwd=self.folder, env=self.variables(**environment), capture_output=True, text=True, timeout=60
        )
        self.assertEqual(done.returncode, status, f"{done.stdout}{done.stderr}")
        return done.stdout, done.stderr

    def read_errors_until(self, process, pattern):
        """Reads lines of standard errors until one matches, and returns the match."""
        for line in process.stderr:
            found = re.search(pattern, line)
            if found:
                return found
        return self.fail(f"no line matches {pattern}")

    def test_script_is_recorded(self):
        self.write_program(TRAIN)
        output, errors = self.run_command(*self.command("--record", "run.vram", "program.py", "--lr", "1", "a b"))
        self.assertEqual(output, "trained ['--lr', '1', 'a b']\n")
        self.assertIn("vramscope: listening: http://127.0.0.1:", errors)
        self.assertRegex(errors, r"vramscope: run\.vram: [\d,]+ events")
        self.assertGreater(self.assert_recording_equals_log(), 50)
        self.assertTrue(self.info()["devices"][0]["history_complete"])
        self.vramscope("verify", "run.vram")

    def test_options_of_the_program_are_passed_through(self):
        self.write_program("print(sys.argv[1:])")
        for arguments in ["--record", "other.vram"], ["--help"], ["--", "-m"]:
            output, _ = self.run_command(*self.command("program.py", *arguments))
            self.assertEqual(output, f"{arguments}\n")
        self.assertFalse(os.path.exists(os.path.join(self.folder, "other.vram")))

    def test_module_and_command_are_run(self):
        self.write_program(TRAIN)
        for program in ["python3", "-m", "program"], ["sh", "-c", "python3 program.py; exit 0"]:
            output, _ = self.run_command(*self.command("--record", "run.vram", *program))
            self.assertEqual(output, "trained []\n")
            self.assertGreater(self.assert_recording_equals_log(), 50)

    def test_standard_input_is_the_programs(self):
        self.write_program("print(sys.stdin.read())")
        done = subprocess.run(
            self.command("program.py"), cwd=self.folder, env=self.variables(), input="some text", capture_output=True,
            text=True, timeout=60,
        )
        self.assertEqual(done.stdout, "some text\n")

    def test_exit_status_is_the_programs(self):
        for code, status in ("sys.exit(7)", 7), ("raise ValueError", 1), ("os.kill(os.getpid(), 9)", 128 + 9):
            with self.subTest(code=code):
                self.write_program(f"kept = train(1)\nwrite_log()\n{code}")
                self.run_command(*self.command("--record", "run.vram", "program.py"), status=status)
                self.assertIsNone(self.info()["damage"])
        self.run_command(*self.command("no-such-program"), status=2)

    def test_stacks_can_be_left_out(self):
        self.write_program(TRAIN)
        self.run_command(*self.command("--record", "run.vram", "--stacks", "none", "program.py"))
        self.assertEqual({row["stack"] for row in self.events() if row["kind"] == "alloc"}, {""})

    def test_page_is_served_while_the_program_runs(self):
        self.write_program(ENDLESS)
        process = self.start(*self.command("program.py"))
        url = self.read_errors_until(process, r"listening: (\S+)")[1]
        self.assertEqual(process.stdout.readline(), "step\n")
        with urllib.request.urlopen(url, timeout=10) as page:
            self.assertIn(b"<title>", page.read())

    def test_interrupt_ends_program_and_command(self):
        self.write_program(ENDLESS)
        process = self.start(*self.command("--record", "run.vram", "program.py"))
        while process.stdout.readline() != "step\n":
            pass
        # A terminal sends it to both.
        os.killpg(process.pid, signal.SIGINT)
        output, errors = process.communicate(timeout=30)
        self.assertIn("KeyboardInterrupt", errors)
        self.assertEqual(process.returncode, 128 + signal.SIGINT, output + errors)
        self.assertIsNone(self.info()["damage"])
        self.assertGreater(self.info()["events"], 20)

    def test_request_to_terminate_reaches_the_program(self):
        self.write_program(f"import signal\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(3))\n{ENDLESS}")
        process = self.start(*self.command("--record", "run.vram", "program.py"))
        while process.stdout.readline() != "step\n":
            pass
        process.terminate()
        output, errors = process.communicate(timeout=30)
        self.assertEqual(process.returncode, 3, output + errors)
        self.assertIsNone(self.info()["damage"])

    def test_program_continues_if_the_command_is_killed(self):
        self.write_program("for step in range(300):\n    train(1)\n    time.sleep(0.01)\n"
                           "    print(step, flush=True)\nopen('done', 'w').close()")
        process = self.start(*self.command("program.py"))
        self.assertEqual(process.stdout.readline(), "0\n")
        process.kill()
        reader = threading.Thread(target=process.stdout.read)
        reader.start()
        reader.join(timeout=30)
        self.assertTrue(os.path.exists(os.path.join(self.folder, "done")))

    def test_server_of_the_environment_is_used(self):
        self.write_program(TRAIN)
        server = self.start(BINARY, "serve", "--listen", "127.0.0.1:0", "--record", "run.vram", "--no-open")
        url = re.search(r"listening: (\S+)", server.stdout.readline())[1]
        push = url.replace("http", "ws", 1)
        command = [BINARY, "run", "--stacks", "none", "program.py"]
        output, errors = self.run_command(*command, VRAMSCOPE_PUSH=push)
        self.assertEqual(output, "trained []\n")
        self.assertIn("vramscope: VRAMSCOPE_PUSH is set: the program pushes to http://127.0.0.1:", errors)
        self.assertIn("no page is served here", errors)
        self.assertNotIn("listening", errors)
        server.terminate()
        server.communicate(timeout=30)
        self.assertGreater(self.info()["events"], 50)

    def test_page_of_the_command_replaces_the_server_of_the_environment(self):
        self.write_program("print(os.environ['VRAMSCOPE_PUSH'][:15])")
        push = "ws://10.0.0.1:7791/?token=secret"
        output, errors = self.run_command(*self.command("program.py"), VRAMSCOPE_PUSH=push)
        self.assertEqual(output, "ws://127.0.0.1:\n")
        self.assertIn("VRAMSCOPE_PUSH is ignored", errors)
        self.assertNotIn("secret", errors)
        _, errors = self.run_command(BINARY, "run", "program.py", status=2, VRAMSCOPE_PUSH="ftp://server")
        self.assertIn("VRAMSCOPE_PUSH: ", errors)

    def test_other_sitecustomize_is_run(self):
        with open(os.path.join(self.folder, "sitecustomize.py"), "w") as file:
            file.write("import builtins\nbuiltins.customized = True\n")
        self.write_program("print(customized)\n" + TRAIN)
        output, _ = self.run_command(
            *self.command("--record", "run.vram", "program.py"), packages=[self.folder, package() or ""]
        )
        self.assertEqual(output, "True\ntrained []\n")
        self.assertGreater(self.info()["events"], 50)

    def test_python_without_pytorch_is_left_alone(self):
        self.write_program("print(sorted(name for name in sys.modules if name.startswith('vramscope')))")
        output, _ = self.run_command(*self.command("program.py"))
        self.assertEqual(output, "[]\n")

    def test_python_m_vramscope(self):
        self.write_program(TRAIN)
        module = [sys.executable, "-m", "vramscope", "--listen", "127.0.0.1:0", "--record", "run.vram"]
        for program in ["program.py"], ["-m", "program"]:
            with self.subTest(program=program):
                output, errors = self.run_command(*module, *program, "--lr", "1")
                self.assertEqual(output, "trained ['--lr', '1']\n")
                self.assertIn("vramscope: listening: http://127.0.0.1:", errors)
                self.assertGreater(self.assert_recording_equals_log(), 50)
        self.write_program("kept = train(1)\nsys.exit(7)")
        self.run_command(*module, "program.py", status=7)
        self.run_command(*module, "no-such-script.py", status=1)
