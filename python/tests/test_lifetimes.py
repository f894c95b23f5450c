"""Objects of the program, which live no longer because it is watched."""

from harness import ProgramTest


class LifetimeTest(ProgramTest):
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
