"""``vramscope run`` and ``python -m vramscope``: programs that are watched unchanged."""

import functools
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import urllib.request

from harness import BINARY, LIMIT, ROOT, ProgramTest, package, pythons

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
            text=True, timeout=LIMIT,
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
        with urllib.request.urlopen(url, timeout=LIMIT) as page:
            self.assertIn(b"<title>", page.read())

    def test_interrupt_ends_program_and_command(self):
        self.write_program(ENDLESS)
        process = self.start(*self.command("--record", "run.vram", "program.py"))
        while process.stdout.readline() != "step\n":
            pass
        # A terminal sends it to both.
        os.killpg(process.pid, signal.SIGINT)
        output, errors = process.communicate(timeout=LIMIT)
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
        output, errors = process.communicate(timeout=LIMIT)
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
        reader.join(timeout=LIMIT)
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
        server.communicate(timeout=LIMIT)
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

    def test_file_that_cannot_be_written_leaves_the_program_alone(self):
        self.write_program(TRAIN.replace("write_log()\n", "") + "raise SystemExit(3)\n")
        # The recording exceeds the limit; Python ignores the signal, and so do its children.
        limit = functools.partial(resource.setrlimit, resource.RLIMIT_FSIZE, (300, 300))
        command = self.command("--record", "run.vram", "program.py")
        done = subprocess.run(
            command, cwd=self.folder, env=self.variables(), capture_output=True, text=True, timeout=LIMIT,
            preexec_fn=limit,
        )
        self.assertEqual((done.returncode, done.stdout), (3, "trained []\n"), done.stderr)
        self.assertIn("run.vram: the recording is incomplete: File too large", done.stderr)

    def mounted(self, folder, options):
        """Creates a folder. Returns what begins a command that sees a disk with ``options`` there;
        skips the test if this user cannot mount disks."""
        os.mkdir(os.path.join(self.folder, folder))
        mount = f'mount -t tmpfs -o {options} none {folder} && "$@"'
        command = "unshare", "--mount", "sh", "-c", mount, "sh"
        if subprocess.run([*command, "true"], cwd=self.folder, capture_output=True).returncode != 0:
            self.skipTest("this user cannot mount a disk")
        return command

    def test_full_disk_leaves_the_program_alone(self):
        self.write_program(TRAIN)
        # A disk without room for another file.
        mounted = self.mounted("full", "nr_inodes=1")
        command = self.command("--record", "full/run.vram", "--keep", "1m", "program.py")
        output, errors = self.run_command(*mounted, *command)
        self.assertEqual(output, "trained []\n")
        message = "vramscope: full/run.vram: No space left on device; the program runs without a file"
        self.assertIn(message, errors)

    def test_read_only_folder_leaves_the_program_alone(self):
        self.write_program(TRAIN)
        mounted = self.mounted("read-only", "ro")
        command = self.command("--record", "read-only/run.vram", "program.py")
        output, errors = self.run_command(*mounted, *command)
        self.assertEqual(output, "trained []\n")
        message = "vramscope: read-only/run.vram: Read-only file system; the program runs without a file"
        self.assertIn(message, errors)
        self.run_command(*self.command("--record", "no/run.vram", "program.py"), status=2)
        # The same through the package.
        self.write_program(
            """
            import vramscope

            session = vramscope.watch(listen="127.0.0.1:0", record="read-only/run.vram")
            kept = train()
            wait_until_live(session)
            assert session.stop() is False
            vramscope.on_oom("read-only/oom.vram")
            with vramscope.record("read-only/block.vram") as block:
                kept += train()
            assert block.stop() is False
            print("trained")
            """
        )
        output, errors = self.run_command(*mounted, sys.executable, "program.py")
        self.assertEqual(output, "trained\n", errors)
        self.assertEqual(errors.count("Read-only file system (os error 30)"), 2, errors)

    def test_other_sitecustomize_is_run(self):
        with open(os.path.join(self.folder, "sitecustomize.py"), "w") as file:
            file.write("import builtins\nbuiltins.customized = True\n")
        self.write_program("print(customized)\n" + TRAIN)
        output, _ = self.run_command(
            *self.command("--record", "run.vram", "program.py"), packages=[self.folder, package() or ""]
        )
        self.assertEqual(output, "True\ntrained []\n")
        self.assertGreater(self.info()["events"], 50)

    def test_error_of_other_sitecustomize_is_printed_as_without_vramscope(self):
        self.write_program("print('runs', 'sitecustomize' in sys.modules)")
        codes = "1 / 0", "import missing_module", "syntax error", "missing()", "raise SystemExit(3)"
        for code in codes:
            with self.subTest(code=code):
                with open(os.path.join(self.folder, "sitecustomize.py"), "w") as file:
                    file.write(code)
                programs = [sys.executable, "program.py"], self.command("program.py")
                done = [
                    subprocess.run(
                        program, cwd=self.folder, env=self.variables(packages=[self.folder]), capture_output=True,
                        text=True, timeout=LIMIT,
                    )
                    for program in programs
                ]
                errors = [line for line in done[1].stderr.splitlines() if not line.startswith("vramscope: ")]
                # Without the frames of this module.
                expected, found = (text.splitlines()[-2:] for text in (done[0].stderr, "\n".join(errors)))
                self.assertEqual((done[1].returncode, done[1].stdout), (done[0].returncode, done[0].stdout))
                self.assertEqual(found, expected)

    def test_options_of_python_work_as_without_vramscope(self):
        for name in "sitecustomize", "usercustomize":
            with open(os.path.join(self.folder, f"{name}.py"), "w") as file:
                file.write(f"import builtins\nbuiltins.{name}_has_run = True\n")
        self.write_program(
            "import builtins\nprint(sorted(name for name in vars(builtins) if name.endswith('_has_run')))"
        )
        for options in [], ["-I"], ["-S"], ["-E"], ["-s"], ["-B", "-O"]:
            with self.subTest(options=options):
                program = [sys.executable, *options, "program.py"]
                variables = {"packages": [self.folder]}
                expected, _ = self.run_command(*program, **variables)
                found, errors = self.run_command(*self.command(*program), **variables)
                self.assertEqual(found, expected)
                self.assertNotIn("Traceback", errors)

    def test_pythons_without_the_package_run_their_own_sitecustomize(self):
        environment = os.path.join(self.folder, "environment")
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
        with open(os.path.join(self.folder, "sitecustomize.py"), "w") as file:
            file.write("import builtins\nbuiltins.customized = True\n")
        self.write_program("print(sys.prefix, customized)")
        for python in [os.path.join(environment, "bin/python"), *pythons()]:
            with self.subTest(python=python):
                prefix, _ = self.run_command(python, "-c", "import sys; print(sys.prefix)", packages=[])
                output, errors = self.run_command(*self.command(python, "program.py"), packages=[self.folder])
                self.assertEqual(output, f"{prefix.strip()} True\n")
                self.assertNotIn("Error", errors)

    def test_module_path_stays_and_no_other_user_can_write_to_it(self):
        self.write_program(
            "print(os.environ['PYTHONPATH'].split(os.pathsep)[0], os.environ.get('VRAMSCOPE_PACKAGE', ''))"
        )
        root = tempfile.mkdtemp(dir=os.path.join(ROOT, "target"))
        self.addCleanup(shutil.rmtree, root)
        data = os.path.join(root, "data")
        # As `cargo install` and `pip install --target` do.
        target = os.path.join(root, "target")
        os.makedirs(os.path.join(target, "bin"))
        command = os.path.join(target, "bin/vramscope")
        shutil.copy(BINARY, command)
        cases = [([f"{target}/vramscope/_site", target], command)]
        if package() is not None:
            cases.append(([os.path.join(data, "vramscope/site"), ""], BINARY))
        source = package() or os.path.dirname(os.path.dirname(__import__("vramscope").__file__))
        shutil.copytree(os.path.join(source, "vramscope"), os.path.join(target, "vramscope"))
        for expected, binary in cases:
            output, _ = self.run_command(
                binary, "run", "--listen", "127.0.0.1:0", "program.py", XDG_DATA_HOME=data, packages=[]
            )
            self.assertEqual(output.rstrip("\n").split(" "), expected)
            path = os.path.join(expected[0], "sitecustomize.py")
            # It stays for processes that outlive the command.
            while path != "/":
                status = os.stat(path)
                self.assertIn(status.st_uid, (0, os.getuid()), path)
                self.assertFalse(status.st_mode & (0o002 if status.st_gid == 0 else 0o022), path)
                path = os.path.dirname(path)
        # No Python runs code from a folder that others can write, also after the command has ended.
        os.chmod(target, 0o777)
        output, errors = self.run_command(
            command, "run", "--listen", "127.0.0.1:0", "program.py", XDG_DATA_HOME=data, packages=[]
        )
        self.assertEqual(output.rstrip("\n").split(" "), [os.path.join(data, "vramscope/site"), ""])
        self.assertNotIn("recorded", errors)

    def test_folder_that_others_can_write_is_refused(self):
        if package() is None:
            self.skipTest("the installed package has a folder of its own")
        self.write_program("print('runs')")
        data = os.path.join(self.folder, "data")
        os.mkdir(data)
        os.chmod(data, 0o777)
        _, errors = self.run_command(*self.command("program.py"), XDG_DATA_HOME=data, status=2)
        self.assertRegex(errors, r"can be written by other users.*pip install vramscope")
        self.assertEqual(os.listdir(data), [])

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
