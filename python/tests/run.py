#!/usr/bin/env python3
"""Runs the tests of the Python package with this interpreter, several at once; ``harness.py`` has
the settings.

    python3 python/tests/run.py [-v] [--jobs N] [NAME...]
"""

import argparse
import concurrent.futures
import io
import multiprocessing
import os
import sys
import time
import unittest


def tests_in(suite):
    """Returns the tests of a suite, one by one."""
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from tests_in(test)
        else:
            yield test


def run(index):
    """Runs a test in a worker. Returns its name, how it went, in words, what it printed if it did
    not pass, and its time in seconds."""
    test, output, start = TESTS[index], io.StringIO(), time.monotonic()
    # The suite calls the set-up functions of the test's class and module.
    result = unittest.TextTestRunner(output, verbosity=0).run(unittest.TestSuite([test]))
    if not result.wasSuccessful():
        outcome, details = "FAILED", output.getvalue()
    elif result.skipped:
        outcome, details = f"skipped: {result.skipped[0][1]}", ""
    else:
        outcome, details = "ok", ""
    return test.id(), outcome, details, time.monotonic() - start


if __name__ == "__main__":
    folder = os.path.dirname(os.path.abspath(__file__))
    sys.path.insert(0, folder)
    sys.dont_write_bytecode = True
    parser = argparse.ArgumentParser()
    parser.add_argument("-v", "--verbose", action="store_true", help="list every test")
    parser.add_argument("--jobs", type=int, default=2 * (os.cpu_count() or 1), help="tests that run at once")
    parser.add_argument("names", nargs="*", help="part of a name: only these tests")
    arguments = parser.parse_args()
    loader = unittest.TestLoader()
    if arguments.names:
        loader.testNamePatterns = [f"*{name}*" for name in arguments.names]
    TESTS = sorted(tests_in(loader.discover(folder)), key=lambda test: not getattr(test, "is_long", False))

    import harness

    # Before there are workers, which would all copy it to one folder.
    harness.package()
    start, failures, skipped, times = time.monotonic(), [], 0, []
    # Forked, so that workers have what is imported. A worker runs many tests.
    context = multiprocessing.get_context("fork")
    with concurrent.futures.ProcessPoolExecutor(arguments.jobs, mp_context=context) as workers:
        waiting = [workers.submit(run, index) for index in range(len(TESTS))]
        for done in concurrent.futures.as_completed(waiting):
            name, outcome, details, seconds = done.result()
            times.append((seconds, name))
            skipped += outcome.startswith("skipped")
            if outcome == "FAILED":
                failures.append(name)
            if details or arguments.verbose:
                print(f"{name} ... {outcome}\n{details}".rstrip(), file=sys.stderr, flush=True)
    longest = ", ".join(f"{name} {seconds:.0f} s" for seconds, name in sorted(times, reverse=True)[:5])
    print(f"longest: {longest}", file=sys.stderr)
    counts = f"{len(TESTS)} tests, {skipped} skipped, {len(failures)} failed"
    print(f"{counts}, in {time.monotonic() - start:.0f} s", file=sys.stderr)
    for name in failures:
        print(f"FAILED: {name}", file=sys.stderr)
    sys.exit(bool(failures) or not TESTS)
