"""``python -m vramscope SCRIPT…``: runs a script and watches PyTorch's GPU memory in it."""

import argparse
import runpy
import sys

from ._ranks import watch


def main():
    parser = argparse.ArgumentParser(
        prog="python -m vramscope", description="Run a Python script and watch PyTorch's GPU memory in it."
    )
    parser.add_argument("--listen", metavar="ADDR", help="address of the page (default: 127.0.0.1:7791)")
    parser.add_argument("--record", metavar="FILE", help="also write the recording to this file")
    parser.add_argument("--stacks", choices=["python", "all", "none"], default="python", help="call stacks to record")
    parser.add_argument("-m", dest="module", action="store_true", help="SCRIPT is the name of a module")
    parser.add_argument("script", metavar="SCRIPT")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGUMENTS")
    options = parser.parse_args()
    session = watch(options.listen, options.record, None if options.stacks == "none" else options.stacks)
    # The script's own watch() and record() use this session.
    session.starter = "python -m vramscope"
    sys.argv = [options.script, *options.arguments]
    try:
        if options.module:
            runpy.run_module(options.script, run_name="__main__", alter_sys=True)
        else:
            import os

            sys.path.insert(0, os.path.dirname(os.path.abspath(options.script)))
            runpy.run_path(options.script, run_name="__main__")
    finally:
        session._end()


if __name__ == "__main__":
    main()
