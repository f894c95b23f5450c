"""``vramscope.diagnose()``, ``autopsy()`` and ``advise()``: the commands' answers as objects."""

import json
import os
import subprocess

from harness import BINARY, LIMIT, ROOT, ProgramTest

FAILED = os.path.join(ROOT, "tests/labelled/development/oom_fragmentation_1.pickle.gz")
TRAINING = os.path.join(ROOT, "tests/data/mlp_train.pickle.zst")


class AnalysesTest(ProgramTest):
    def answer(self, call):
        """Returns what a call returns in a program, as JSON."""
        output, _ = self.run_program(f"import json, vramscope\nprint(json.dumps(vramscope.{call}))\n")
        return json.loads(output)

    def command(self, *arguments):
        done = subprocess.run([BINARY, *arguments, "--json"], capture_output=True, text=True, timeout=LIMIT)
        self.assertIn(done.returncode, (0, 1), done.stderr)
        return json.loads(done.stdout)

    def test_answers_are_those_of_the_commands(self):
        autopsy = self.answer(f"autopsy({FAILED!r})")
        self.assertEqual(autopsy, self.command("autopsy", FAILED))
        self.assertEqual(autopsy["ooms"][0]["cause"], "fragmentation")
        self.assertEqual(self.answer(f"autopsy({TRAINING!r})")["ooms"], [])
        diagnosis = self.answer(f"diagnose({FAILED!r})")
        self.assertEqual(diagnosis, self.command("diagnose", FAILED))
        self.assertGreater(len(diagnosis["findings"]), 0)
        advice = self.answer(f"advise({TRAINING!r}, capacity='2GiB')")
        self.assertEqual(advice, self.command("advise", TRAINING, "--capacity", "2GiB"))
        self.assertEqual(advice["devices"][0]["capacity_bytes"], 2 << 30)
        limited = self.answer(f"advise({TRAINING!r}, limit_bytes={1 << 30})")
        self.assertEqual(limited["devices"][0]["capacity_bytes"], 1 << 30)

    def test_types_have_the_fields_of_the_answers(self):
        code = """
        import typing, vramscope
        from vramscope import _analyses

        def check(value, kind, path):
            hints = typing.get_type_hints(kind)
            assert set(value) == set(hints), (path, set(value) ^ set(hints))
            for name, hint in hints.items():
                for part in [hint, *typing.get_args(hint)]:
                    if typing.is_typeddict(part) and value[name]:
                        entries = value[name] if isinstance(value[name], list) else [value[name]]
                        for entry in entries:
                            check(entry, part, f"{path}.{name}")

        """
        code += f"""
        check(vramscope.diagnose({FAILED!r}), _analyses.Diagnosis, "diagnose")
        check(vramscope.autopsy({FAILED!r}), _analyses.Autopsy, "autopsy")
        check(vramscope.advise({TRAINING!r}), _analyses.Advice, "advise")
        """
        self.run_program(code)

    def test_unusable_input_is_an_error_that_says_what_to_do(self):
        output, _ = self.run_program("""
        import pathlib, vramscope

        pathlib.Path("-x.vram").write_text("hello")
        calls = [("missing.vram", {}), (pathlib.Path("-x.vram"), {}), ("-x.vram", {"limit_bytes": "much"})]
        for path, options in calls:
            try:
                vramscope.autopsy(path, **options)
            except vramscope.AnalysisError as error:
                print(error)
        """)
        missing, unknown, size = output.splitlines()
        self.assertEqual(missing, "missing.vram: No such file or directory: check the path")
        self.assertIn("-x.vram: at byte 0: not a vramscope recording", unknown)
        self.assertIn("--limit-bytes", size)
