"""The reference for the demo's GPT: trains from its weights and tokens; prints losses and times.

    compare_gpt.py WEIGHTS.safetensors TOKENS [--precision fp32|tf32|bf16] [--steps N]
                   [--low-precision-softmax] [--profile]

TOKENS are little-endian 16-bit numbers, step by step; each step has `--batch` sequences of one
token more than the model's length. The sizes of the model follow from the weights, except for the
number of heads. With `--profile`, prints the calls, memory and times of each operation instead.
"""

import argparse
import contextlib
import json
import statistics
import time

import torch
from _models import Gpt, GptConfig, gpt_loss

DTYPES = {"F32": torch.float32}
WARM_UP_STEPS = 5
PROFILED_STEPS = 3


def read_safetensors(path):
    """Returns the tensors of a file by name; needs no package."""
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        data = bytearray(file.read())
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        if entry["dtype"] not in DTYPES:
            raise SystemExit(f"{path}: {name} is {entry['dtype']}: only F32 weights can be read")
        begin, end = entry["data_offsets"]
        values = torch.frombuffer(data[begin:end], dtype=DTYPES[entry["dtype"]])
        tensors[name] = values.view(entry["shape"])
    return tensors


def read_tokens(path, batch, length):
    """Returns the tokens as int64, with the shape [steps, batch, length + 1]."""
    with open(path, "rb") as file:
        tokens = torch.frombuffer(bytearray(file.read()), dtype=torch.uint16).to(torch.int64)
    if tokens.numel() == 0 or tokens.numel() % (batch * (length + 1)):
        raise SystemExit(
            f"{path} has {tokens.numel()} tokens: steps have {batch} sequences of {length + 1}"
        )
    return tokens.view(-1, batch, length + 1)


def load(path, heads, low_precision_softmax):
    """Returns a GPT with a file's weights."""
    weights = read_safetensors(path)
    vocabulary, width = weights["tokens.weight"].shape
    layers = sum(name.endswith(".qkv.weight") for name in weights)
    length = weights["positions.weight"].shape[0]
    sizes = (vocabulary, layers, width, heads, length)
    model = Gpt(GptConfig(*sizes, low_precision_softmax=low_precision_softmax))
    # Strict: a missing or unknown name is an error.
    model.load_state_dict(weights)
    return model


class Training:
    def __init__(self, options):
        self.device, self.precision = options.device, options.precision
        torch.backends.cuda.matmul.allow_tf32 = options.precision == "tf32"
        torch.backends.cudnn.allow_tf32 = options.precision == "tf32"
        model = load(options.weights, options.heads, options.low_precision_softmax)
        self.model = model.to(self.device)
        # One group: the weight decay applies to all parameters, biases and norms included.
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=3e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1
        )

    def step(self, tokens):
        """Makes a step and returns its loss, a tensor."""
        # Before the forward pass, so that its peak does not include the last gradients.
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self.device, torch.bfloat16, enabled=self.precision == "bf16"):
            loss = gpt_loss(self.model, tokens)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def synchronize(self):
        if self.device == "cuda":
            torch.cuda.synchronize()


def train(training, tokens, steps):
    """Returns losses, times and memory of steps; tokens repeat if the file has fewer steps."""
    losses, times = [], []
    if training.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    for step in range(steps):
        batch = tokens[step % len(tokens)].to(training.device)
        training.synchronize()
        begin = time.perf_counter()
        loss = training.step(batch)
        training.synchronize()
        times.append(1e3 * (time.perf_counter() - begin))
        losses.append(loss.item())
    has_memory = training.device == "cuda"
    return {
        "precision": training.precision,
        "device": torch.cuda.get_device_name() if has_memory else "cpu",
        "torch": torch.__version__,
        "steps": steps,
        "parameters": sum(it.numel() for it in training.model.parameters()),
        "step_ms": round(statistics.median(times[WARM_UP_STEPS:] or times), 4),
        "peak_allocated_bytes": torch.cuda.max_memory_allocated() if has_memory else None,
        "peak_reserved_bytes": torch.cuda.max_memory_reserved() if has_memory else None,
        "losses": losses,
    }


def profile(training, tokens):
    """Returns calls, memory and time of each operation, over some steps after a warm-up."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if training.device == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    batches = [it.to(training.device) for it in tokens[:PROFILED_STEPS]]
    for batch in batches:
        training.step(batch)
    training.synchronize()
    with torch.profiler.profile(activities=activities, profile_memory=True) as profiler:
        for batch in batches:
            training.step(batch)
        training.synchronize()
    operations = [
        {
            "name": event.key,
            "calls": event.count,
            # Without the operations that it calls; frees count as negative.
            "self_device_bytes": event.self_device_memory_usage,
            "device_bytes": event.device_memory_usage,
            "self_cpu_bytes": event.self_cpu_memory_usage,
            "self_device_us": round(event.self_device_time_total, 1),
            "device_us": round(event.device_time_total, 1),
            "self_cpu_us": round(event.self_cpu_time_total, 1),
        }
        for event in profiler.key_averages()
        # `[memory]` are frees and requests outside of all operations.
        if event.key.startswith(("aten::", "[memory]"))
    ]
    memory = "self_device_bytes" if training.device == "cuda" else "self_cpu_bytes"
    operations.sort(key=lambda it: -abs(it[memory]))
    return {"precision": training.precision, "steps": len(batches), "operations": operations}


def recording(path):
    """Returns a context manager that records to a file, or does nothing without one."""
    if path is None:
        return contextlib.nullcontext()
    import vramscope

    return vramscope.record(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("weights", help="Initial weights (.safetensors, float32)")
    parser.add_argument("tokens", help="Training tokens (little-endian 16-bit numbers)")
    parser.add_argument("--precision", choices=["fp32", "tf32", "bf16"], default="fp32")
    parser.add_argument(
        "--low-precision-softmax",
        action="store_true",
        help="Under bf16, compute the softmax in bf16, as the demo does",
    )
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--profile", action="store_true", help="Print the operations of 3 steps")
    parser.add_argument("--record", metavar="FILE", help="Record to this .vram file")
    options = parser.parse_args()
    with recording(options.record):
        training = Training(options)
        length = training.model.config.length
        tokens = read_tokens(options.tokens, options.batch, length)
        result = profile(training, tokens) if options.profile else None
        print(json.dumps(result or train(training, tokens, options.steps)))


if __name__ == "__main__":
    main()
