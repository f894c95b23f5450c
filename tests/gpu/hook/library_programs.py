"""Programs that reach the allocator through parts of PyTorch beside training itself: libraries with
workspaces, graphs of `torch.compile`, data loaders, other processes, and private pools.

`programs.py` lists them with its own.
"""

import threading

import torch
from torch import nn

DEVICE = "cuda"


def recurrent_network():
    """cuDNN's recurrent layers, with their workspaces and flattened weights."""
    net = nn.LSTM(64, 128, num_layers=2, batch_first=True, dropout=0.1).to(DEVICE)
    optimizer = torch.optim.RMSprop(net.parameters())
    for step in range(10):
        out, _ = net(torch.randn(8, 20 + 5 * (step % 4), 64, device=DEVICE))
        optimizer.zero_grad()
        out.square().mean().backward()
        optimizer.step()


def numerical_libraries():
    """cuFFT, cuSOLVER, cuSPARSE and sorting, with their workspaces."""
    for size in (64, 200, 333):
        a = torch.randn(size, size, device=DEVICE, dtype=torch.float64)
        torch.fft.fft2(a)
        torch.linalg.svd(a)
        torch.linalg.solve(a + size * torch.eye(size, device=DEVICE, dtype=torch.float64), a)
        sparse = (a * (a > 1)).to_sparse_csr()
        sparse @ a
        a.flatten().sort()
        torch.unique((a * 10).int())
        a.cumsum(0).topk(5)


def functional_transforms():
    """Jacobians and gradients for each sample."""
    net = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 16)).to(DEVICE)
    parameters = {name: value.detach() for name, value in net.named_parameters()}

    def output(parameters, x):
        return torch.func.functional_call(net, parameters, (x,))

    x = torch.randn(12, 16, device=DEVICE)
    torch.func.vmap(torch.func.jacrev(output, argnums=1), in_dims=(None, 0))(parameters, x)
    torch.func.vmap(torch.func.grad(lambda p, v: output(p, v).sum()), in_dims=(None, 0))(parameters, x)


def saved_on_the_host():
    """Activations in pinned host memory, hooks of gradients, and a reentrant checkpoint."""
    first, second = nn.Linear(256, 256).to(DEVICE), nn.Linear(256, 256).to(DEVICE)
    for _ in range(6):
        x = torch.randn(128, 256, device=DEVICE, requires_grad=True)
        with torch.autograd.graph.save_on_cpu(pin_memory=True):
            y = torch.relu(first(x))
        y = torch.utils.checkpoint.checkpoint(second, y, use_reentrant=True)
        y.register_hook(lambda grad: grad * 0.5)
        y.sum().backward()
        for layer in (first, second):
            layer.zero_grad(set_to_none=False)


def data_loader():
    """Batches from worker processes, copied without waiting."""
    items = torch.utils.data.TensorDataset(torch.randn(512, 64), torch.randint(0, 10, (512,)))
    loader = torch.utils.data.DataLoader(items, batch_size=48, num_workers=2, pin_memory=True)
    net = nn.Linear(64, 10).to(DEVICE)
    optimizer = torch.optim.Adam(net.parameters(), fused=True)
    for _ in range(2):
        for x, y in loader:
            x, y = x.to(DEVICE, non_blocking=True), y.to(DEVICE, non_blocking=True)
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()


def compiled_with_graphs():
    """`torch.compile` with graph trees, which roll the state of their pool back."""
    net = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Dropout(0.1), nn.Linear(512, 256)).to(DEVICE)
    fast = torch.compile(net, mode="reduce-overhead")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(12):
        loss = fast(torch.randn(64 if step % 4 else 32, 256, device=DEVICE)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        for _ in range(4):
            fast(torch.randn(64, 256, device=DEVICE))


def graphed_callables():
    """Forward and backward pass of a model as CUDA graphs."""
    net = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 128)).to(DEVICE)
    graphed = torch.cuda.make_graphed_callables(net, (torch.randn(32, 128, device=DEVICE),))
    for _ in range(5):
        graphed(torch.randn(32, 128, device=DEVICE)).sum().backward()


