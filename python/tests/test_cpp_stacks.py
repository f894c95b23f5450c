"""C++ call stacks: `stacks="all"`."""

from harness import ProgramTest

#: The stand-in's function that serves a request.
ALLOCATE = "standin::DeviceAllocator::allocate"


class CppStackTest(ProgramTest):
    def run_and_read(self, code, stacks='"all"', **arguments):
        """Runs a program that records; returns its requests."""
        self.run_program(
            f"""
            import threading
            import torch
            import vramscope

            ALLOCATE = {ALLOCATE!r}

            def request(size):
                return torch.empty(size, dtype=torch.uint8, device="cuda")

            def stacks_so_far(size):
                rows = events_so_far(session)
                return [row["stack"] for row in rows if row["kind"] == "alloc" and row["requested"] == str(size)]

            def has_cpp_frames(size):
                request(size)
                return ALLOCATE in stacks_so_far(size)[-1]

            with vramscope.record("run.vram", stacks={stacks}) as session:
                torch.cuda.synchronize()
                wait_until_live(session)
                # The bounds of a thread's stack are found after its first request.
                wait_until(lambda: session._following.stacks != "all" or has_cpp_frames(1))
                {code}
                write_log()
            """,
            **arguments,
        )
        self.assert_recording_equals_log()
        return [row for row in self.events() if row["kind"] == "alloc"]

    def test_cpp_frames_are_below_the_python_frames(self):
        rows = self.run_and_read("request(1001)")
        (row,) = [row for row in rows if row["requested"] == "1001"]
        text = row["stack"]
        lines = text.splitlines()
        is_python = [".py:" in line for line in lines]
        self.assertEqual(is_python, sorted(is_python), text)
        self.assertTrue(lines[is_python.index(True)].endswith(" _allocate"), text)
        self.assertTrue(lines[-1].endswith(" <module>"), text)
        self.assertTrue(lines[0].startswith("standin::DeviceAllocator::"), text)
        self.assertIn(f"{ALLOCATE}(unsigned long, unsigned long)", lines)
        for absent in "vramscope_hook", "PyEval", "_Function_handler":
            self.assertNotIn(absent, text)

    def test_python_frames_are_those_of_python_stacks(self):
        stacks = []
        for kind in '"python"', '"all"':
            rows = self.run_and_read("request(1001)", kind)
            (row,) = [row for row in rows if row["requested"] == "1001"]
            stacks.append([line for line in row["stack"].splitlines() if ".py:" in line])
        self.assertGreater(len(stacks[0]), 3)
        self.assertEqual(stacks[0], stacks[1])

    def test_threads_without_python_frames(self):
        rows = self.run_and_read(
            """
                sizes = [2000 + number for number in range(100)]

                def count():
                    for _ in range(20):
                        torch._library.backward(0, sizes)
                    return sum("standin_backward" in stack for stack in stacks_so_far(2099))

                wait_until(lambda: count() > 10)
            """.strip()
        )
        stacks = [row["stack"] for row in rows if 2000 <= int(row["requested"]) < 2100]
        with_frames = [stack for stack in stacks if ALLOCATE in stack]
        self.assertTrue(all("standin_backward" in stack for stack in with_frames), with_frames[0])
        self.assertFalse(any(".py:" in stack for stack in stacks))

    def test_every_python_thread_has_its_stack(self):
        rows = self.run_and_read(
            """
                are_found = threading.Event()

                def work(size):
                    while not are_found.wait(0.01):
                        request(size)
                    for _ in range(100):
                        request(size)

                sizes = range(3000, 3008)
                threads = [threading.Thread(target=work, args=(size,)) for size in sizes]
                [thread.start() for thread in threads]
                wait_until(lambda: all(ALLOCATE in "".join(stacks_so_far(size)) for size in sizes))
                are_found.set()
                [thread.join() for thread in threads]
            """.strip()
        )
        for size in range(3000, 3008):
            stacks = [row["stack"] for row in rows if row["requested"] == str(size)]
            self.assertTrue(all("work" in stack for stack in stacks))
            self.assertTrue(all(ALLOCATE in stack for stack in stacks[-100:]))

    def test_library_that_is_loaded_later(self):
        rows = self.run_and_read(
            """
                import ctypes
                import shutil
                import subprocess

                with open("later.cpp", "w") as file:
                    file.write('extern "C" unsigned long standin_alloc(int, unsigned long, unsigned long);')
                    file.write("namespace later { __attribute__((noinline)) unsigned long inner(unsigned long size)")
                    file.write("{ volatile unsigned long address = standin_alloc(0, size, 0); return address; } }")
                    file.write('extern "C" unsigned long later_outer(unsigned long size)')
                    file.write("{ volatile unsigned long address = later::inner(size); return address; }")
                library = os.environ["STANDIN_LIBRARY"]
                subprocess.run(["g++", "-O2", "-shared", "-fPIC", "later.cpp", library, "-o", "later.so"], check=True)
                later = ctypes.CDLL("./later.so")
                wait_until(lambda: later.later_outer(4001) and "later_outer" in stacks_so_far(4001)[-1])
            """.strip()
        )
        stacks = [row["stack"] for row in rows if row["requested"] == "4001"]
        self.assertIn("later::inner(unsigned long)", stacks[-1])
        self.assertIn("later_outer", stacks[-1])

    def test_unknown_kind_is_refused(self):
        self.run_program(
            """
            import vramscope

            try:
                vramscope.watch(listen="127.0.0.1:0", stacks="cpp")
                sys.exit("accepted")
            except ValueError as error:
                assert 'stacks must be "python", "all" or None' in str(error), error
            """
        )
