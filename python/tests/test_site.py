"""The module ``sitecustomize`` of ``vramscope run``, also in a Python without the package."""

import contextlib
import glob
import os
import shutil
import subprocess
import sys

from harness import BINARY, LIMIT, ProgramTest, package, pythons

#: Prints on standard output only, as every version of Python can.
PROGRAM = "import sys\nsys.stdout.write('%s %s\\n' % (sys.version_info[:2], hasattr(sys, 'customized')))\n"
#: Why vramscope does not start in a program.
BROKEN_PACKAGE = "import sys\nsys.modules['vramscope._native'] = None\n"


class SiteTest(ProgramTest):
    def write(self, name, code):
        path = os.path.join(self.folder, name)
        with open(path, "w") as file:
            file.write(code)
        return path

    @staticmethod
    def old_pythons():
        """Returns pyenv's interpreters of Python 2 and of Python 3 before 3.8."""
        root = os.environ.get("PYENV_ROOT", os.path.expanduser("~/.pyenv"))
        return [path for path in glob.glob(os.path.join(root, "versions/*/bin/python")) if path not in pythons()]

    def run_with_broken_stderr(self, *command, is_closed=False, **environment):
        """Runs a command whose standard error is a pipe without a reader, or closed."""
        if is_closed:
            # The command itself gives its program an open one.
            index = command.index("--no-open") + 1 if "--no-open" in command else 0
            command = [*command[:index], "sh", "-c", 'exec "$@" 2>&-', "sh", *command[index:]]
        reader, writer = os.pipe()
        os.close(reader)
        with contextlib.closing(os.fdopen(writer, "wb", buffering=0)) as errors:
            return subprocess.run(
                command, cwd=self.folder, env=self.variables(**environment), stdout=subprocess.PIPE, stderr=errors,
                text=True, timeout=LIMIT,
            )

    def check_with_broken_stderr(self, python, program, **environment):
        """Compares a program with itself under ``vramscope run``."""
        run = BINARY, "run", "--listen", "127.0.0.1:0", "--no-open"
        for is_closed in False, True:
            with self.subTest(python=python, is_closed=is_closed):
                alone = self.run_with_broken_stderr(python, program, is_closed=is_closed, **environment)
                watched = self.run_with_broken_stderr(*run, python, program, is_closed=is_closed, **environment)
                self.assertEqual((alone.returncode, bool(alone.stdout)), (0, True), alone)
                self.assertEqual((watched.returncode, watched.stdout), (alone.returncode, alone.stdout))

    def test_python_without_the_package_does_not_notice_a_broken_stderr(self):
        program = self.write("program.py", PROGRAM)
        self.write("sitecustomize.py", "import sys\nsys.customized = True\n")
        for python in [*pythons(), *self.old_pythons()]:
            self.check_with_broken_stderr(python, program, packages=[self.folder])

    def test_vramscope_that_cannot_start_does_not_notice_a_broken_stderr(self):
        program = self.write("program.py", f"{BROKEN_PACKAGE}import torch\nprint(torch.cuda.device_count())\n")
        self.check_with_broken_stderr(sys.executable, program)

    def test_old_python_runs_its_own_sitecustomize(self):
        program = self.write("program.py", PROGRAM)
        self.write("sitecustomize.py", "import sys\nsys.customized = True\n")
        for python in self.old_pythons():
            with self.subTest(python=python):
                expected = self.run_command(python, program, packages=[self.folder])
                self.assertEqual(expected[1], "")
                run = BINARY, "run", "--listen", "127.0.0.1:0", "--no-open"
                output, errors = self.run_command(*run, python, program, packages=[self.folder])
                self.assertEqual(output, expected[0])
                self.assertNotIn("sitecustomize", errors)

    def test_error_of_a_signal_handler_while_vramscope_starts_reaches_the_program(self):
        program = self.write_program(
            """
            import signal
            from vramscope import _autostart

            class Preempted(RuntimeError):
                pass

            def handle(*_):
                raise Preempted

            signal.signal(signal.SIGUSR1, handle)
            _autostart.start = lambda: signal.raise_signal(signal.SIGUSR1)
            try:
                import torch
            except Preempted:
                print("reaches the program")
            """
        )
        output, errors = self.run_command(
            BINARY, "run", "--listen", "127.0.0.1:0", "--no-open", sys.executable, program
        )
        self.assertEqual(output, "reaches the program\n", errors)

    def test_package_that_leaves_the_module_path_is_found(self):
        # As in a program that sets the path of its modules itself.
        output, errors = self.start_without_package("")
        self.assertEqual(output, "vramscope run\n", errors)
        self.assertNotIn("cannot start", errors)

    def test_package_that_is_removed_before_pytorch_is_imported(self):
        output, errors = self.start_without_package("import shutil; shutil.rmtree(folder)")
        self.assertEqual(output, "None\n", errors)
        self.assertIn(
            f"vramscope: cannot start: the package is no longer in {self.folder}/package: keep it there until the "
            "program has imported PyTorch\n", errors,
        )

    def start_without_package(self, use):
        """Runs a program that imports PyTorch after the package has left the module path."""
        if package() is None:
            self.skipTest("the installed package is in a folder of Python's own")
        folder = os.path.join(self.folder, "package")
        shutil.copytree(os.path.join(package(), "vramscope"), f"{folder}/vramscope")
        program = self.write_program(
            f"""
            folder = {folder!r}
            sys.path.remove(folder)
            {use}
            import torch

            watch = sys.modules.get("vramscope._watch")
            print(watch and watch._current.starter)
            """
        )
        command = BINARY, "run", "--listen", "127.0.0.1:0", "--no-open", sys.executable, program
        return self.run_command(*command, packages=[folder])
