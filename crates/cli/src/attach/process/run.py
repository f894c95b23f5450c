"""Runs a program in a thread of the process that `vramscope attach` attaches to."""

import os


def has_ended(process):
    """Returns True if there is no process with this id."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False


def remove(folder):
    """Removes what a command has left that was killed."""
    for name in os.listdir(folder):
        os.remove(f"{folder}/{name}")
    os.rmdir(folder)


def run(folder, attacher, program):
    # Fails if another thread has run the program, or if the command no longer wants it.
    os.close(os.open(f"{folder}/started", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    if not has_ended(attacher):
        names = {"reply": ""}
        try:
            exec(compile(program, "<vramscope attach>", "exec"), names)
            status, text = "done", str(names["reply"])
        except BaseException as error:
            is_message = type(error).__name__ == "AttachError"
            status, text = "failed", str(error) if is_message else f"{type(error).__name__}: {error}"
        with open(f"{folder}/reply.part", "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{status}\n{text}")
        os.replace(f"{folder}/reply.part", f"{folder}/reply")
    if has_ended(attacher):
        remove(folder)


run(FOLDER, ATTACHER, PROGRAM)
