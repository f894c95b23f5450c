"""What each technique must show, as a measured value and its bound."""

from collections.abc import Callable
from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True)
class Check:
    """A value computed from a technique's results by variant, and the bounds that it must keep."""

    what: str
    value: Callable
    lowest: float | None = None
    highest: float | None = None
    # True for a check of times, which mean little while other scripts run.
    is_of_times: bool = False

    def evaluate(self, results):
        """Returns the check's outcome: `passed` is None if a figure is missing."""
        try:
            value = self.value(results)
            is_high = self.lowest is None or value >= self.lowest
            passed = is_high and (self.highest is None or value <= self.highest)
        # A variant without a result, too few steps, or no figures of memory on the CPU.
        except (KeyError, TypeError, IndexError, ValueError, ZeroDivisionError):
            value, passed = None, None
        return {"what": self.what, "value": value, "bound": self.bound(), "passed": passed}

    def bound(self):
        if self.lowest == self.highest:
            return f"= {self.lowest:g}"
        if self.lowest is not None and self.highest is not None:
            return f"{self.lowest:g} to {self.highest:g}"
        return f">= {self.lowest:g}" if self.lowest is not None else f"<= {self.highest:g}"


def figure(key, variant):
    """Returns a function that reads a figure of a variant."""
    return lambda results: results[variant][key]


def ratio(key, variant, plain):
    """Returns a function that divides a figure of one variant by that of another one."""
    return lambda results: results[variant][key] / results[plain][key]


def cut(what, key, variant, plain, lowest):
    """Checks that a variant lowers a figure by at least a share."""
    share = ratio(key, variant, plain)
    return Check(f"{what} falls by this share ({variant})", lambda it: 1 - share(it), lowest)


def saved(what, key, variant, plain, unit, lowest, highest=None):
    """Checks by how many times `unit`, a figure of `plain`, the variant lowers the figure `key`."""

    def value(results):
        return (results[plain][key] - results[variant][key]) / results[plain][unit]

    return Check(what, value, lowest, highest)


def same_losses(first, second, highest=0.0):
    """Checks the largest difference of two variants' losses; bit-identical by default."""

    def value(results):
        losses = zip(results[first]["losses"], results[second]["losses"], strict=True)
        return max(abs(a - b) for a, b in losses)

    lowest = 0.0 if highest == 0.0 else None
    return Check(f"largest difference of losses, {first} to {second}", value, lowest, highest)


def losses_as_in(plain, *variants, highest=0.0):
    """Checks that several variants have the losses of `plain`."""
    return [same_losses(variant, plain, highest) for variant in variants]


def step_time(what, variant, plain, lowest=None, highest=None):
    """Checks the time of a variant's step, divided by that of another one."""
    value = ratio("step_ms", variant, plain)
    return Check(f"time of a step, {what}", value, lowest, highest, is_of_times=True)


def growth(results):
    """Returns how many bytes a step adds, from the second one on: the first one also allocates
    workspaces."""
    steps = results["step_allocated_bytes"][1:]
    return [later - earlier for earlier, later in zip(steps[:-1], steps[1:], strict=True)]


def linear(variant, least_mib, evenness=0.9):
    """Checks that allocated bytes grow by nearly equal amounts, and by how much. Small tensors grow
    less evenly, because a block keeps up to 1 MiB that is too small to split off."""
    return [
        Check(
            f"allocated MiB grow with every step ({variant})",
            lambda it: min(growth(it[variant])) / MIB,
            least_mib,
        ),
        Check(
            f"smallest growth of a step / largest ({variant})",
            lambda it: min(growth(it[variant])) / max(growth(it[variant])),
            evenness,
        ),
    ]


def flat(variant):
    """Checks that allocated bytes stay."""
    return Check(
        f"largest growth of a step in MiB ({variant})",
        lambda it: max(abs(step) for step in growth(it[variant])) / MIB,
        highest=0.1,
    )


def checkpointing():
    return [
        cut("peak allocated", "peak_allocated_bytes", "with", "without", 0.40),
        cut("memory of activations", "activation_bytes", "with", "without", 0.60),
        same_losses("with", "without"),
    ]


def share(what, key, whole, variant, lowest, highest):
    """Checks a figure of a variant, divided by another one of the same variant."""
    return Check(what, lambda it: it[variant][key] / it[variant][whole], lowest, highest)


def state_of(variant, times):
    """Checks the size of an optimizer's state."""
    what = f"optimizer state / parameters ({variant})"
    return share(what, "optimizer_bytes", "parameter_bytes", variant, times, times)


