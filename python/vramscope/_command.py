"""Finds the command ``vramscope`` that was installed with this package."""

import os
import shutil
import sys
import sysconfig


def find():
    """Returns the path of the command, or None if it is missing."""
    user_scheme = sysconfig.get_preferred_scheme("user")
    folders = [
        sysconfig.get_path("scripts"), os.path.dirname(sys.executable), sysconfig.get_path("scripts", user_scheme),
    ]
    for folder in folders:
        found = shutil.which("vramscope", path=folder)
        if found:
            return found
    return shutil.which("vramscope")
