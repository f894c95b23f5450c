"""Programs whose memory is held for other streams, in private pools, by rounding or outside."""

from .compose import FAULT, MIB, Script, program
from .training import OPTIMIZERS, add_train_step, bookkeeping, start_bookkeeping, training


def stream_uses(draw):
    """Blocks used on a second, slower stream are freed long before their events have passed."""
    script = Script(draw, draw.choice(("Copies results in the background.", "Post-processes on a second stream.")))
    rows, columns = draw.batch(draw.int(6144, 10240, 512)), draw.choice((1024, 2048))
    compute, consume = draw.name(), draw.name()
    work = draw.int(8, 14)
    wait = "torch.cuda.current_stream().wait_stream(side)" if draw.fixed else f"values.record_stream(side){FAULT}"
    script.function(
        f"""
        def $consume(values, weights, side):
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range({work}):
                    weights = (weights @ weights) * 0.01
                total = values.sum()
            {wait}
            return total
        """,
        consume=consume,
    )
    script.function(
        f"""
        def $compute(number):
            values = torch.full(({rows}, {columns}), float(number), device=DEVICE)
            return values * 2 + 1
        """,
        compute=compute,
    )
    script.do("side = torch.cuda.Stream()")
    width = draw.batch(draw.int(5120, 6144, 512))
    script.do(f"weights = torch.randn({width}, {width}, device=DEVICE)\ntorch.cuda.synchronize()\ntotals = []")
    use = f"totals.append({consume}(values, weights, side))"
    script.loop(draw.int(14, 20), f"values = {compute}(step)\n{use}\ndel values")
    script.do("torch.cuda.synchronize()\nprint(sum(float(it) for it in totals))")
    return program(
        draw, script, "blocks held for other streams", "streams.pending", site=compute, sites=[consume, "main"],
        remedy="wait for the stream instead of record_stream", has_fix=True, bytes=rows * columns * 4 * 8,
    )  # fmt: skip