def recording_checks(name, variant):
    """Checks the recording of a variant, from what `run_all.py` reads in its tables."""
    recorded = [
        Check(
            f"share of the recorded bytes at the peak without a category ({variant})",
            lambda it: it[variant]["recording"]["unknown_share_at_peak"],
            highest=0.01,
        ),
        Check(
            f"recorded steps / steps ({variant})",
            lambda it: it[variant]["recording"]["steps"] / len(it[variant]["step_allocated_bytes"]),
            1,
            1,
        ),
    ]
    if (name, variant) == ("gradients_kept", "with"):
        recorded += [
            Check(
                "recorded gradients at the end / gradients",
                lambda it: (
                    it["with"]["recording"]["end_bytes_by_category"]["gradient"]
                    / it["with"]["gradient_bytes"]
                ),
                # Blocks are larger than the gradients in them, by less than 1 MiB each.
                1,
                1.10,
            ),
            Check(
                "share of the recorded gradients at lines of the model's forward pass",
                gradients_at_forward_lines,
                0.99,
                1,
            ),
        ]
    return recorded


def gradients_at_forward_lines(results):
    """Returns the share of the memory that only the program with kept gradients has at its end
    which is at lines of `_models.py`, the layers whose gradients it is."""
    kept, cleared = (
        results[variant]["recording"]["end_bytes_by_line"] for variant in ("with", "without")
    )
    additional = {line: kept[line] - cleared.get(line, 0) for line in kept}
    of_the_model = sum(size for line, size in additional.items() if line.startswith("_models.py:"))
    return of_the_model / sum(additional.values())


