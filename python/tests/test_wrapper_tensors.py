"""Categories of tensors that consist of others, as ``DTensor`` and quantized tensors do."""

from harness import ProgramTest

#: What each program begins with.
START = """
    import torch
    import vramscope

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(64, 64, device="cuda")

        def forward(self, x):
            return self.layer(x)

    def memory(kib):
        return torch.empty(kib << 10, dtype=torch.uint8, device="cuda")

    net = Net()
"""


class WrapperTensorsTest(ProgramTest):
    def test_parameters_gradients_and_optimizer_state_are_labelled(self):
        _, errors = self.run_program(
            START
            + """
    with vramscope.record("run.vram") as session:
        wait_until_live(session)
        # Of two tensors, one of which consists of a tensor again.
        local = torch.WrapperTensor(codes=memory(100), scale=memory(200))
        weight = torch.WrapperTensor(_local_tensor=local)
        weight.requires_grad = True
        net.layer._parameters["weight"] = weight
        optimizer = torch.optim.Adam([weight])
        for _ in range(2):
            net(torch.empty(32, 64, device="cuda")).backward()
            optimizer.step()
            gradients = weight.grad
        session.annotate(net, optimizer)
            """
        )
        self.assertNotIn("category", errors)
        rows = self.events()
        sizes = {row["address"]: int(row["requested"]) >> 10 for row in rows if row["kind"] == "alloc"}
        relabels = [row for row in rows if row["kind"] == "relabel"]
        labelled = {(sizes[row["address"]], row["category"]) for row in relabels if row["address"] in sizes}
        kinds = ("parameter", "gradient", "optimizer state")
        self.assertLessEqual({(size, kind) for size in (100, 200) for kind in kinds}, labelled)
        states = {row["address"] for row in relabels if row["category"] == "optimizer state"}
        self.assertEqual(len(states), 4)

    def test_tensor_without_a_block_is_reported_once(self):
        _, errors = self.run_program(
            START
            + """
    class Opaque(torch.WrapperTensor):
        __tensor_flatten__ = property()

    opaque = Opaque(inner=memory(1))
    endless = torch.WrapperTensor(inner=memory(1))
    endless.inner = endless
    with vramscope.record("run.vram") as session:
        wait_until_live(session)
        optimizer = torch.optim.SGD([opaque, endless, *net.parameters()])
        for _ in range(2):
            optimizer.step()
            """
        )
        [line] = [line for line in errors.splitlines() if "category" in line]
        self.assertRegex(line, r"^vramscope: some blocks have no category: cannot find the memory of a Opaque: ")
        categories = [row["category"] for row in self.events() if row["kind"] == "relabel"]
        # Weight and bias of the layer.
        self.assertEqual(set(categories), {"parameter"})
