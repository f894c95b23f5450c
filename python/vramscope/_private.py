"""Says whether other users of the machine can change what this package runs or loads."""

import grp
import os
import pwd
import stat

from ._messages import raise_if_of_handler

#: The folder of this package.
PACKAGE = os.path.dirname(os.path.abspath(__file__))


def is_private(path, root):
    """Returns True if only root, this user, and users who can also change the package can change a
    file and the folders from ``root`` down to it. The package's code runs here already; its owner,
    and a group that may write to it, can change it. Other users may create files beside a package
    in ``/tmp``."""
    target = os.path.realpath(path)
    paths = [target, os.path.dirname(target), root]
    folder = os.path.dirname(path)
    while folder != root and folder.startswith(os.path.join(root, "")):
        paths.append(folder)
        folder = os.path.dirname(folder)
    try:
        package = os.stat(PACKAGE)
        owners = {0, os.getuid(), package.st_uid}
        # Containers of arbitrary users let the group of root write.
        groups = {0, package.st_gid} if package.st_mode & stat.S_IWGRP else {0}
        return all(_is_writable_only_by(owners, groups, path) for path in paths)
    except OSError as error:
        raise_if_of_handler(error)
        return False


def _is_writable_only_by(owners, groups, path):
    """Returns True if a file or folder is that of one of the users, and only they and the groups
    can write to it."""
    status = os.stat(path)
    if status.st_uid not in owners or status.st_mode & stat.S_IWOTH:
        return False
    return not status.st_mode & stat.S_IWGRP or status.st_gid in groups or _is_group_of_one(status.st_gid, owners)


def _is_group_of_one(gid, owners):
    """Returns True if only one of the users is in a group: by convention, it has the user's name.
    Systems with such groups let them write (umask 002)."""
    try:
        group = grp.getgrgid(gid)
        owner = pwd.getpwnam(group.gr_name)
    except KeyError:
        return False
    return owner.pw_gid == gid and owner.pw_uid in owners and set(group.gr_mem) <= {owner.pw_name}
