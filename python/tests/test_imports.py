"""PyTorch that is imported after the session has begun."""

from harness import ProgramTest


class ImportTest(ProgramTest):
    def check(self, imports, after=""):
        self.run_program(
            f"""
            import vramscope

            assert "torch" not in sys.modules
            with vramscope.record("run.vram") as session:
                {imports}
                kept = train()
                wait_until_live(session)
                kept += train()
                {after}
                write_log()
            # One waits for the compiler of PyTorch.
            assert not any(getattr(finder, "name", None) == "torch" for finder in sys.meta_path)
            """
        )
        self.assertGreater(self.assert_recording_equals_log(), 200)

    def test_imported_package(self):
        self.check("import torch")

    def test_imported_submodule(self):
        self.check("from torch.nn.modules import Linear")

    def test_searched_before_it_is_imported(self):
        self.check("import importlib.util; assert importlib.util.find_spec('torch') is not None")

    def test_reloaded_submodule(self):
        self.check("import torch", after="import importlib; importlib.reload(torch.profiler)")

    def test_two_sessions_wait_for_the_import(self):
        self.run_program(
            """
            import vramscope

            with vramscope.record("first.vram"):
                pass
            with vramscope.record("run.vram") as session:
                kept = train()
                wait_until_live(session)
                kept += train()
                write_log()
            """
        )
        self.assert_recording_equals_log()

    def test_import_that_fails_once(self):
        self.run_program(
            """
            import vramscope

            library = os.environ.pop("STANDIN_LIBRARY")
            with vramscope.record("run.vram") as session:
                try:
                    import torch
                except KeyError:
                    for name in [name for name in sys.modules if name.split(".")[0] == "torch"]:
                        del sys.modules[name]
                os.environ["STANDIN_LIBRARY"] = library
                kept = train()
                wait_until_live(session)
                kept += train()
                write_log()
            """
        )
        self.assert_recording_equals_log()

    def test_other_imports_are_left_alone(self):
        output, errors = self.run_program(
            """
            import vramscope

            with vramscope.record("run.vram"):
                import colorsys
                import importlib.util

                print(importlib.util.find_spec("no_such_module"), colorsys.__spec__.loader.exec_module.__name__)
            """
        )
        self.assertEqual((output, errors), ("None exec_module\n", ""))

    def test_stopped_sessions_are_freed_before_cuda_is_initialized(self):
        for use in "", "import torch":
            with self.subTest(use=use):
                self.run_program(
                    f"""
                    import gc
                    import weakref
                    import vramscope
                    {use}
                    references = []
                    for _ in range(3):
                        session = vramscope.watch("127.0.0.1:0")
                        references += [weakref.ref(session), weakref.ref(session._following)]
                        session.stop()
                        del session
                        finders = len(sys.meta_path)
                        gc.collect()
                        assert not any(reference() for reference in references)
                    with vramscope.record("run.vram") as session:
                        assert len(sys.meta_path) == finders
                        kept = train()
                        wait_until_live(session)
                    """
                )