def graphs_with_one_pool():
    """Two graphs that share a pool, recaptured several times."""
    weight = torch.randn(512, 512, device=DEVICE)
    # Creates the handle of cuBLAS, which no capture may do.
    weight @ weight
    for size in (64, 256, 128):
        pool, graphs, kept = torch.cuda.graph_pool_handle(), [], []
        for _ in range(2):
            graph, x = torch.cuda.CUDAGraph(), torch.randn(size, 512, device=DEVICE)
            torch.cuda.synchronize()
            with torch.cuda.graph(graph, pool=pool):
                kept.append((x, torch.relu(x @ weight) @ weight))
            graphs.append(graph)
        for graph in graphs:
            graph.replay()
        torch.cuda.synchronize()
        del graphs, kept, graph, x
        if size == 256:
            torch.cuda.empty_cache()


def raw_allocations():
    """Memory without tensors, as extensions request it."""
    stream = torch.cuda.Stream()
    kept = [torch.cuda.caching_allocator_alloc(size, stream=stream) for size in (1, 1_000, 3_000_000, 40_000_000)]
    kept += [torch.cuda.caching_allocator_alloc(size) for size in (0, 511, 513)]
    for address in kept:
        torch.cuda.caching_allocator_delete(address)


def empty_cache_often():
    """Segments that are returned between requests of four sizes."""
    for size in (100_000, 5_000_000, 300, 12_000_000) * 8:
        a = torch.empty(size, device=DEVICE)
        b = torch.empty(size // 2, device=DEVICE)
        del a
        torch.cuda.empty_cache()
        del b


def shared_with_a_process():
    """A tensor that another process opens and frees."""
    context = torch.multiprocessing.get_context("spawn")
    queue, done = context.Queue(), context.Queue()
    child = context.Process(target=_receive, args=(queue, done))
    child.start()
    for size in (1_000, 2_000_000):
        tensor = torch.full((size,), 2.0, device=DEVICE)
        queue.put(tensor)
        assert done.get(timeout=120) == 2.0 * size
        del tensor
    queue.put(None)
    child.join()
    torch.cuda.ipc_collect()


def _receive(queue, done):
    while (tensor := queue.get()) is not None:
        done.put(float(tensor.sum()))
        del tensor


def memory_between_threads():
    """A thread allocates, another frees, on streams of both."""
    handed, ended = [], threading.Event()

    def free():
        while not ended.is_set() or handed:
            if handed:
                tensor = handed.pop()
                tensor.record_stream(side)
                with torch.cuda.stream(side):
                    tensor.add_(1)

    side = torch.cuda.Stream()
    thread = threading.Thread(target=free)
    thread.start()
    for number in range(600):
        handed.append(torch.empty(1000 + 997 * number, device=DEVICE))
    ended.set()
    thread.join()


def generation_with_transformers():
    """Text generation with a key-value cache that the library keeps."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=3, n_head=4, n_embd=128, vocab_size=500, n_positions=256)
    net = GPT2LMHeadModel(config).to(DEVICE).eval()
    prompt = torch.randint(0, 500, (4, 16), device=DEVICE)
    net.generate(prompt, max_new_tokens=24, do_sample=False, pad_token_id=0)
    net.generate(prompt[:2], max_new_tokens=12, num_beams=3, pad_token_id=0)


PROGRAMS = (
    recurrent_network, numerical_libraries, functional_transforms, saved_on_the_host, data_loader, compiled_with_graphs,
    graphed_callables, graphs_with_one_pool, raw_allocations, empty_cache_often, shared_with_a_process,
    memory_between_threads, generation_with_transformers,
)
#: Allocator settings of programs, beside the default.
SETTINGS = {
    "expandable_graphs": (graphs_with_one_pool, "expandable_segments:True"),
    "expandable_threads": (memory_between_threads, "expandable_segments:True,roundup_power2_divisions:4"),
    "expandable_garbage_collection": (
        empty_cache_often, "expandable_segments:True,garbage_collection_threshold:0.5,max_split_size_mb:64",
    ),
}
