"""Programs for snapshot.py close to real training, and histories that start, stop and are cleared.

Each takes a `Program` that already records with the options of its entry in `PROGRAMS`. A program
that needs hardware which the machine lacks raises `Lacking`.
"""

import random
import threading

MIB = 1 << 20
HISTORY = {"max_entries": 200_000, "stacks": "python", "context": None}
STACKS = {**HISTORY, "context": "all"}
ALL_STACKS = {**STACKS, "stacks": "all"}


class Lacking(Exception):
    """Raised with the name of what the machine lacks for a program."""


def small_net(torch, width=256, classes=16):
    torch.manual_seed(5)
    return torch.nn.Sequential(
        torch.nn.Linear(width, 4 * width), torch.nn.GELU(), torch.nn.Linear(4 * width, width),
        torch.nn.LayerNorm(width),
        torch.nn.Linear(width, classes),
    ).cuda()


def steps(program, net, count, batch=64, width=256, begin=0):
    torch, rng = program.torch, random.Random(begin)
    optimizer = torch.optim.AdamW(net.parameters())
    for n in range(begin, begin + count):
        x = torch.randn(batch * rng.randint(1, 6), width, device="cuda")
        loss = net(x).float().logsumexp(-1).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        program.step(f"step {n}")


def generate(program):
    """Text generation: caches of keys and values that grow a token at a time."""
    torch = program.torch
    try:
        from transformers import GPT2Config, GPT2LMHeadModel
    except ImportError as error:
        raise Lacking("transformers") from error
    torch.manual_seed(2)
    net = GPT2LMHeadModel(GPT2Config(n_embd=128, n_layer=4, n_head=4, vocab_size=512, n_positions=256)).cuda().eval()
    for n in range(3):
        prompt = torch.randint(0, 512, (1 + n, 16), device="cuda")
        net.generate(prompt, max_new_tokens=96, do_sample=False, pad_token_id=0)
        program.step(f"text {n}")


def compiled(program):
    """A compiled net, whose requests carry a compile context."""
    steps(program, program.torch.compile(small_net(program.torch)), 5)


