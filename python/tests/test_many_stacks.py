"""Programs with more call stacks and code objects than the tracker's tables have room for."""

from harness import ProgramTest


class ManyStacksTest(ProgramTest):
    is_long = True

    def check(self, code, expected):
        self.run_program(
            f"""
            import torch
            import vramscope

            def request():
                torch._library.free(torch._C._allocate(0, 512))

            with vramscope.record("run.vram") as session:
                kept = train()
                wait_until_live(session)
{code}
            """
        )
        events = self.events()
        self.assertEqual([row for row in events if row["kind"] == "gap"], [])
        rows = [row for row in events if row["kind"] == "alloc" and row["requested"] == "512"]
        self.assertEqual(len(rows), len(expected))
        for row, name in zip(rows, expected):
            self.assertIn(name, row["stack"])

    def test_code_objects(self):
        # As of a program that compiles or generates code for one model after another.
        self.check(
            """
                names = [f"/generated/{number}.py" for number in range(14_000)]
                for name in names:
                    exec(compile("request()", name, "exec"))
            """,
            [f"/generated/{number}.py:1" for number in range(14_000)],
        )

    def test_stacks(self):
        # The first stacks are used again when the table has been full.
        self.check(
            """
                parts = [compile("request()\\n" * 1000, f"/parts/{part}.py", "exec") for part in range(60)]
                for number, part in enumerate(parts + parts[:2]):
                    exec(part)
                    if number % 10 == 0:
                        # Reads the ring, which has no room for the events of all parts.
                        session.save("so_far.vram")
            """,
            [f"/parts/{part}.py:{line + 1}" for part in [*range(60), 0, 1] for line in range(1000)],
        )
