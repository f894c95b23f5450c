"""Counts the steps of a recorded program, with the allocator's counters at each."""

import os

reports = []
# The report after which the caches are emptied, for the remedy "empty_cache before".
EMPTY_CACHE_AFTER = int(os.environ.get("LABELLED_EMPTY_CACHE_AFTER", "-1"))
# The report after which the program ends.
STOP_AFTER = int(os.environ.get("LABELLED_STOP_AFTER", "-1"))


class Stopped(Exception):
    """Ends a program after the wanted number of reports."""


def report(step):
    """Notes the end of a step."""
    import torch

    statistics = torch.cuda.memory_stats()
    reports.append(
        {
            "step": step,
            "allocated": statistics.get("allocated_bytes.all.current", 0),
            "reserved": statistics.get("reserved_bytes.all.current", 0),
            "active": statistics.get("active_bytes.all.current", 0),
            "ooms": statistics.get("num_ooms", 0),
        }
    )
    if len(reports) == EMPTY_CACHE_AFTER:
        torch.cuda.empty_cache()
    if len(reports) == STOP_AFTER:
        raise Stopped
