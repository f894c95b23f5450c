"""Options, measurements and the recording, which all scripts of this folder share."""

import argparse
import contextlib
import json
import os
import statistics
import sys
import time
from pathlib import Path

# cuBLAS results are reproducible only with workspaces of a fixed size. Read when CUDA starts.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

MIB = 1 << 20
# Steps left out of the median time, because they load kernels and reserve memory.
WARM_UP_STEPS = 2


class Experiment:
    """One run of a technique's program, as a context manager.

    Reads the command line, records the block if `--record` is given, and prints one line of JSON at
    its end. PyTorch is imported when the block is entered, so that a script can set environment
    variables before. The last of `variants` is the program without the technique.
    """

    def __init__(
        self, description, variants=("with", "without"), steps=6, variant_option="--variant"
    ):
        parser = argparse.ArgumentParser(description=description.partition("\n\n")[0])
        choice = parser.add_mutually_exclusive_group()
        choice.add_argument(
            variant_option, dest="variant", choices=list(variants), default=next(iter(variants))
        )
        choice.add_argument(
            "--without", dest="variant", action="store_const", const=list(variants)[-1],
            help=f"Run without the technique: {variant_option} {list(variants)[-1]}",
        )  # fmt: skip
        parser.add_argument("--record", metavar="FILE", help="Record to this .vram file")
        parser.add_argument("--steps", type=int, default=steps, help="Steps [default: %(default)s]")
        parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
        options = parser.parse_args()
        self.technique = Path(sys.argv[0]).stem
        self.variant = options.variant
        self.is_with = options.variant != list(variants)[-1]
        self.steps = options.steps
        self.device = options.device
        self.losses = []
        # What the script measures itself; becomes part of the line of JSON.
        self.results = {}
        self._record_path = options.record
        self._session = contextlib.ExitStack()
        self._step_times_ms = []
        self._step_allocated_bytes = []

    @property
    def on_gpu(self):
        return self.device == "cuda"

    @property
    def _is_recorded(self):
        return bool(self._record_path) and self.on_gpu

    def __enter__(self):
        import torch

        self._torch = torch
        torch.manual_seed(0)
        torch.use_deterministic_algorithms(True)
        # Filling uninitialized tensors would only add work.
        torch.utils.deterministic.fill_uninitialized_memory = False
        if self.on_gpu:
            torch.cuda.init()
            self.reset_peak()
        if self._is_recorded:
            import vramscope

            self._session.enter_context(vramscope.record(self._record_path))
        elif self._record_path:
            print("--record has no effect with --device cpu", file=sys.stderr)
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            self.synchronize()
            line = self._line()
        self._session.close()
        if kind is None:
            print(json.dumps(line), flush=True)

    def each_step(self):
        """Yields the numbers of the steps, and measures each. A recording has them as the spans
        `step 1`, `step 2` and so on, which the page shows as steps."""
        for step in range(self.steps):
            self.synchronize()
            begin = time.perf_counter()
            with self._torch.profiler.record_function(f"step {step + 1}"):
                yield step
                self.synchronize()
            self._step_times_ms.append(1e3 * (time.perf_counter() - begin))
            self._step_allocated_bytes.append(self.allocated_bytes())

    def category(self, name):
        """Returns a context manager: memory that is allocated in it has this category in the
        recording. vramscope infers most categories, from modules and optimizers; this is for
        memory outside of them."""
        if not self._is_recorded:
            return contextlib.nullcontext()
        import vramscope

        return vramscope.scope(name, category=name)

    def synchronize(self):
        if self.on_gpu:
            self._torch.cuda.synchronize()

    def allocated_bytes(self):
        return self._statistic("allocated_bytes.all.current")

    def reserved_bytes(self):
        return self._statistic("reserved_bytes.all.current")

    def peak_allocated_bytes(self):
        return self._statistic("allocated_bytes.all.peak")

    def reset_peak(self):
        if self.on_gpu:
            self._torch.cuda.reset_peak_memory_stats()

    def _statistic(self, name):
        """Returns a counter of the caching allocator, or None on the CPU."""
        if not self.on_gpu:
            return None
        return self._torch.cuda.memory_stats().get(name)

    def _line(self):
        times = self._step_times_ms[WARM_UP_STEPS:] or self._step_times_ms
        return {
            "technique": self.technique,
            "variant": self.variant,
            "device": self.device,
            "gpu": self._torch.cuda.get_device_properties(0).name if self.on_gpu else None,
            "pytorch": str(self._torch.__version__),
            "peak_allocated_bytes": self.peak_allocated_bytes(),
            "peak_reserved_bytes": self._statistic("reserved_bytes.all.peak"),
            "peak_inactive_split_bytes": self._statistic("inactive_split_bytes.all.peak"),
            "end_allocated_bytes": self.allocated_bytes(),
            "end_reserved_bytes": self.reserved_bytes(),
            "device_allocations": self._statistic("num_device_alloc"),
            "step_ms": round(statistics.median(times), 3) if times else None,
            "step_allocated_bytes": self._step_allocated_bytes,
            "losses": self.losses,
            **self.results,
        }


def difference(later, earlier):
    """Returns `later - earlier`, or None without figures, as on the CPU."""
    return None if later is None or earlier is None else later - earlier


def tensor_bytes(tensors):
    """Returns the bytes of tensors, without scalars such as the step counters of optimizers."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors if tensor.dim() > 0)


def optimizer_bytes(optimizer):
    """Returns the bytes of an optimizer's state."""
    import torch

    values = (value for state in optimizer.state.values() for value in state.values())
    return tensor_bytes(value for value in values if torch.is_tensor(value))
