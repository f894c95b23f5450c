"""Texts that the program sets with ``torch.cuda.memory._set_memory_metadata``."""

from harness import ProgramTest

CODE = """
    import threading
    import torch
    import vramscope

    set_metadata = torch.cuda.memory._set_memory_metadata
    original = torch._C._cuda_setMemoryMetadata
    torch.cuda.synchronize()
    kept = []

    def request():
        kept.append(torch.empty(4096, dtype=torch.uint8, device="cuda"))
"""


class MetadataTest(ProgramTest):
    def scopes(self, name="run.vram"):
        """Returns the scopes of the requests that the program's function made."""
        rows = self.events(name)
        return [row["scope"] for row in rows if row["kind"] == "alloc" and row["requested"] == "4096"]

    def test_text_is_a_scope_of_its_thread_and_a_mark(self):
        self.run_program(
            CODE
            + """
    with vramscope.record("run.vram") as session:
        wait_until_live(session)
        set_metadata("epoch 1")
        request()
        set_metadata("epoch 1")
        with vramscope.scope("evaluate"):
            request()
            set_metadata("epoch 2")
            request()
        request()
        thread = threading.Thread(target=request)
        thread.start()
        thread.join()
        set_metadata("")
        request()
        try:
            set_metadata(3)
        except TypeError:
            pass
        else:
            raise AssertionError
    assert torch._C._cuda_setMemoryMetadata is original
            """
        )
        expected = ["epoch 1", "epoch 1/evaluate", "evaluate/epoch 2", "epoch 2", "", ""]
        self.assertEqual(self.scopes(), expected)
        self.assertEqual(self.marks(), ["epoch 1", "epoch 2"])

    def test_text_ends_also_after_the_session(self):
        self.run_program(
            CODE
            + """
    with vramscope.record("first.vram") as session:
        wait_until_live(session)
        set_metadata("first")
    set_metadata("between")
    assert torch._C._cuda_setMemoryMetadata is original
    with vramscope.record("run.vram") as session:
        wait_until_live(session)
        request()
        set_metadata("second")
        request()
            """
        )
        self.assertEqual(self.scopes(), ["", "second"])

    def test_modules_are_inside_of_the_text(self):
        self.run_program(
            CODE
            + """
    class Net(torch.nn.Module):
        def forward(self):
            set_metadata("forward")
            request()

    net = Net()
    with vramscope.record("run.vram") as session:
        wait_until_live(session)
        session.annotate(net)
        net()
        request()
            """
        )
        self.assertEqual(self.scopes(), ["forward/Net", "forward"])

    def test_earlier_version_has_no_texts(self):
        self.run_program(
            """
    import torch
    import vramscope

    with vramscope.record("run.vram") as session:
        kept = torch.empty(4096, device="cuda")
        assert not hasattr(torch._C, "_cuda_setMemoryMetadata")
            """,
            version="2.9.1+standin",
            layout=9,
        )
