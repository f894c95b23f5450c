"""Programs of the harm matrix that signals interrupt, that have no standard error, or that run out
of memory while vramscope polls. Each prints its losses to the last bit."""

import copy
import gc
import signal
import sys
import time

import job
import torch
from torch.profiler import record_function
from training_steps import DEVICE, MIB, fail_to_allocate, gpt, program, programs, show, train

#: More memory than any GPU has, in bytes.
TOO_MUCH_BYTES = 1 << 44


class Interruption(Exception):
    """What signal handlers raise."""


@program
def signals():
    """A handler in Python runs every millisecond."""
    calls = []
    signal.signal(signal.SIGALRM, lambda *_: calls.append(torch.initial_seed()) if len(calls) < 1000 else None)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    job.begin()
    train(*gpt(), steps=12)
    signal.setitimer(signal.ITIMER_REAL, 0)
    print("the handler ran:", len(calls) > 5)


class Passed(torch.autograd.Function):
    """Returns its input, and calls ``reach`` in its forward and backward passes."""

    @staticmethod
    def forward(ctx, x, reach):
        ctx.reach = reach
        reach("forward of a function")
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.reach("backward of a function")
        return gradient, None


@program
def raising_handler():
    """A handler raises an error at points in Python code that PyTorch calls. The program catches it
    around the step, and repeats the step."""
    raised, wanted = [], [None]

    def handler(*_):
        raised.append(wanted[0])
        raise Interruption(wanted[0])

    def reach(point):
        if point == wanted[0] and point not in raised:
            signal.raise_signal(signal.SIGUSR2)

    signal.signal(signal.SIGUSR2, handler)
    net, optimizer = gpt()
    block = net.blocks[0]
    block.register_forward_pre_hook(lambda *_: reach("hook before a module"))
    block.register_forward_hook(lambda *_: reach("hook after a module"))
    block.register_full_backward_hook(lambda *_: reach("hook after the backward pass of a module"))
    block.wide.weight.register_hook(lambda _: reach("hook of a gradient"))
    block.wide.weight.register_post_accumulate_grad_hook(lambda _: reach("hook after a gradient"))
    # Not after an optimizer's step, which would then be done twice.
    optimizer.register_step_pre_hook(lambda *_: reach("hook before an optimizer's step"))
    net.head.register_forward_pre_hook(lambda _, inputs: (Passed.apply(inputs[0], reach),))

    def step(number):
        reach("beginning of a step")
        batch = programs.tokens(2 + number % 3, 32 + 8 * (number % 5), number)
        with record_function("step"):
            reach("span")
            logits, _ = net(batch[:, :-1])
            loss = torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), batch[:, 1:].reshape(-1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return loss.item()

    job.begin()
    points = (
        None, "beginning of a step", "span", "hook before a module", "forward of a function", "hook after a module",
        "backward of a function", "hook of a gradient", "hook after a gradient",
        "hook after the backward pass of a module", "hook before an optimizer's step", None,
    )
    for number, point in enumerate(points):
        wanted[0] = point
        try:
            loss = step(number)
        except Interruption as error:
            print("interrupted:", error, flush=True)
            loss = step(number)
        show(loss)
        job.turn()
    print(raised)


@program
def raising_timer():
    """A timer's handler raises an error once in each of many steps, wherever Python code runs then.
    The program repeats the step from the state before it."""
    steps = 60
    counts = {"raised": 0, "caught": 0}
    is_armed = [False]

    def handler(*_):
        if is_armed[0]:
            is_armed[0] = False
            counts["raised"] += 1
            raise Interruption

    def restored(state):
        """Returns a model and an optimizer with a state: the error may have left others half
        changed."""
        torch.set_grad_enabled(True)
        net, optimizer = gpt()
        net.load_state_dict(state[0])
        optimizer.load_state_dict(state[1])
        return net, optimizer

    def step(net, optimizer, number):
        with record_function("step"):
            return programs.train_step(net, optimizer, programs.tokens(2, 32, number))

    signal.signal(signal.SIGALRM, handler)
    job.begin()
    net, optimizer = gpt()
    # The first step makes the optimizer's state, and loads kernels.
    show(step(net, optimizer, 0))
    begin = time.perf_counter()
    show(step(net, optimizer, 0))
    duration = time.perf_counter() - begin
    for number in range(1, steps + 1):
        state = copy.deepcopy((net.state_dict(), optimizer.state_dict()))
        try:
            is_armed[0] = True
            signal.setitimer(signal.ITIMER_REAL, duration * (number * 7 % steps + 1) / steps)
            loss = step(net, optimizer, number)
            is_armed[0] = False
        except Interruption:
            counts["caught"] += 1
            net, optimizer = restored(state)
            loss = step(net, optimizer, number)
        signal.setitimer(signal.ITIMER_REAL, 0)
        show(loss)
        if number <= 6:
            job.turn()
    print("interrupted:", counts["raised"] > 5, "- errors that were lost:", counts["raised"] - counts["caught"])
    # What was in use when a timer fired differs from run to run: only what follows has equal peaks.
    del net, optimizer, state
    gc.collect()
    if DEVICE == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    torch.manual_seed(1)
    train(*gpt(), turns=0)


def write_errors():
    """Writes to standard error, and prints what fails."""
    for number in range(3):
        try:
            print("a line", number, file=sys.stderr, flush=True)
        except OSError as error:
            print("cannot write to standard error:", error, flush=True)


@program
def closed_stderr():
    """Starts with descriptor 2 closed, so that a file of the program may get this number."""
    job.begin()
    train(*gpt())


@program
def broken_stderr():
    """Standard error is a pipe that nothing reads."""
    write_errors()
    job.begin()
    train(*gpt(), turns=3)
    write_errors()
    train(*gpt(), turns=3)


@program(needs_gpu=True)
def polled():
    """PyTorch's version is unknown, so that vramscope takes snapshots. Memory runs out twice."""
    torch.__version__ = torch.torch_version.TorchVersion("2.99.0")
    job.begin()
    net, optimizer = gpt()
    train(net, optimizer, turns=3)
    kept = [torch.full((16 * MIB,), float(number), device=DEVICE) for number in range(4)]
    fail_to_allocate(TOO_MUCH_BYTES)
    print(job.counters())
    del kept
    train(net, optimizer, turns=3)
    fail_to_allocate(TOO_MUCH_BYTES)
    train(net, optimizer, turns=0)
