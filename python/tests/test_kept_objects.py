"""What a session keeps alive, changes or leaves in the program: nothing that it notices."""

from harness import ProgramTest


class KeptObjectsTest(ProgramTest):
    def test_model_and_its_functions_are_freed(self):
        self.run_everywhere(
            """
            import gc
            import torch
            import vramscope
            import weakref

            class Big:
                pass

            def make():
                big = Big()

                class Net(torch.nn.Module):
                    def forward(self):
                        return big

                return Net(), weakref.ref(big)

            session = vramscope.watch("127.0.0.1:0")
            torch.empty(1024, device="cuda")
            wait_until_live(session)
            for calls in range(4):
                net, reference = make()
                session.annotate(net)
                for _ in range(calls):
                    net()
                del net
                gc.collect()
                assert reference() is None, calls
            """
        )

    def test_observers_of_freed_modules_are_freed(self):
        self.run_everywhere(
            """
            import gc
            import torch
            import vramscope
            from vramscope._module_calls import Observer

            class Net(torch.nn.Module):
                def forward(self):
                    pass

            def observers():
                gc.collect()
                return sum(isinstance(found, Observer) for found in gc.get_objects())

            session = vramscope.watch("127.0.0.1:0")
            torch.empty(1024, device="cuda")
            wait_until_live(session)
            for _ in range(20):
                net = Net()
                session.annotate(net)
                net()
            # Two for the last one.
            assert observers() <= 2, observers()
            """
        )

    def test_parameter_at_the_address_of_a_freed_one_has_no_scope(self):
        self.run_everywhere(
            """
            import gc
            import torch
            import vramscope
            from torch.nn import Linear, Module, Parameter

            class Net(Module):
                def __init__(self):
                    super().__init__()
                    self.inner = Linear(8, 8, device="cuda")

                def forward(self):
                    pass

            addresses = set()
            session = vramscope.watch("127.0.0.1:0")
            torch.empty(1024, device="cuda")
            wait_until_live(session)
            for _ in range(20):
                net = Net()
                addresses.update(map(id, net.parameters()))
                session.annotate(net)
                del net
                gc.collect()
            parameters = [Parameter((8,), device="cuda") for _ in range(50)]
            assert addresses & set(map(id, parameters)), "no address is used again"
            for parameter in parameters:
                parameter.grad = torch.empty(8, device="cuda")
            torch.optim.Adam(parameters).step()
            rows = [row for row in events_so_far(session) if row["category"] == "gradient"]
            assert rows
            assert {row["scope"] for row in rows} == {""}, rows
            """
        )

    def test_search_for_modules_delays_no_free_of_a_module(self):
        self.run_everywhere(
            """
            import threading
            import torch
            import vramscope
            import weakref

            # Without parameters: inputs of such modules are not labelled.
            kept = [torch.nn.Sequential(torch.nn.ReLU()) for _ in range(300)]
            session = vramscope.watch("127.0.0.1:0")
            torch.empty(1024, device="cuda")
            wait_until_live(session)
            searches = []

            def search():
                while len(searches) < 50:
                    searches.append(session._following._name_modules(torch))

            thread = threading.Thread(target=search)
            thread.start()
            late = 0
            while thread.is_alive():
                model = torch.nn.Sequential(torch.nn.ReLU())
                references = [weakref.ref(part) for part in model.modules()]
                time.sleep(0.001)
                del model
                late += any(reference() is not None for reference in references)
            assert late == 0, late
            """
        )

    def test_no_garbage_is_collected_during_a_search_for_modules(self):
        # It runs code of the program, in which other threads have their turns.
        self.run_everywhere(
            """
            import gc
            import torch
            from vramscope._native import name_all_modules

            kept = torch.nn.Sequential(*(torch.nn.ReLU() for _ in range(100)))
            kept.weight = torch.nn.Parameter((8, 8))

            def count(*_):
                return sys.getrefcount(kept)

            counts = []
            gc.callbacks.append(lambda *_: counts.append(count()))
            expected = count()
            for is_enabled in True, False:
                if not is_enabled:
                    gc.disable()
                threshold = gc.get_threshold()
                gc.set_threshold(1)
                roots = name_all_modules(torch.nn.Module)
                gc.set_threshold(*threshold)
                assert [root() for root in roots] == [kept], roots
                assert gc.isenabled() == is_enabled
            # More references than the program has are those of a search in progress.
            assert set(counts) <= {expected}, (expected, counts)
            """
        )

    def test_first_search_for_modules_delays_no_free(self):
        self.run_everywhere(
            """
            import threading
            import torch
            import weakref
            from vramscope._native import name_all_modules

            class Object:
                pass

            kept = torch.nn.Sequential(torch.nn.ReLU())
            # The search takes long.
            objects = [[number] for number in range(300_000)]
            sys.setswitchinterval(1e-6)
            thread = threading.Thread(target=name_all_modules, args=(torch.nn.Module,))
            thread.start()
            while thread.is_alive():
                for _ in range(100):
                    freed = Object()
                    reference = weakref.ref(freed)
                    # Gives the search its turns.
                    [number for number in range(100)]
                    del freed
                    assert reference() is None
            """
        )

    def test_interrupted_forward_pass_keeps_no_model_on_the_pool(self):
        self.run_everywhere(
            """
            import gc
            import torch
            import weakref
            from vramscope._module_scopes import ModuleScopes

            class Library:
                def begin_scope(self, *_):
                    pass

                def end_scope(self):
                    pass

            class Net(torch.nn.Module):
                def forward(self):
                    raise KeyboardInterrupt

            scopes = ModuleScopes(Library())
            net = Net()
            scopes.add(net)
            try:
                net()
            except KeyboardInterrupt:
                pass
            reference = weakref.ref(net)
            del net
            gc.collect()
            assert reference() is None
            """
        )

    def test_stopped_sessions_are_freed(self):
        self.run_everywhere(
            """
            import gc
            import multiprocessing.util
            import torch
            import vramscope
            from vramscope._watch import Watch

            kept = torch.empty(1024, device="cuda")
            for _ in range(5):
                session = vramscope.watch("127.0.0.1:0")
                session.stop()
            del session
            gc.collect()
            assert sum(isinstance(found, Watch) for found in gc.get_objects()) == 0
            """
        )


