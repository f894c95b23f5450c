"""Finds the command ``vramscope`` that was installed with this package."""

import os
import shutil
import sys
import sysconfig

from ._messages import raise_if_of_handler


def find():
    """Returns the path of the command, or None if it is missing."""
    user_scheme = sysconfig.get_preferred_scheme("user")
    folders = [
        sysconfig.get_path("scripts"), os.path.dirname(sys.executable), sysconfig.get_path("scripts", user_scheme),
    ]
    # `pip install --target DIR` puts the package in DIR and the command in DIR/bin.
    package = os.path.dirname(os.path.abspath(__file__))
    beside = os.path.join(os.path.dirname(package), "bin")
    if _has_owner_of(package, beside):
        folders.insert(0, beside)
    for folder in folders:
        found = shutil.which("vramscope", path=folder)
        if found:
            return found
    return shutil.which("vramscope")


def _has_owner_of(package, folder):
    """Returns True if a folder belongs to the user who installed the package, to this user or to
    root: other users may create a folder ``bin`` beside a package in ``/tmp``."""
    try:
        return os.stat(folder).st_uid in (0, os.getuid(), os.stat(package).st_uid)
    except OSError as error:
        raise_if_of_handler(error)
        return False
