"""Programs of the harm matrix that train in many ways. Each prints its losses to the last bit.

``job.begin()`` is where a program starts to watch itself, and ``job.turn()`` where it lets the
command attach or detach, in modes that do so.
"""

import ctypes
import multiprocessing
import os
import sys
import threading
import time

import job
import torch
from torch import nn
from torch.profiler import record_function
from training_steps import DEVICE, MIB, fail_to_allocate, gpt, program, show, small_net, train, train_small

#: How long a program gives vramscope's threads in a state that is delicate, in seconds.
PAUSE = 0.3


@program
def training():
    """The usual case; the programs of the disk checks derive from it."""
    job.begin()
    train(*gpt())


def _worker(role, is_target):
    """Trains in a process of its own, which prints to a file."""
    sys.stdout = open(job.path(f"output-{role}.txt"), "w")
    torch.manual_seed(2)
    if is_target:
        job.attachable()
    train(*gpt(), turns=6 if is_target else 0)
    job.finish(role)
    sys.stdout.close()


def _spawned_worker(role, is_target):
    job.start_process()
    job.begin()
    _worker(role, is_target)


def _run_workers(context, worker, roles, target=None):
    """Runs workers at once; prints their exit codes and output."""
    processes = [context.Process(target=worker, args=(role, role == target)) for role in roles]
    for process in processes:
        process.start()
    # The command that attaches needs a main thread that runs Python code.
    while any(process.is_alive() for process in processes):
        time.sleep(0.01)
    for role, process in zip(roles, processes):
        process.join()
        print(role, "exit code", process.exitcode)
        if os.path.exists(job.path(f"output-{role}.txt")):
            with open(job.path(f"output-{role}.txt")) as file:
                print(file.read(), end="", flush=True)


@program
def fork_before_cuda():
    """Workers are forked before CUDA is used, and the parent never uses it."""
    context = multiprocessing.get_context("fork")
    job.begin()
    job.turn()
    _run_workers(context, _worker, ["worker0", "worker1"])
    job.turn()
    _run_workers(context, _worker, ["worker2", "worker3"], target="worker2")


@program
def spawn():
    context = multiprocessing.get_context("spawn")
    _run_workers(context, _spawned_worker, ["worker0", "worker1"], target="worker0")


@program
def lightning():
    try:
        import pytorch_lightning
    except ImportError:
        job.skip("no PyTorch Lightning")

    class Net(pytorch_lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = small_net()

        def training_step(self, batch, _):
            loss = self.net(batch).square().mean()
            show(loss)
            job.turn()
            return loss

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    job.begin()
    data = torch.utils.data.DataLoader(torch.randn(64, 64), batch_size=8)
    trainer = pytorch_lightning.Trainer(
        max_epochs=1, accelerator="gpu" if DEVICE == "cuda" else "cpu", devices=1, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, default_root_dir=job.FOLDER,
    )
    trainer.fit(Net(), data)


@program
def hf_trainer():
    try:
        import transformers
    except ImportError:
        job.skip("no transformers")

    class Trainer(transformers.Trainer):
        def compute_loss(self, *arguments, **keywords):
            loss = super().compute_loss(*arguments, **keywords)
            show(loss)
            job.turn()
            return loss

    job.begin()
    torch.manual_seed(3)
    configuration = transformers.GPT2Config(n_layer=2, n_head=2, n_embd=64, vocab_size=128, n_positions=64)
    tokens = torch.randint(0, 128, (32, 48))
    options = transformers.TrainingArguments(
        output_dir=job.path("trainer"), max_steps=8, per_device_train_batch_size=4, report_to=[], save_strategy="no",
        logging_strategy="no", disable_tqdm=True, use_cpu=DEVICE == "cpu",
    )
    data = [{"input_ids": row, "labels": row} for row in tokens]
    trainer = Trainer(transformers.GPT2LMHeadModel(configuration), options, train_dataset=data)
    # It prints the time that the training took.
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()


class SpannedNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x):
        with record_function("first"):
            x = torch.relu(self.first(x))
        return self.second(x)


