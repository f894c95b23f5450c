"""How the calls of modules are observed."""

from harness import ProgramTest


class ModuleCallsTest(ProgramTest):
    def test_cost_of_observing_a_module_does_not_depend_on_the_others(self):
        self.run_everywhere(
            """
            import torch
            from vramscope import _module_calls, _monitoring

            files = {module.__file__ for module in (_module_calls, _monitoring)}

            def observe(number):
                '''Observes modules of two classes. Returns the number of Python's instructions.'''
                instructions = 0

                def trace(frame, event, _):
                    nonlocal instructions
                    if frame.f_code.co_filename not in files:
                        return None
                    frame.f_trace_opcodes = True
                    instructions += event == "opcode"
                    return trace

                modules = [torch.nn.ReLU() if number % 2 else torch.nn.Sequential() for number in range(number)]
                observers = []
                sys.settrace(trace)
                for module in modules:
                    observers.append(_module_calls.Observer(module, print))
                    if number % 3:
                        observers.append(_module_calls.Observer(module, print, print))
                for observer in observers:
                    observer.remove()
                sys.settrace(None)
                return instructions

            observe(10)
            few, many = observe(100), observe(1000)
            assert 0 < many < 11 * few, (few, many)
            """
        )

    def test_module_at_the_address_of_a_freed_one_is_not_observed(self):
        self.run_everywhere(
            """
            import torch
            from vramscope import _module_calls

            class Net(torch.nn.Module):
                def forward(self):
                    pass

            seen = []
            for _ in range(50):
                net = Net()
                observer = _module_calls.Observer(net, lambda module, _: seen.append(module))
                net()
                assert seen.pop() is net
                address = id(net)
                del net
                kept = [Net() for _ in range(10)]
                if address in map(id, kept):
                    break
            else:
                raise AssertionError("no module has the address")
            for net in kept:
                net()
            assert not seen
            """
        )
