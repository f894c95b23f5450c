"""Call stacks, and names of modules as scopes."""

from harness import ProgramTest


class StackTest(ProgramTest):
    CODE = """
    import torch
    import vramscope

    def request():
        return torch.empty(1000, dtype=torch.uint8, device="cuda")

    with vramscope.record("run.vram"{}) as session:
        torch.cuda.synchronize()
        wait_until_live(session)
        kept = [request() for _ in range(3)]
    """

    def test_code_objects_at_one_address_are_told_apart(self):
        # Each is freed before the next is compiled, as the cells of a notebook are. IPython keeps
        # the names of their files.
        self.run_program(
            """
            import torch
            import vramscope

            with vramscope.record("run.vram") as session:
                torch.cuda.synchronize()
                wait_until_live(session)
                names = [f"/cells/{number}.py" for number in range(20)]
                for number, name in enumerate(names, 1):
                    exec(compile(f"kept = torch.empty({number} << 10, device='cuda')", name, "exec"))
            """
        )
        requests = [row for row in self.events() if row["kind"] == "alloc" and "/cells/" in row["stack"]]
        found = [(int(row["requested"]) >> 12, row["stack"]) for row in requests]
        self.assertEqual([number for number, _ in found], list(range(1, 21)))
        for number, stack in found:
            self.assertIn(f"/cells/{number - 1}.py", stack)

    def test_code_objects_with_texts_at_one_address_are_told_apart(self):
        # Nothing keeps the code objects, nor the names of their files and functions.
        for part, name, source in (
            ("file", "f'/parts/{number:03}.py'", "'def run(): return request()'"),
            ("function", "'/parts/all.py'", "f'def run{number:03}(): return request()'"),
            ("first line", "'/parts/all.py'", "'\\n' * number + 'def run(): return request()'"),
            ("line", "'/parts/all.py'", "'def run():\\n' + '\\n' * number + ' return request()'"),
        ):
            output, _ = self.run_program(
                f"""
                import torch
                import vramscope

                def request():
                    torch._library.free(torch._C._allocate(0, 512))

                def generate(number):
                    names = {{"request": request}}
                    exec(compile({source}, {name}, "exec"), names)
                    [function] = [value for key, value in names.items() if key.startswith("run")]
                    function()
                    code = function.__code__
                    print(id(code), f"{{code.co_filename}}:{{list(code.co_lines())[-1][2]}} {{code.co_name}}")
                    # Without it, the function would live until a garbage collection.
                    names.clear()

                with vramscope.record("run.vram") as session:
                    kept = train()
                    wait_until_live(session)
                    for number in range(100):
                        generate(number)
                """
            )
            expected = [line.split(" ", 1) for line in output.splitlines()]
            with self.subTest(part):
                self.assertLess(len({address for address, _ in expected}), 60, "no address was used again")
                self.assertEqual(len({frame for _, frame in expected}), 100)
                rows = [row for row in self.events() if row["kind"] == "alloc" and "/parts/" in row["stack"]]
                found = [next(line for line in row["stack"].splitlines() if "/parts/" in line) for row in rows]
                wrong = [pair for pair in zip(found, [frame for _, frame in expected]) if pair[0] != pair[1]]
                self.assertEqual((len(found), len(wrong), wrong[:2]), (100, 0, []))

    def test_stacks_have_functions_files_and_lines(self):
        self.run_program(self.CODE.format(""))
        stacks = {row["stack"] for row in self.events() if row["requested"] == "1000"}
        (stack,) = stacks
        lines = stack.splitlines()
        with open(f"{self.folder}/program.py") as file:
            line = 1 + file.read().splitlines().index('    return torch.empty(1000, dtype=torch.uint8, device="cuda")')
        index = [number for number, text in enumerate(lines) if text.endswith(f"program.py:{line} request")]
        self.assertEqual(len(index), 1, stack)
        self.assertTrue(lines[0].endswith("_allocate"), stack)
        self.assertTrue(lines[-1].endswith("<module>"), stack)

    def test_stacks_can_be_left_out(self):
        self.run_program(self.CODE.format(", stacks=None"))
        self.assertEqual({row["stack"] for row in self.events() if row["kind"] == "alloc"}, {""})

    def test_each_thread_has_its_own_stack(self):
        self.run_program(
            """
            import threading
            import torch
            import vramscope

            def request(size):
                for _ in range(200):
                    torch.empty(size, dtype=torch.uint8, device="cuda")

            def first():
                request(1111)

            def second():
                request(2222)

            with vramscope.record("run.vram") as session:
                torch.cuda.synchronize()
                wait_until_live(session)
                threads = [threading.Thread(target=function) for function in (first, second)]
                [thread.start() for thread in threads]
                [thread.join() for thread in threads]
            """
        )
        for size, function in ("1111", "first"), ("2222", "second"):
            rows = [row for row in self.events() if row["requested"] == size and row["kind"] == "alloc"]
            self.assertEqual(len(rows), 200)
            self.assertTrue(all(function in row["stack"].split() for row in rows))

    def test_modules_are_scopes(self):
        self.run_program(
            """
            import torch
            import vramscope

            with vramscope.record("run.vram") as session:
                torch.cuda.synchronize()
                wait_until_live(session)
                net = train(1)[0]

                def has_names():
                    # Names are found in the background.
                    net(torch.empty(32, 64, device="cuda"))
                    return any(row["scope"] == "Net/body/0" for row in events_so_far(session))

                wait_until(has_names)
                net(torch.empty(32, 64, device="cuda"))
            """
        )
        rows = [row for row in self.events() if row["kind"] == "alloc"]
        last = [row["scope"] for row in rows if "forward" in row["stack"]][-3:]
        self.assertEqual(last, ["Net/body/0", "Net/body/1", "Net/body/2"])

    def test_modules_of_a_first_pass_are_named_at_last(self):
        self.run_program(
            """
            import torch
            import vramscope
            from torch import nn

            net = nn.Sequential(nn.Linear(64, 64, device="cuda"))
            with vramscope.record("run.vram") as session:
                wait_until_live(session)
                x = torch.empty(1, 64, device="cuda")

                def has_name():
                    net(x)
                    return any(row["scope"] == "Sequential/0" for row in events_so_far(session))

                wait_until(has_name)
                for _ in range(20):
                    net(x)
            """
        )
        rows = [row for row in self.events() if row["kind"] == "alloc" and "forward" in row["stack"]]
        scopes = [row["scope"] for row in rows]
        self.assertEqual(set(scopes[-20:]), {"Sequential/0"})
        self.assertLessEqual(set(scopes), {"", "Sequential/0"})

    def test_search_for_modules_delays_no_free(self):
        self.run_program(
            """
            import threading
            import torch
            import weakref
            from vramscope._native import name_all_modules

            net = torch.nn.Sequential(torch.nn.Linear(64, 64, device="cuda"))
            # The search takes long.
            objects = [[number] for number in range(300_000)]
            searches = []

            def search():
                while len(searches) < 50:
                    searches.append(len(name_all_modules(torch.nn.Module)))

            thread = threading.Thread(target=search)
            thread.start()
            while thread.is_alive():
                tensor = torch.empty(1, 64, device="cuda")
                reference = weakref.ref(tensor)
                time.sleep(0.001)
                del tensor
                assert reference() is None
            assert searches == [1] * 50, searches
            """
        )
