"""Spans of the forward and backward passes of annotated models."""

from harness import ProgramTest

CODE = """
import torch
import vramscope

net = torch.nn.Sequential(torch.nn.Linear(64, 256, device="cuda"), torch.nn.ReLU())
optimizer = torch.optim.Adam(net.parameters())

def step():
    net(torch.empty(32, 64, device="cuda")).backward()
    optimizer.step()
    optimizer.zero_grad()

"""


class PhasesTest(ProgramTest):
    def spans(self):
        """Returns the begins and ends of forward and backward passes, in order."""
        rows = [row for row in self.events() if row["name"] in ("forward", "backward")]
        return [f"{row['stage']} {row['name']}" for row in rows]

    def test_passes_of_an_annotated_model_are_spans(self):
        self.run_program(
            CODE
            + """
with vramscope.record("run.vram") as session:
    wait_until_live(session)
    step()
    for _ in range(2):
        session.annotate(net)
    step()
    step()
step()
"""
        )
        passes = ["begin forward", "end forward", "begin backward", "end backward"]
        self.assertEqual(self.spans(), 2 * passes)
        rows = self.events()
        names = [row["name"] for row in rows if row["stage"] == "begin"]
        self.assertIn("Optimizer.step#Adam.step", names)
        # The gradients are requested in the backward pass, the results in the forward pass.
        at = [index for index, row in enumerate(rows) if row["name"] in ("forward", "backward")]
        inside = [{row["kind"] for row in rows[at[n] : at[n + 1]]} for n in range(0, len(at), 2)]
        self.assertTrue(all("alloc" in kinds for kinds in inside), inside)

    def test_failing_passes_end(self):
        self.run_program(
            CODE
            + """
class Outer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = net

    def forward(self, fails):
        self.net(torch.empty(32, 64, device="cuda"))
        if fails:
            raise ValueError

outer = Outer()
run = torch.Tensor._run_backward
with vramscope.record("run.vram") as session:
    wait_until_live(session)
    session.annotate(net)
    session.annotate(outer)
    for fails in True, False:
        try:
            outer(fails)
        except ValueError:
            assert fails
    loss = net(torch.empty(32, 64, device="cuda"))

    def fail(_):
        # A checkpoint runs a backward pass inside of the backward pass.
        torch.Tensor._run_backward = run
        loss.backward()
        raise ValueError

    torch.Tensor._run_backward = fail
    try:
        loss.backward()
    except ValueError:
        pass
    loss.backward()
    import copy, gc, pickle, weakref
    copy.deepcopy(net._forward_pre_hooks), pickle.dumps(net._forward_hooks)
    reference = weakref.ref(outer)
    del outer
    gc.collect()
    assert reference() is None
assert not net._forward_hooks
"""
        )
        forward, backward = ["begin forward", "end forward"], ["begin backward", "end backward"]
        self.assertEqual(self.spans(), 3 * forward + 2 * backward)

    def test_interrupted_forward_pass_ends_with_the_next_one(self):
        self.run_everywhere(
            CODE
            + """
class Tree(torch.nn.Module):
    def forward(self, depth, is_interrupted=False):
        if depth > 0:
            self(depth - 1, is_interrupted)
        elif is_interrupted:
            raise KeyboardInterrupt
        net(torch.empty(32, 64, device="cuda"))

def interrupt():
    try:
        tree(2, True)
    except KeyboardInterrupt:
        pass

def interrupt_deeper():
    interrupt()

tree = Tree()
with vramscope.record("run.vram") as session:
    wait_until_live(session)
    for model in net, tree:
        session.annotate(model)
    for use in interrupt, interrupt_deeper:
        use()
        tree(2)
    for _ in range(2):
        interrupt()
    net(torch.empty(32, 64, device="cuda"))
    rows = [row["stage"] for row in events_so_far(session) if row["name"] == "forward"]
assert rows == 7 * ["begin", "end"], rows
"""
        )
