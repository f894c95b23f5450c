"""Objects of the program, which live no longer because it is watched."""

import os
import subprocess

import harness
from harness import ProgramTest


class LifetimeTest(ProgramTest):
    def run_everywhere(self, code):
        """Runs a program with each supported interpreter of this machine."""
        program = self.write_program(code)
        tested = 0
        for python in harness.pythons():
            version = subprocess.run(
                [python, "-c", "import sys; print(sys.version_info[:2])"], capture_output=True, text=True
            ).stdout.strip()
            if version not in map(str, ((3, minor) for minor in range(10, 15))):
                continue
            tested += 1
            with self.subTest(python=python):
                done = subprocess.run(
                    [python, program], cwd=self.folder, env=self.variables(), capture_output=True, text=True,
                    timeout=harness.LIMIT,
                )
                self.assertEqual(done.returncode, 0, f"{done.stdout}{done.stderr}")
        self.assertGreater(tested, 0, os.environ["PATH"])

    def test_argument_that_an_observed_function_deletes(self):
        self.run_everywhere(
            """
            import torch
            import vramscope

            class Net(torch.nn.Module):
                def forward(self, x, *rest, flag=None, **keywords):
                    with vramscope.scope("inner"):
                        before = torch.cuda.memory_allocated()
                        del x, rest, keywords
                        deleted.append(before - torch.cuda.memory_allocated())

            def new():
                return torch.empty(1 << 20, dtype=torch.uint8, device="cuda")

            deleted = []
            net = Net()

            def call():
                # Not `net(...)`: PyTorch's own functions have references to the arguments.
                net.forward(new(), new(), key=new())

            call()
            with vramscope.record("run.vram") as session:
                wait_until_live(session)
                session.annotate(net)
                for _ in range(3):
                    call()
            call()
            assert len(set(deleted)) == 1, deleted
            # Earlier versions keep all arguments alive themselves.
            assert deleted[0] == 3 << 20 or sys.version_info < (3, 12), deleted
            """
        )

    def test_variable_of_a_function_that_starts_to_watch(self):
        self.run_everywhere(
            """
            import weakref
            import torch
            import vramscope

            class Batch:
                pass

            def main():
                batch = Batch()
                reference = weakref.ref(batch)
                variables = locals()
                del variables["batch"]
                with vramscope.record("run.vram") as session:
                    kept = train()
                    wait_until_live(session)
                    assert "batch" not in variables
                    del batch
                    assert reference() is None

            main()
            """
        )
