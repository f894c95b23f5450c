"""Modules at the addresses of modules that were freed: none gets the name of another."""

from harness import ProgramTest


class FreedModulesTest(ProgramTest):
    def check(self, code, **names):
        """Runs a program whose requests have sizes that say which class makes them: with the name
        of that class or without one, and never with that of another."""
        output, _ = self.run_program(
            f"""
            import gc
            import torch
            import vramscope
            from torch import nn

            class Model(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.inner = type("Part" + type(self).__name__, (Part,), {{"size": self.size + 1}})()

                def forward(self):
                    request(self.size)
                    self.inner()

            class Part(nn.Module):
                def forward(self):
                    request(self.size)

            def request(size):
                torch._library.free(torch._C._allocate(0, size))

            classes = [type(f"Model{{number}}", (Model,), {{"size": 71000 + 10 * number}}) for number in range(3)]
            addresses = []

            def run(number, calls=1, annotates=False, pause=0, is_cycle=False):
                model = classes[number % 3]()
                if is_cycle:
                    model.cycle = [model]
                addresses.append(id(model))
                if annotates:
                    session.annotate(model)
                for _ in range(calls):
                    model()
                    time.sleep(pause)

            with vramscope.record("run.vram") as session:
                kept = train()
                wait_until_live(session)
{code}
            print(len(addresses), len(set(addresses)))
            """
        )
        models, addresses = map(int, output.split())
        self.assertLess(addresses, models, "no address was used again")
        found = {}
        for row in self.events():
            if row["kind"] == "alloc" and 71000 <= int(row["requested"]) < 71030:
                number, is_inner = divmod(int(row["requested"]) - 71000, 10)
                expected = f"Model{number}/inner" if is_inner else f"Model{number}"
                found.setdefault(expected, []).append(row["scope"])
        self.assertEqual(len(found), 6)
        wrong = {(name, scope) for name, scopes in found.items() for scope in scopes if scope not in ("", name)}
        self.assertEqual(wrong, set())
        return [scope for scopes in found.values() for scope in scopes]

    def test_models_that_are_freed_after_some_calls(self):
        # As of a hyperparameter search. The names are searched for while the models run.
        scopes = self.check(
            """
                number = 0
                while number < 50 or not any("Model" in row["scope"] for row in events_so_far(session)):
                    run(number, calls=20, pause=0.001)
                    number += 1
            """
        )
        self.assertGreater(len([scope for scope in scopes if scope]), 0, "no module has a name")

    def test_models_that_are_freed_before_their_names_are_known(self):
        # Their requests are read after the next models have taken their addresses.
        self.check(
            """
                for number in range(50):
                    run(number, calls=4)
            """
        )

    def test_annotated_models_have_their_names_from_the_first_call_on(self):
        scopes = self.check(
            """
                for number in range(50):
                    run(number, calls=3, annotates=True)
            """
        )
        self.assertEqual(scopes.count(""), 0)
        self.assertEqual(len(scopes), 300)

    def test_models_that_only_the_garbage_collector_frees(self):
        self.check(
            """
                for number in range(50):
                    run(number, calls=10, annotates=number % 2 == 0, pause=0.005, is_cycle=True)
                    if number % 5 == 0:
                        gc.collect()
            """
        )

    def test_scope_in_a_module_that_is_freed(self):
        output, _ = self.run_program(
            """
            import torch
            import vramscope
            from torch import nn

            def request(size):
                torch._library.free(torch._C._allocate(0, size))

            class Model(nn.Module):
                def forward(self):
                    with vramscope.scope("part"):
                        request(self.size)

            classes = [type(f"Model{number}", (Model,), {"size": 71000 + number}) for number in range(3)]
            addresses = set()
            with vramscope.record("run.vram") as session:
                kept = train()
                wait_until_live(session)
                number = 0
                while number < 30 or len(addresses) == number:
                    model = classes[number % 3]()
                    addresses.add(id(model))
                    if number >= 3:
                        session.annotate(model)
                    model()
                    number += 1
            print(number)
            """
        )
        rows = [row for row in self.events() if row["kind"] == "alloc" and 71000 <= int(row["requested"]) < 71003]
        scopes = [row["scope"] for row in rows]
        expected = [f"Model{number % 3}/part" for number in range(int(output))]
        self.assertEqual(scopes[3:], expected[3:])
        for scope, name in zip(scopes[:3], expected):
            self.assertIn(scope, ("part", name))

    def test_session_that_ends_before_its_search_leaves_the_next_one_its_names(self):
        self.run_program(
            """
            import torch
            import vramscope

            class StoppingSession:
                '''A session that ends just after its thread has received the request to search.'''

                def __init__(self, session, following):
                    self._session, self._following = session, following
                    self.has_request = False

                def __getattr__(self, name):
                    return getattr(self._session, name)

                def next_request(self, interval):
                    request = self._session.next_request(interval)
                    if request == "modules":
                        self._following._stopped.set()
                        self.has_request = True
                    return request

            kept = train()
            with vramscope.record("first.vram") as session:
                following = session._following
                following._session = StoppingSession(session._session, following)
                while not following._session.has_request:
                    kept += train()
                    time.sleep(0.01)
                following._thread.join()
            with vramscope.record("run.vram") as session:
                name_modules, searches = session._following._name_modules, []
                session._following._name_modules = lambda torch: searches.append(name_modules(torch))
                while not searches:
                    kept += train()
                    time.sleep(0.01)
            """
        )

    def test_request_during_a_search_begins_no_other_one_after_it(self):
        self.run_program(
            """
            import torch
            import vramscope
            from vramscope import _native

            end, searches = _native.end_module_search, []

            def end_search(duration):
                searches.append(duration)
                # A pause that is longer than the test.
                end(3600.0)

            class RepeatingSession:
                '''A session whose follower has requested the search again before it began.'''

                def __init__(self, session):
                    self._session = session
                    self.repeats = 0

                def __getattr__(self, name):
                    return getattr(self._session, name)

                def next_request(self, interval):
                    request = self._session.next_request(interval)
                    if searches:
                        self.repeats += 1
                        return "modules"
                    return request

            _native.end_module_search = end_search
            kept = train()
            with vramscope.record("run.vram") as session:
                following = session._following
                following._session = RepeatingSession(session._session)
                while following._session.repeats < 4:
                    # Modules without a name make requests.
                    kept += train()
                    time.sleep(0.01)
            assert len(searches) == 1, searches
            """
        )
