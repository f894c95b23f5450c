"""Categories of blocks that are known only after the allocation."""

import os

from harness import ProgramTest


class LabelsTest(ProgramTest):
    CODE = """
    import copy
    import pickle
    import torch
    import vramscope

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(64, 64, device="cuda")
            self.workspace = None

        def forward(self, x):
            if self.workspace is None:
                self.workspace = torch.empty(32 << 20, dtype=torch.uint8, device="cuda")
            return self.layer(x)

    def is_observed():
        # The interpreter reports calls from Python 3.12 on.
        if sys.version_info < (3, 12):
            return net._forward_pre_hooks
        tools = [tool for tool in (3, 4) if sys.monitoring.get_tool(tool) == "vramscope"]
        return any(sys.monitoring.get_local_events(tool, Net.forward.__code__) for tool in tools)

    net = Net()
    optimizer = torch.optim.Adam(net.parameters())
    with vramscope.record("run.vram") as session:
        wait_until_live(session)
        for step in range(6):
            batch = torch.empty(32, 64, device="cuda")
            loss = net(batch)
            if step == 0:
                wait_until(is_observed)  # Modules are found in the background.
                assert bool(net._forward_pre_hooks) == (sys.version_info < (3, 12))
                copy.deepcopy(net._forward_pre_hooks), pickle.dumps(net._forward_pre_hooks)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            del batch, loss
        assert not net._forward_pre_hooks
    """

    def setUp(self):
        super().setUp()
        self.run_program(self.CODE)
        self.rows = self.events()
        with open(os.path.join(self.folder, "program.py")) as file:
            self.lines = file.read().splitlines()

    def line(self, text):
        return next(f"program.py:{number}" for number, line in enumerate(self.lines, 1) if text in line)

    def test_inputs_are_labelled_and_then_known(self):
        batches = [row for row in self.rows if row["kind"] == "alloc" and self.line("batch = ") in row["stack"]]
        # Two calls are watched; from the third step after that on, the line makes inputs.
        self.assertEqual([row["category"] for row in batches], ["unknown"] * 2 + ["input"] * 4)
        relabelled = {row["address"] for row in self.rows if row["kind"] == "relabel" and row["category"] == "input"}
        self.assertLessEqual(relabelled, {row["address"] for row in batches})

    def test_workspace_is_labelled(self):
        (request,) = [row for row in self.rows if row["kind"] == "alloc" and row["requested"] == str(32 << 20)]
        relabels = [row for row in self.rows if row["kind"] == "relabel" and row["address"] == request["address"]]
        self.assertEqual([row["category"] for row in relabels], ["workspace"])

    def test_results_are_no_inputs(self):
        inputs = [row for row in self.rows if row["category"] == "input" and row["kind"] == "alloc"]
        self.assertEqual({row["scope"] for row in inputs}, {""})
