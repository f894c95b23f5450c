"""Prints the results of programs that run side by side."""

import sys
import time


def report(results):
    """Prints status (PASS or FAIL), name and text of each program, in order, and then a summary.
    Exits with status 1 if one failed."""
    start = time.monotonic()
    counts = {"PASS": 0, "FAIL": 0}
    for status, name, text in results:
        counts[status] += 1
        print(f"{status}  {name:32} {text}", flush=True)
    print(f"{counts['PASS']} passed, {counts['FAIL']} failed, in {time.monotonic() - start:.0f} s")
    sys.exit(counts["FAIL"] > 0)
