#!/usr/bin/env python3
"""Runs the tests of the Python package with this interpreter; ``harness.py`` has the settings.

    python3 python/tests/run.py [-v] [NAME...]
"""

import os
import sys
import unittest

if __name__ == "__main__":
    folder = os.path.dirname(os.path.abspath(__file__))
    sys.path.insert(0, folder)
    sys.dont_write_bytecode = True
    names = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
    arguments = [argument for argument in sys.argv[1:] if argument.startswith("-")]
    loader = unittest.TestLoader()
    if names:
        loader.testNamePatterns = [f"*{name}*" for name in names]
    suite = loader.discover(folder)
    result = unittest.TextTestRunner(verbosity=2 if "-v" in arguments else 1).run(suite)
    sys.exit(not result.wasSuccessful())
