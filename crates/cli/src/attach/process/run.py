"""Runs a program in a thread of the process that `vramscope attach` attaches to."""

import os
import stat


def open_folder(path, access, owners, parent=None):
    """Opens a folder. Fails if another user has replaced it by a folder of that name."""
    folder = os.open(path, access | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    status = os.fstat(folder)
    if status.st_uid not in owners or stat.S_IMODE(status.st_mode) & 0o022:
        os.close(folder)
        raise PermissionError(path)
    return folder


def write(folder, name, flags, text=b""):
    """Writes a file that has to be this user's own."""
    flags |= os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    file = os.open(name, flags, 0o600, dir_fd=folder)
    with open(file, "wb") as file:
        file.write(text)


def claim(folder):
    """Returns True if no other thread has run the program, and the command still wants it."""
    try:
        write(folder, "started", os.O_EXCL)
    except FileExistsError:
        return False
    return True


def read_status(process):
    """Returns the state of a process and when it started; None for both if the system hides it."""
    try:
        with open(f"/proc/{process}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None, None
    return fields[0], int(fields[19])


def has_ended(process, started):
    """Returns True if the process that started at this time has ended."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    state, start = read_status(process)
    # A process that was killed stays in state Z until its parent asks for its exit code.
    return state in (b"Z", b"X") or start not in (None, started)


def remove(path, outer, folder):
    """Removes what a command has left that was killed or could not withdraw its request."""
    for name in os.listdir(folder):
        os.remove(name, dir_fd=folder)
    # Fails if root has attached to a process of another user: the outer folder is root's.
    os.rmdir("target", dir_fd=outer)
    os.remove("start.py", dir_fd=outer)
    os.rmdir(path)


def run_in(path, outer, folder, attacher, attacher_start, program):
    """Runs the program unless another thread has, and writes the reply."""
    write(folder, "opened", os.O_APPEND, b".")
    is_first = claim(folder)
    if is_first and not has_ended(attacher, attacher_start):
        names = {"reply": ""}
        try:
            exec(compile(program, "<vramscope attach>", "exec"), names)
            status, text = "done", str(names["reply"])
        except BaseException as error:
            is_message = type(error).__name__ == "AttachError"
            status, text = "failed", str(error) if is_message else f"{type(error).__name__}: {error}"
        write(folder, "reply.part", os.O_EXCL, f"{status}\n{text}".encode("utf-8", "backslashreplace"))
        os.replace("reply.part", "reply", src_dir_fd=folder, dst_dir_fd=folder)
    is_given_up = has_ended(attacher, attacher_start) or not is_first and "withdrawn" in os.listdir(folder)
    # Once the folder is deleted, another user can create one of its name, with a file start.py. A
    # thread that has not carried out its request yet would run that file.
    if is_given_up and os.stat("opened", dir_fd=folder).st_size >= os.stat("asked", dir_fd=folder).st_size:
        remove(path, outer, folder)


def run(path, owner, attacher, attacher_start, program):
    # From here on by descriptors: another user may create a folder of this name later.
    outer = open_folder(path, os.O_PATH, (0, owner))
    try:
        folder = open_folder("target", os.O_RDONLY, (owner,), outer)
        try:
            run_in(path, outer, folder, attacher, attacher_start, program)
        finally:
            os.close(folder)
    finally:
        os.close(outer)


run(ARGUMENTS)
