"""The package's command and library, which no other user may replace."""

import os
import shutil
import unittest

import harness
from harness import ProgramTest

#: A user and a group that this user is not.
OTHER = 65534


class CommandTest(ProgramTest):
    @unittest.skipIf(os.getuid() != 0, "only root can give files to another user")
    def test_command_that_another_user_can_write_is_not_used(self):
        if harness.IS_INSTALLED:
            self.skipTest("the installed package has its own command")
        target = os.path.join(self.folder, "target")
        shutil.copytree(harness.package(), target)
        os.mkdir(os.path.join(target, "bin"))
        with open(os.path.join(target, "bin/vramscope"), "w") as file:
            file.write("#!/bin/sh\n")
        self.run_program(
            f"""
            import shutil
            from vramscope import _command

            OTHER = {OTHER}
            folder = os.path.join(os.getcwd(), "target/bin")
            package, command = os.path.join(os.getcwd(), "target/vramscope"), os.path.join(folder, "vramscope")

            def is_used(folder_mode=0o755, command_mode=0o755, folder_owner=(0, 0), command_owner=(0, 0)):
                os.chown(folder, *folder_owner)
                os.chown(command, *command_owner)
                os.chmod(folder, folder_mode)
                os.chmod(command, command_mode)
                return _command.find() == command

            assert is_used()
            assert is_used(folder_mode=0o775) and is_used(command_mode=0o775)
            assert not is_used(folder_mode=0o757) and not is_used(command_mode=0o757)
            assert not is_used(folder_mode=0o1777)
            for name in "folder", "command":
                assert not is_used(**{{f"{{name}}_owner": (OTHER, 0)}}), name
                assert is_used(**{{f"{{name}}_owner": (0, OTHER)}}), name
                assert not is_used(**{{f"{{name}}_owner": (0, OTHER), f"{{name}}_mode": 0o775}}), name
            # Code of the user who installed the package runs here already.
            os.chown(package, OTHER, OTHER)
            assert is_used(folder_owner=(OTHER, OTHER), command_owner=(OTHER, OTHER))
            os.chown(package, 0, OTHER)
            os.chmod(package, 0o775)
            assert is_used(folder_owner=(0, OTHER), folder_mode=0o775)
            os.chown(package, 0, 0)
            # A link to a folder in which others can write.
            os.mkdir("other")
            shutil.move(command, "other/vramscope")
            os.symlink(os.path.abspath("other/vramscope"), command)
            assert is_used()
            os.chmod("other", 0o777)
            assert not is_used()
            """,
            packages=[target],
        )

    def test_group_of_one_user_may_write(self):
        self.run_program(
            """
            import types
            from vramscope import _private

            def is_of_one(name="user", members=(), primary=7, uid=5, owners=frozenset([0, 5])):
                group = types.SimpleNamespace(gr_name=name, gr_mem=list(members))
                _private.grp = types.SimpleNamespace(getgrgid=lambda gid: group)
                known = {"user": types.SimpleNamespace(pw_name="user", pw_gid=primary, pw_uid=uid)}
                _private.pwd = types.SimpleNamespace(getpwnam=known.__getitem__)
                return _private._is_group_of_one(7, owners)

            assert is_of_one() and is_of_one(members=["user"])
            assert not is_of_one(name="team") and not is_of_one(members=["user", "other"])
            assert not is_of_one(primary=8) and not is_of_one(uid=6)
            """
        )