PEAK, RESERVED = "peak_allocated_bytes", "peak_reserved_bytes"
END, END_RESERVED = "end_allocated_bytes", "end_reserved_bytes"
CHECKS = {
    "inference_no_grad": [
        cut("peak allocated", PEAK, "no_grad", "with_graph", 0.40),
        cut("memory kept by the output", "kept_by_output_bytes", "no_grad", "with_graph", 0.80),
        flat("no_grad"),
        same_losses("no_grad", "with_graph"),
    ],
    "keep_outputs": [*linear("with", 50), flat("without"), same_losses("with", "without")],
    "keep_loss": [*linear("with", 50), flat("without"), same_losses("with", "without")],
    "in_place": [
        saved("peak falls by hidden tensors", PEAK, "with", "without", "hidden_bytes", 0.8, 1.1),
        Check("autograd refuses", lambda it: int(it["with"]["autograd_refuses"]), 1, 1),
        same_losses("with", "without"),
    ],
    "free_early": [
        saved("peak falls by logits tensors", PEAK, "with", "without", "logits_bytes", 0.9, 1.1),
        same_losses("with", "without"),
    ],
    "empty_cache": [
        cut("reserved at the end", END_RESERVED, "after_warm_up", "never", 0.50),
        cut("reserved at the end", END_RESERVED, "every_step", "never", 0.50),
        Check(
            "device allocations, every_step / never",
            ratio("device_allocations", "every_step", "never"),
            2,
        ),
        step_time("every_step / never", "every_step", "never", 1.05),
        *losses_as_in("never", "after_warm_up", "every_step"),
    ],
    "release_memory": [
        Check(
            "allocated after `del` / before, as a cycle keeps the trainer",
            lambda it: it["with"]["after"]["del"][0] / it["with"]["after"]["training"][0],
            0.99,
            1.0,
        ),
        Check(
            "freed by the garbage collection, in sizes of the model",
            lambda it: (
                (it["with"]["after"]["del"][0] - it["with"]["after"]["gc"][0])
                / it["with"]["model_bytes"]
            ),
            3.9,
            4.2,
        ),
        cut("reserved at the end", END_RESERVED, "with", "without", 0.50),
    ],
    "offload": [
        # Parameters, gradients and two moments. Above 4, because a block keeps up to 1 MiB that is
        # too small to split off.
        saved("peak falls by models", PEAK, "with", "without", "model_bytes", 3.8, 4.6),
        same_losses("with", "without"),
    ],
    "accumulate": [
        cut("peak allocated", PEAK, "with", "without", 0.40),
        same_losses("with", "without", 1e-5),
    ],
    "gradients_kept": [
        # Above 1, because a block keeps up to 1 MiB that is too small to split off.
        saved("end rises by gradients", END, "without", "with", "gradient_bytes", 0.95, 1.10),
        Check(
            "the third step's loss differs, as its gradients were added to the first step's",
            lambda it: abs(it["with"]["losses"][2] - it["without"]["losses"][2]),
            1e-4,
        ),
    ],
    "zero_gradients": [
        saved("peak falls by gradients", PEAK, "to_none", "to_zero", "gradient_bytes", 0.8, 1.1),
        same_losses("to_zero", "to_none"),
    ],
    "checkpoint_blocks": checkpointing(),
    "checkpoint_layers": checkpointing(),
    "mixed_precision": [
        cut("memory of activations", "activation_bytes", "bf16", "fp32", 0.40),
        cut("memory of activations", "activation_bytes", "f16", "fp32", 0.40),
        *losses_as_in("fp32", "bf16", "f16", highest=0.02),
    ],
    "int8_weights": [
        cut("memory of weights", "weight_bytes", "with", "without", 0.70),
        saved("end falls by float32 weights", END, "with", "without", "weight_bytes", 0.70),
        Check("relative error of the logits", figure("relative_error", "with"), highest=0.05),
    ],
    "adam_8bit": [
        cut("memory of optimizer state", "optimizer_bytes", "with", "without", 0.70),
        same_losses("with", "without", 0.1),
    ],
    "loading": [
        Check(
            f"peak falls by this share of the data that is not in use ({mode})",
            lambda it, mode=mode: (
                (it["eager"][PEAK] - it[mode][PEAK])
                / (it["eager"]["data_bytes"] - it["eager"]["batch_bytes"])
            ),
            0.9,
        )
        for mode in ("lazy", "generator")
    ]
    + losses_as_in("eager", "lazy", "generator"),
    "pinned_staging": [
        step_time("with / without", "with", "without", highest=0.95),
        # Negative: it rises.
        saved("peak falls by batches", PEAK, "with", "without", "batch_bytes", -2.1, 0.1),
        same_losses("with", "without"),
    ],
    "batch_search": [
        Check("out-of-memory errors", figure("out_of_memory_errors", "with"), 1),
        share("peak reserved / cap", RESERVED, "cap_bytes", "with", 0.7, 1.0),
        Check("losses after the recovery", lambda it: len(it["with"]["losses"]), 1),
    ],
    "growing_list": [
        *linear("with", 1.9, evenness=0.6),
        # All of 8 steps. Above 8, because a block of 2 MiB may keep 1 MiB more.
        saved("end falls by outputs", END, "without", "with", "output_bytes", 7.9, 12),
        flat("without"),
        same_losses("with", "without"),
    ],
    "record_stream": [
        Check("overwritten steps (with)", figure("overwritten_steps", "with"), 0, 0),
        Check("overwritten steps (without)", figure("overwritten_steps", "without"), 1),
        saved("reserved falls by tensors", RESERVED, "without", "with", "tensor_bytes", 0.9),
    ],
    "graph_pools": [
        cut("memory of the graphs", "graph_bytes", "shared_pool", "own_pools", 0.30),
        Check("largest error (shared_pool)", figure("largest_error", "shared_pool"), highest=1e-6),
        Check("largest error (own_pools)", figure("largest_error", "own_pools"), highest=1e-6),
    ],
    "variable_lengths": [
        cut("peak reserved", RESERVED, "expandable_segments", "default", 0.30),
        cut("peak reserved", RESERVED, "garbage_collection", "default", 0.15),
        cut("peak reserved", RESERVED, "roundup_power2", "default", 0.05),
        *losses_as_in("default", "expandable_segments", "max_split_size"),
        *losses_as_in("default", "garbage_collection", "roundup_power2"),
    ],
    "allocators": [
        step_time("no_caching / caching", "no_caching", "caching", 1.2),
        *losses_as_in("caching", "cuda_malloc_async", "no_caching"),
    ],
    "kv_cache": [
        saved("end rises by caches", END, "without", "with", "cache_bytes", 0.95, 1.05),
        # The cache takes about as much as the activations of the whole text that it saves.
        Check("peak after step 1, with / without", ratio(PEAK, "with", "without"), 0.6, 1.1),
        step_time("without / with", "without", "with", 1.2),
        Check("equal texts", lambda it: int(it["with"]["text"] == it["without"]["text"]), 1, 1),
    ],
    "optimizers": [
        state_of("adamw", 2),
        state_of("adam", 2),
        state_of("sgd_momentum", 1),
        state_of("sgd", 0),
    ],
}
