"""Forked children: they neither crash nor change the parent's recording."""

from harness import ProgramTest


class ForkTest(ProgramTest):
    def check(self, child, status=0):
        self.run_program(
            f"""
            import gc
            import torch
            import vramscope

            with vramscope.record("run.vram") as session:
                torch.cuda.synchronize()
                wait_until_live(session)
                kept = train()
                for _ in range(3):
                    child = os.fork()
                    if child == 0:
                        {child}
                    end = time.monotonic() + 20
                    while True:
                        pid, ended = os.waitpid(child, os.WNOHANG)
                        if pid:
                            break
                        if time.monotonic() > end:
                            os.kill(child, 9)
                            os.waitpid(child, 0)
                            sys.exit("the child hangs")
                        time.sleep(0.01)
                    assert os.waitstatus_to_exitcode(ended) == {status}, ended
                kept += train()
                write_log()
            """
        )
        self.assertGreater(self.assert_recording_equals_log(), 100)

    def test_child_that_ends_at_once(self):
        self.check("os._exit(0)")

    def test_child_that_frees_and_allocates(self):
        self.check("del kept; gc.collect(); torch._library.alloc(0, 4096, 0); os._exit(0)")

    def test_child_that_marks_and_asks(self):
        self.check("vramscope.mark('child'); session.status; os._exit(0)")

    def test_child_that_exits_as_a_program(self):
        self.check("sys.exit(0)")

    def test_child_that_raises(self):
        self.check("raise ValueError('expected')", status=1)

    def test_child_that_watches(self):
        self.check("print(vramscope.watch(listen='127.0.0.1:0').status); os._exit(0)")

    def test_children_of_multiprocessing(self):
        self.run_program(
            """
            import multiprocessing
            import torch
            import vramscope

            def double(number):
                return 2 * number

            session = vramscope.watch(listen="127.0.0.1:0", record="run.vram")
            torch.cuda.synchronize()
            wait_until_live(session)
            kept = train()
            with multiprocessing.get_context("fork").Pool(3) as pool:
                assert pool.map(double, range(100)) == list(range(0, 200, 2))
                pool.close()
                pool.join()
            kept += train()
            write_log()
            session.stop()
            """
        )
        self.assertGreater(self.assert_recording_equals_log(), 100)
