"""Finds the command ``vramscope`` that was installed with this package."""

import os
import shutil
import sys
import sysconfig

from ._private import PACKAGE, is_private

#: The command's name.
NAME = "vramscope"


def find():
    """Returns the path of the command, or None if it is missing."""
    user_scheme = sysconfig.get_preferred_scheme("user")
    folders = [
        sysconfig.get_path("scripts"), os.path.dirname(sys.executable), sysconfig.get_path("scripts", user_scheme),
    ]
    # `pip install --target DIR` puts the package in DIR and the command in DIR/bin.
    beside = os.path.join(os.path.dirname(PACKAGE), "bin")
    if is_private(os.path.join(beside, NAME), beside):
        folders.insert(0, beside)
    for folder in folders:
        found = shutil.which(NAME, path=folder)
        if found:
            return found
    return shutil.which(NAME)


def find_required(error):
    """Returns the path of the command; raises an error of this class if it is missing."""
    path = find()
    if path is None:
        raise error("the command vramscope is missing: install the package again (pip install vramscope)")
    return path
