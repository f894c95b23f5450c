"""The figures of a run: their keys in reports, and how pages and outputs show them."""

import math

PEAK, RESERVED = "peak_allocated_bytes", "peak_reserved_bytes"
END, END_RESERVED = "end_allocated_bytes", "end_reserved_bytes"
STATE, STEP_TIME = "optimizer_bytes", "step_ms"
INACTIVE_SPLIT = "peak_inactive_split_bytes"
# Figures of a run in the order of their rows: key in results.json, and the name of the row.
TITLES = {
    PEAK: "peak allocated",
    RESERVED: "peak reserved",
    END: "allocated at the end",
    END_RESERVED: "reserved at the end",
    INACTIVE_SPLIT: "peak inactive split",
    "activation_bytes": "activations",
    STATE: "optimizer state",
    "parameter_bytes": "parameters",
    "weight_bytes": "weights",
    "cache_bytes": "cache of keys and values",
    "overwritten_steps": "overwritten steps",
    "device_allocations": "device allocations",
    STEP_TIME: "time of a step",
}


def size(count):
    """Returns a number of bytes with its unit."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= factor:
            value = count / factor
            # Three digits, and all digits of 1000 to 1023.
            return f"{value:.3g} {unit}" if value < 1000 else f"{value:.0f} {unit}"
    return f"{count} B"


def shown(key, value):
    """Returns a figure with its unit."""
    if value is None:
        return "–"
    if key == STEP_TIME:
        return f"{value:.2f} ms"
    return size(value) if key.endswith("bytes") else str(value)


def arrow(key, figures):
    """Returns a figure without the technique and with it, such as `2 MiB → 1 MiB`."""
    values = [it.get(key) for it in figures]
    return "not measured" if None in values else " → ".join(shown(key, it) for it in values)


def relative_change(before, after):
    """Returns by which share of itself a figure changes; infinity if it was 0."""
    if before == after:
        return 0.0
    return after / before - 1 if before else math.inf


def percent(figures, key):
    """Returns a figure's relative change, such as `+12%`."""
    before, after = (it.get(key) for it in figures)
    if before is None or after is None or (after and not before):
        return "–"
    # Without the sign of a small negative change: -0.0%.
    return f"{round(relative_change(before, after), 3) + 0.0:+.1%}"