def spanned(x: torch.Tensor) -> torch.Tensor:
    with torch.autograd.profiler.record_function("doubled"):
        y = x * 2
    return y + 1


@program
def scripted():
    job.begin()
    for number in range(3):
        job.turn()
        net = SpannedNet().to(DEVICE)
        if number == 2:
            train_small(net)
        job.turn()
        train_small(torch.jit.script(net))
        show(torch.jit.script(spanned)(torch.ones(4, device=DEVICE)).sum())


@program
def compiled():
    job.begin()
    for number in range(2):
        net = SpannedNet().to(DEVICE)
        job.turn()
        train_small(torch.compile(net, fullgraph=True), steps=6)
        job.turn()
        show(torch.compile(spanned, fullgraph=True)(torch.ones(4 + number, device=DEVICE)).sum())


@program
def compiled_backward():
    """Compiled autograd also compiles the backward passes of other threads."""
    from torch._dynamo import compiled_autograd

    job.begin()
    net = small_net().to(DEVICE)
    with compiled_autograd._enable(torch.compile(backend="eager")):
        for _ in range(4):
            train_small(net, steps=10)
            job.turn()


@program
def deleted_models():
    """Deletes models in a function with an argument, which uses CUDA for the first time, and in
    which vramscope starts: their memory is used again."""

    def train_and_delete(steps):
        for number in range(4):
            net = nn.Sequential(nn.Linear(64, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.Linear(4096, 64))
            net.to(DEVICE)
            if number == 1:
                job.begin()
            train_small(net, steps)
            job.turn()
            del net

    train_and_delete(3)


@program(needs_gpu=True)
def graph_capture():
    """A thread captures graphs in the mode in which other threads may not allocate on the device.
    Until the end there is no small block in PyTorch's own pool."""
    x = torch.ones(8 * MIB, device=DEVICE)
    x.mul_(2).add_(1)
    results, graphs = [], []

    def capture(is_captured, goes_on):
        try:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                y = x * 2
                is_captured.set()
                goes_on.wait(job.TURN_LIMIT)
                y = y + x
            graph.replay()
            torch.cuda.synchronize()
            results.append(y)
            graphs.append(graph)
        except RuntimeError as error:
            print("capture failed:", str(error).splitlines()[0])
        finally:
            is_captured.set()

    for number in range(3):
        is_captured, goes_on = threading.Event(), threading.Event()
        thread = threading.Thread(target=capture, args=(is_captured, goes_on))
        thread.start()
        is_captured.wait()
        if number == 0:
            job.begin()
        job.turn()
        time.sleep(PAUSE)
        goes_on.set()
        thread.join()
        job.turn()
    print(job.counters())
    for result in results:
        show(result.sum())
    train(*gpt(), turns=0)


class Ballast:
    """Memory of the device that PyTorch does not know."""

    SIZES = (1024 * MIB, 64 * MIB, 2 * MIB, MIB)

    def __init__(self):
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._addresses = []

    def fill(self):
        """Allocates until less than the smallest size is free."""
        for size in self.SIZES:
            address = ctypes.c_uint64()
            while self._driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)) == 0:
                self._addresses.append(address.value)

    def release(self):
        for address in self._addresses:
            self._driver.cuMemFree_v2(ctypes.c_uint64(address))
        self._addresses.clear()


def free_small_blocks():
    """Allocates every free block of PyTorch's pool of small ones, and returns the tensors."""
    sizes = [
        block["size"]
        for segment in torch.cuda.memory_snapshot() if segment["segment_type"] == "small"
        for block in segment["blocks"] if block["state"] == "inactive"
    ]
    return [torch.empty(size, dtype=torch.uint8, device=DEVICE) for size in sizes]