def compiled_graphs(program):
    """A compiled net in CUDA graphs that share a pool, which PyTorch resets to earlier states."""
    torch = program.torch
    net = torch.compile(small_net(torch), mode="reduce-overhead")
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    for n in range(8):
        torch.compiler.cudagraph_mark_step_begin()
        net(torch.randn(64, 256, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        program.step(f"step {n}")


def cudnn_benchmark(program):
    """Convolutions that cuDNN benchmarks, with workspaces that exceed the cap."""
    torch = program.torch
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(3)
    program.limit(700 * MIB)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 64, 7, padding=3), torch.nn.BatchNorm2d(64), torch.nn.ReLU(),
        torch.nn.Conv2d(64, 64, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(64, 128, 5, stride=2),
    ).cuda()
    for n, size in enumerate((32, 64, 96, 64, 112)):
        try:
            net(torch.randn(8, 3, size, size, device="cuda", requires_grad=True)).sum().backward()
        except torch.OutOfMemoryError as error:
            program.ooms += 1
            program.last_oom = str(error)
        program.step(f"step {n}")


def recurrent(program):
    """An LSTM, whose weights cuDNN keeps in one block, and an embedding with sparse gradients."""
    torch = program.torch
    torch.manual_seed(4)
    embed, net = torch.nn.Embedding(5000, 64, sparse=True).cuda(), torch.nn.LSTM(64, 128, 2, batch_first=True).cuda()
    rng = random.Random(4)
    for n in range(6):
        out, _ = net(embed(torch.randint(0, 5000, (8, rng.randint(5, 120)), device="cuda")))
        out.square().mean().backward()
        for parameter in (*embed.parameters(), *net.parameters()):
            parameter.grad = None
        program.step(f"step {n}")


def annotated(program):
    """Annotations and metadata beside the requests."""
    torch = program.torch
    memory, net = torch.cuda.memory, small_net(program.torch)
    for n in range(3):
        with torch.profiler.record_function(f"step {n} \u2192 <b>forward</b>"):
            if hasattr(memory, "_set_memory_metadata"):
                memory._set_memory_metadata(f"epoch 0, \u00fcbung {n}")
            loss = net(torch.randn(64, 256, device="cuda")).sum()
        with torch.profiler.record_function("backward"):
            loss.backward()
        program.step(f"step {n}")


def late(program):
    """A history that begins in the middle of the program."""
    torch = program.torch
    torch.cuda.memory._record_memory_history(enabled=None)
    net = small_net(torch)
    steps(program, net, 4)
    torch.cuda.memory._record_memory_history(**HISTORY)
    steps(program, net, 6, begin=4)


def stopped(program):
    """A history with a pause, during which changes show in the segments only."""
    torch, net = program.torch, small_net(program.torch)
    steps(program, net, 3)
    torch.cuda.memory._record_memory_history(enabled=None)
    steps(program, net, 3, batch=200, begin=3)
    program.kept = [torch.empty(3 * MIB + n, dtype=torch.uint8, device="cuda") for n in range(5)]
    torch.cuda.memory._record_memory_history(**HISTORY)
    steps(program, net, 3, begin=6)
    torch.cuda.memory._record_memory_history(enabled=None)
    steps(program, net, 3, batch=300, begin=9)


def cleared(program):
    """A history that is cleared in the middle."""
    torch, net = program.torch, small_net(program.torch)
    steps(program, net, 4)
    torch.cuda.memory._record_memory_history(**HISTORY, clear_history=True)
    steps(program, net, 4, begin=4)


def unrecorded(program):
    """No history at all: segments only."""
    program.torch.cuda.memory._record_memory_history(enabled=None, clear_history=True)
    steps(program, small_net(program.torch), 3)


def state_only(program):
    """The stacks of live blocks, and no history."""
    program.torch.cuda.memory._record_memory_history(enabled="state", stacks="python")
    steps(program, small_net(program.torch), 3)


def settings_change(program):
    """Settings that change while the program runs."""
    torch, net = program.torch, small_net(program.torch)
    steps(program, net, 3)
    torch.cuda.memory._set_allocator_settings("expandable_segments:True")
    held = [program.bytes(n * MIB) for n in (30, 5, 1)]
    steps(program, net, 3, batch=400, begin=3)
    torch.cuda.memory._set_allocator_settings("expandable_segments:False")
    steps(program, net, 3, batch=800, begin=6)
    del held
    torch.cuda.empty_cache()
    program.step("emptied")


def odd_pools(program):
    """MemPools that serve as a reserve for OOM, and MemPools whose blocks are not split."""
    torch = program.torch
    try:
        pools = [torch.cuda.MemPool(use_on_oom=True), torch.cuda.MemPool(no_split=True)]
    except TypeError as error:
        raise Lacking("such pools") from error
    program.limit(512 * MIB)
    for pool in pools:
        with torch.cuda.use_mem_pool(pool):
            program.bytes(90 * MIB)
            held = [program.bytes(n << 18) for n in (1, 7, 30)]
        del held[1]
        program.step("pool")
    live = [program.try_bytes(60 * MIB) for _ in range(9)]
    program.step("full")
    del live, held
    torch.cuda.empty_cache()
    program.step("emptied")


def threads(program):
    """Four threads, each on its own stream, that pass blocks to each other."""
    torch, shared, lock = program.torch, [], threading.Lock()

    def run(number):
        rng, live = random.Random(number), []
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(600):
                if live and rng.random() < 0.5:
                    live.pop(rng.randrange(len(live)))
                else:
                    live.append(torch.empty(rng.choice((600, 70_000, 3 * MIB)), dtype=torch.uint8, device="cuda"))
                if live and rng.random() < 0.05:
                    with lock:
                        shared.append(live.pop())
                        if len(shared) > 20:
                            shared.pop(0)

    running = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    program.step("joined")
    shared.clear()
    program.step("given back")


def graphs(program):
    """Private pools, for histories that overflow."""
    torch, net = program.torch, small_net(program.torch)
    kept = []
    for n in range(3):
        given = torch.randn(64 + 32 * n, 256, device="cuda")
        with torch.no_grad():
            net(given)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                kept.append(net(given))
        kept.append(graph)
        steps(program, net, 4, begin=4 * n)
        if n == 1:
            del kept[:2], graph
            torch.cuda.empty_cache()


def two_devices(program):
    """A net split over two GPUs with copies; the default device is empty in the end."""
    torch = program.torch
    if torch.cuda.device_count() < 2:
        raise Lacking("two GPUs")
    first, second = torch.nn.Linear(512, 2048).to("cuda:0"), torch.nn.Linear(2048, 64).to("cuda:1")
    for n in range(5):
        x = torch.randn(128 * (n + 1), 512, device="cuda:0")
        second(first(x).relu().to("cuda:1")).square().mean().backward()
        program.step(f"step {n}")
    del x


def second_device(program):
    """Everything on the second GPU, as in a process of a data-parallel training."""
    torch = program.torch
    if torch.cuda.device_count() < 2:
        raise Lacking("two GPUs")
    with torch.cuda.device(1):
        steps(program, small_net(torch), 5)


# Name: program, settings, recording options.
PROGRAMS = {
    "generate": (generate, "", STACKS),
    "compiled": (compiled, "", STACKS),
    "compiled_graphs": (compiled_graphs, "", HISTORY),
    "cudnn_benchmark": (cudnn_benchmark, "", HISTORY),
    "cudnn_benchmark_all": (
        cudnn_benchmark,
        "max_split_size_mb:64,garbage_collection_threshold:0.5,roundup_power2_divisions:4,release_lock_on_cudamalloc:True",
        HISTORY,
    ),
    "recurrent": (recurrent, "expandable_segments:True", HISTORY),
    "annotated": (annotated, "", {**STACKS, "global_record_annotations": True}),
    "late": (late, "", HISTORY),
    "stopped": (stopped, "", HISTORY),
    "cleared": (cleared, "", STACKS),
    "unrecorded": (unrecorded, "", HISTORY),
    "state_only": (state_only, "", HISTORY),
    "alloc_stacks": (recurrent, "", {**ALL_STACKS, "context": "alloc"}),
    "settings_change": (settings_change, "", HISTORY),
    "odd_pools": (odd_pools, "", HISTORY),
    "threads": (threads, "", HISTORY),
    "threads_expandable": (threads, "expandable_segments:True", HISTORY),
    "ring_graphs": (graphs, "", {**HISTORY, "max_entries": 700}),
    "ring_graphs_expandable": (graphs, "expandable_segments:True", {**HISTORY, "max_entries": 700}),
    "ring_threads": (threads, "expandable_segments:True", {**HISTORY, "max_entries": 2000}),
    "two_devices": (two_devices, "", STACKS),
    "second_device": (second_device, "expandable_segments:True", HISTORY),
}
