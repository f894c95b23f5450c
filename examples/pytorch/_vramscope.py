"""Runs the `vramscope` command on recordings."""

import json
import shutil
import subprocess
import sys
from pathlib import Path


def default_command():
    """Returns the command beside Python, where `pip` installs it, or the one on the path."""
    beside = Path(sys.executable).parent / "vramscope"
    return str(beside) if beside.exists() else shutil.which("vramscope") or "vramscope"


def add_command_option(parser):
    """Adds the option `--vramscope` to a program's options."""
    parser.add_argument(
        "--vramscope", metavar="COMMAND", default=default_command(),
        help="The vramscope command [default: %(default)s]",
    )  # fmt: skip


def table(command, recording, by, at):
    """Returns what `vramscope table` says about a recording; raises an exception if it fails."""
    arguments = [command, "table", str(recording), "--by", by, "--at", at, "--json"]
    return json.loads(subprocess.run(arguments, capture_output=True, check=True, text=True).stdout)