@program(needs_gpu=True, runs_alone=True)
def full_gpu():
    """The GPU is full when vramscope starts, and PyTorch's pool has no free small block. The
    program goes on with what its pool has, handles a failure, and then uses more."""
    # Filling new memory would need kernels that are loaded then.
    torch.utils.deterministic.fill_uninitialized_memory = False
    net, optimizer = gpt()
    train(net, optimizer, 4, turns=0, varying=False)
    # For a step that needs more than those before.
    torch.empty(64 * MIB, dtype=torch.uint8, device=DEVICE)
    torch.cuda.synchronize()
    ballast = Ballast()
    ballast.fill()
    kept = free_small_blocks()
    job.begin()
    job.turn()
    time.sleep(PAUSE)
    print(job.counters())
    del kept
    train(net, optimizer, 6, turns=3, varying=False)
    print(job.counters())
    fail_to_allocate()
    ballast.release()
    train(net, optimizer, 4, turns=1)


@program(needs_gpu=True, runs_alone=True)
def gpu_filled_while_starting():
    """The first request is large, and then the GPU is full at once."""
    torch.utils.deterministic.fill_uninitialized_memory = False
    job.begin()
    kept = torch.empty(256 * MIB, dtype=torch.uint8, device=DEVICE)
    ballast = Ballast()
    ballast.fill()
    job.turn()
    time.sleep(PAUSE)
    print(job.counters())
    job.turn()
    fail_to_allocate()
    job.turn()
    ballast.release()
    del kept
    train(*gpt(), turns=3)


@program
def default_tensor_type():
    job.begin()
    job.turn()
    torch.set_default_tensor_type(torch.cuda.FloatTensor if DEVICE == "cuda" else torch.FloatTensor)
    net = small_net()
    for _ in range(4):
        train_small(net, device=None)
        job.turn()


@program
def default_tensor_type_first():
    """The type is set, and CUDA in use, before vramscope starts."""
    torch.set_default_tensor_type(torch.cuda.FloatTensor if DEVICE == "cuda" else torch.FloatTensor)
    net = small_net()
    job.begin()
    for _ in range(4):
        job.turn()
        train_small(net, device=None)


@program
def default_device():
    job.begin()
    job.turn()
    torch.set_default_device(DEVICE)
    net = small_net()
    for _ in range(4):
        train_small(net, device=None)
        job.turn()


MODEL = """
class Model{number}(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range({layers}))

    def layer{number}(self, x, layer):
        return torch.relu(layer(x)) + x

    def forward(self, x):
        for layer in self.layers:
            x = self.layer{number}(x, layer)
        return x
"""


@program
def many_models():
    """Fifty models with code of their own, one after the other."""
    job.begin()
    for number in range(50):
        names = {"nn": nn, "torch": torch, "__name__": f"generated{number}"}
        source = MODEL.format(number=number, layers=2 + number % 4)
        exec(compile(source, f"generated{number}.py", "exec"), names)
        train_small(names[f"Model{number}"]().to(DEVICE))
        if number % 8 == 0:
            job.turn()


@program
def threads():
    """Threads allocate without regard to each other, each on a stream. At the end they hold most,
    all at the same time."""
    count = 6
    barrier = threading.Barrier(count)
    sums = [None] * count

    def work(number):
        draw = torch.Generator().manual_seed(number)
        stream = torch.cuda.Stream() if DEVICE == "cuda" else None
        with torch.cuda.stream(stream):
            kept = []
            for _ in range(400):
                size = int(torch.randint(1, 500_000, (1,), generator=draw))
                kept.append(torch.full((size,), float(number), device=DEVICE))
                if len(kept) > 8:
                    del kept[int(torch.randint(0, 8, (1,), generator=draw))]
            kept = [torch.full((3 * MIB,), float(number), device=DEVICE) for _ in range(10)]
            sums[number] = sum(float(tensor[:100].sum()) for tensor in kept)
            barrier.wait()

    job.begin()
    for _ in range(3):
        running = [threading.Thread(target=work, args=(number,)) for number in range(count)]
        for thread in running:
            thread.start()
        job.turn()
        while any(thread.is_alive() for thread in running):
            time.sleep(0.01)
        job.turn()
        print(sums, flush=True)