def own_pools(draw):
    """Several CUDA graphs, each with a pool of its own."""
    script = Script(draw, draw.choice(("Serves batches of several sizes.", "Replays captured graphs.")))
    script.use("from torch import nn")
    width, count = draw.choice((256, 512)), draw.int(3, 5)
    first = draw.int(16, 24)
    sizes = [draw.batch(first * 1024 * (count - index) // count) for index in range(count)]
    script.constant("ROWS", sorted(sizes, reverse=True))
    capture, replay = draw.name(), draw.name()
    pool = ", pool=pool" if draw.fixed else ""
    script.function(
        f"""
        @torch.no_grad()
        def $capture(model, rows, pool):
            inputs = torch.randn(rows, {width}, device=DEVICE)
            model(inputs)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph{pool}):{FAULT}
                outputs = model(inputs)
            return graph, inputs, outputs
        """,
        capture=capture,
    )
    body = "graph.replay()\n    return outputs.mean().item()"
    script.function(f"def $replay(graph, inputs, outputs):\n    {body}", replay=replay)
    wide = draw.choice((6, 8)) * width
    script.do(
        f"model = nn.Sequential(nn.Linear({width}, {wide}), nn.GELU(), nn.Linear({wide}, {width})).to(DEVICE)\n"
        "pool = torch.cuda.graph_pool_handle()\n"
        f"graphs = [{capture}(model, rows, pool) for rows in ROWS]\ntorch.cuda.empty_cache()"
    )
    script.loop(draw.int(3, 5), f"print([{replay}(*it) for it in graphs])")
    return program(
        draw, script, "private pools not shared", "pools.private", sites=[capture],
        remedy="one pool for all graphs", has_fix=True, bytes=2 * wide * 4 * (sum(sizes) - max(sizes)),
    )  # fmt: skip


def rounding(draw, kind=None):
    """Tensors that leave a part of each segment unused, or are rounded up by a setting."""
    kind = kind or draw.choice(("seven", "small", "streams", "divisions"))
    script = Script(draw, draw.choice(("Applies adapters.", "Keeps one table for each user.", "Runs experts.")))
    begin, apply = draw.name(), draw.name()
    conf, count = "", draw.int(40, 70)
    if kind == "seven":
        rows = draw.int(1728, 1856, 32)  # 6.75 to 7.25 MiB: two in a segment of 20 MiB
        item, used = f"torch.zeros({rows}, 1024, device=DEVICE)", rows * 4096
        waste, remedy = count // 2 * (20 * MIB - 2 * used), "expandable_segments:True"
    elif kind == "small":
        count *= 5
        size = draw.int(700, 800, 4)  # KiB: two in a segment of 2 MiB
        item, used = f"torch.zeros({size}, 256, device=DEVICE)", size * 1024
        waste, remedy = count // 2 * (2 * MIB - 2 * used), "expandable_segments:True"
    elif kind == "streams":
        count = draw.int(20, 28)
        item, used = f"torch.zeros({draw.int(300, 500, 4)}, 1024, device=DEVICE)", 400 * 4096
        waste, remedy = count * (20 * MIB - used), "fewer streams"
    else:
        count = draw.int(8, 14)
        rows = draw.int(33, 38) * 1024  # slightly above 128 MiB
        item, used = f"torch.zeros({rows}, 1024, device=DEVICE)", rows * 4096
        conf, remedy, waste = "roundup_power2_divisions:2", "no roundup_power2_divisions", count * (192 * MIB - used)
    script.constant("COUNT", count)
    if kind == "streams":
        stream = "STREAM" if draw.fixed else "torch.cuda.Stream(priority=number % 2 - 1)"
        if draw.fixed:
            script.constants.append("STREAM = torch.cuda.Stream()")
        body = f"with torch.cuda.stream({stream}):\n        return {item}{FAULT}"
    else:
        body = f"return {item}{FAULT}"
    script.function(f"def $begin(number):\n    {body}", begin=begin)
    script.function("def $apply(tables, step):\n    return float(tables[step % COUNT].sum())", apply=apply)
    script.do("tables = []")
    script.do(f"for number in range(COUNT):\n    tables.append({begin}(number))")
    script.loop(draw.int(4, 6), f"print(step, {apply}(tables, step))")
    label = {
        "seven": "rounding waste: two tensors in each segment of 20 MiB",
        "small": "rounding waste: two tensors in each segment of 2 MiB",
        "streams": "rounding waste: a nearly empty segment for each stream",
        "divisions": "rounding waste: roundup_power2_divisions",
    }[kind]
    return program(
        draw, script, label, "waste.rounding", sites=[begin], conf=conf, remedy=remedy, bytes=waste,
        has_fix=kind == "streams",
    )  # fmt: skip


OUTSIDE = '''
"""A library with its own device memory, outside of PyTorch's pool."""

import ctypes

driver = ctypes.CDLL("libcuda.so.1")


def reserve(size):
    """Returns the address of new device memory."""
    address = ctypes.c_uint64()
    status = driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size))
    if status != 0:
        raise MemoryError(f"cuMemAlloc: error {status}")
    return address.value
'''

CUPY = '''
"""A library with its own device memory, outside of PyTorch's pool."""

import cupy


def reserve(size):
    """Returns new device memory."""
    try:
        return cupy.cuda.Memory(size)
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise MemoryError(str(error)) from error
'''


def outside_growth(draw, family=None, library=None):
    """Memory of another library grows, until evaluations fail although the pool does not grow."""
    library = library or draw.choice(("driver", "cupy"))
    parts = training(draw, family)
    script, evaluate, extend = parts.script, draw.name(), draw.name()
    script.use("from native import reserve")
    step_mib, free_mib, need_mib = draw.int(384, 512, 64), 6 * 1024, draw.int(1152, 1280, 128)
    script.function(
        """
        @torch.no_grad()
        def $evaluate(rows):
            try:
                return torch.rand(rows, 1024, device=DEVICE).mean().item()
            except torch.OutOfMemoryError as error:
                print(error)
                return None
        """,
        evaluate=evaluate,
    )
    script.function(
        f"""
        def $extend(held):
            try:
                held.append(reserve({step_mib} << 20)){FAULT}
            except MemoryError as error:
                print(error)
        """,
        extend=extend,
    )
    script.do(f"print({parts.train}(model, optimizer, BATCH))\ntorch.cuda.synchronize()")
    # As a library that takes most of the device at its start.
    script.do(f"held = [reserve(torch.cuda.mem_get_info()[0] - ({free_mib} << 20))]")
    start_bookkeeping(script)
    body = f"loss = {parts.train}(model, optimizer, BATCH)\n{extend}(held)"
    body += f"\nvalue = {evaluate}(int({need_mib * 256} * 1.16**step))"
    script.loop(10, f"{body}\n{bookkeeping(draw)}")
    return program(
        draw, script, "memory outside the pool grows", "outside.growth", parts.family,
        {"native.py": (OUTSIDE if library == "driver" else CUPY).strip("\n")}, site=evaluate, sites=[extend, "reserve"],
        remedy="limit the other library", alone=True, bytes=step_mib * MIB * 6,
    )  # fmt: skip


HOLDER = '''
"""Holds device memory in a process of its own, as another program on the GPU does."""

import ctypes
import sys

driver = ctypes.CDLL("libcuda.so.1")
context, free, total = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
address = ctypes.c_uint64()
driver.cuInit(0)
driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
driver.cuCtxSetCurrent(context)
driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
size = ctypes.c_size_t(free.value - int(sys.argv[1]))
print(driver.cuMemAlloc_v2(ctypes.byref(address), size), flush=True)
sys.stdin.read()
'''


def outside_taken(draw, family=None, kind=None):
    """Another process, or another library, holds nearly all of the device."""
    kind = kind or draw.choice(("process", "library"))
    parts = training(draw, family, optimizer=draw.choice(OPTIMIZERS[:2]), train_step=False)
    script = parts.script
    # Parameters, gradients and states need four parts, activations about four more.
    free_mib = parts.family.parameter_bytes * 7 // 2 // MIB + draw.int(192, 256, 32)
    add_train_step(draw, parts)
    marked = f"{parts.loss}(model, inputs, targets)"
    script.functions[-1] = "\n".join(
        line + FAULT if line.endswith(marked) else line for line in script.functions[-1].split("\n")
    )
    if kind == "process":
        script.use("import pathlib", "import subprocess", "import sys")
        script.do(
            f"""
            here = pathlib.Path(__file__).parent
            torch.zeros(1, device=DEVICE)
            command = [sys.executable, str(here / "other.py"), str({free_mib} << 20)]
            other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            print("status of the other process:", other.stdout.readline())
            """
        )
        files = {"other.py": HOLDER.strip("\n")}
    else:
        script.use("from native import reserve")
        script.do(f"torch.cuda.synchronize()\nheld = reserve(torch.cuda.mem_get_info()[0] - ({free_mib} << 20))")
        files = {"native.py": OUTSIDE.strip("\n")}
    start_bookkeeping(script)
    body = f"loss = {parts.train}(model, optimizer, BATCH)\n{bookkeeping(draw)}\nreport(step)"
    lines = ["try:", "    for step in range(5):", *(f"        {line}" for line in body.split("\n"))]
    script.main.append("\n".join([*lines, "except torch.OutOfMemoryError as error:", "    print(error)"]))
    if kind == "process":
        script.main[-1] += "\nfinally:\n    other.kill()\n    other.wait()"
    return program(
        draw, script, f"oom: memory outside the pool took the rest ({kind})", "oom.outside", parts.family,
        files, sites=[parts.train, parts.loss], remedy="free the other memory", alone=True,
    )  # fmt: skip