class ObservationTest(ProgramTest):
    def test_error_of_an_observer_does_not_reach_the_program(self):
        self.run_everywhere(
            """
            import torch
            from vramscope._module_calls import Observer

            class Net(torch.nn.Module):
                def forward(self, x):
                    return x

            net = Net()
            calls = []

            def fail(*_):
                raise ValueError

            for begin, end in (fail, fail), (lambda *_: calls.append("begin"), lambda *_: calls.append("end")):
                Observer(net, begin, end)
            assert net(7) == 7
            assert calls == ["begin", "end"], calls
            """
        )

    def test_number_of_the_tool_is_free_after_the_session(self):
        self.run_everywhere(
            """
            import torch
            import vramscope

            if sys.version_info >= (3, 12):
                monitoring = sys.monitoring
                torch.empty(1024, device="cuda")
                for is_freed in False, True, False:
                    net = torch.nn.ReLU()
                    with vramscope.record("run.vram") as session:
                        session.annotate(net)
                        assert [monitoring.get_tool(tool) for tool in (3, 4)] == [None, "vramscope"]
                        if is_freed:
                            net = None
                    events = []
                    for tool in 3, 4:
                        monitoring.use_tool_id(tool, "other")
                        for event in monitoring.events.PY_START, monitoring.events.PY_UNWIND:
                            previous = monitoring.register_callback(tool, event, lambda *found: events.append(found))
                            assert previous is None
                        assert monitoring.get_events(tool) == 0
                    torch.nn.ReLU()(torch.empty(8, device="cuda"))
                    assert not events
                    for tool in 3, 4:
                        for event in monitoring.events.PY_START, monitoring.events.PY_UNWIND:
                            monitoring.register_callback(tool, event, None)
                        monitoring.free_tool_id(tool)
            """
        )

    def test_threads_that_observe_at_once_lose_no_end(self):
        self.run_everywhere(
            """
            import threading
            import torch
            from vramscope._module_calls import Observer

            class Net(torch.nn.Module):
                def forward(self):
                    pass

            class Other(torch.nn.Module):
                def forward(self):
                    pass

            sys.setswitchinterval(1e-6)
            is_over = False

            def observe_again():
                while not is_over:
                    other, second = Other(), Net()
                    for observer in Observer(other, print, print), Observer(second, print, print):
                        observer.remove()

            thread = threading.Thread(target=observe_again)
            thread.start()
            try:
                net, ends = Net(), []
                for number in range(500):
                    observer = Observer(net, lambda *_: None, ends.append)
                    net()
                    assert len(ends) == number + 1, number
                    observer.remove()
            finally:
                is_over = True
                thread.join()
            if sys.version_info >= (3, 12):
                assert [sys.monitoring.get_tool(tool) for tool in (3, 4)] == [None, None]
            """
        )

    def test_session_that_ends_in_a_forward_pass_leaves_the_next_one_its_spans(self):
        self.run_everywhere(
            """
            import torch
            import vramscope

            class Net(torch.nn.Module):
                def forward(self, stops):
                    if stops:
                        first.stop()

            torch.empty(1024, device="cuda")
            net = Net()
            first = vramscope.watch("127.0.0.1:0")
            wait_until_live(first)
            first.annotate(net)
            net(True)
            second = vramscope.watch("127.0.0.1:0")
            wait_until_live(second)
            second.annotate(net)
            net(False)
            net(False)
            rows = [row for row in events_so_far(second) if row["name"] == "forward"]
            assert [row["stage"] for row in rows] == ["begin", "end"] * 2, rows
            """
        )


class SlowBeginningTest(ProgramTest):
    def test_wait_for_another_call_does_not_end_following(self):
        _, errors = self.run_program(
            """
            import threading
            import torch
            import vramscope
            from vramscope import _follow

            session = vramscope.watch("127.0.0.1:0")
            torch.cuda.synchronize()
            following = session._following
            assert following.is_attached
            wait_until_live(session)
            is_held, release = threading.Event(), threading.Event()

            def hold():
                is_held.set()
                release.wait()

            thread = threading.Thread(target=lambda: following._beginning.run(hold))
            thread.start()
            is_held.wait()
            _follow.BEGIN_TIMEOUT = 0.1
            session.save("early.vram")
            release.set()
            thread.join()
            kept = train()
            wait_until_live(session)
            session.save("run.vram")
            """
        )
        self.assertIn("are not written: a call of vramscope in another thread takes too long", errors)
        self.assertNotIn("cannot follow", errors)
        self.assertIn("alloc", {row["kind"] for row in self.events()})
