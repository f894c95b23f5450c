"""Names the regions of ``torch.compile``, as PyTorch does: ``Torch-Compiled Region: 0/0``."""

import sys
import weakref

from ._messages import raise_if_of_handler

#: The module of PyTorch that compiles functions.
CONVERT_FRAME = "torch._dynamo.convert_frame"
#: How the names of regions begin.
PREFIX = "Torch-Compiled Region: "

_session = None
_handle = None
#: By address: a weak reference to each region's code object, and the region's name.
_regions = {}


def install(session):
    """Starts to name regions in a session, once PyTorch can compile. May be called again."""
    global _session, _handle
    if _session is not session:
        _session = session
        for address, (_, name) in list(_regions.items()):
            session.add_region(address, name)
    convert_frame = sys.modules.get(CONVERT_FRAME)
    if _handle is None and hasattr(convert_frame, "register_bytecode_hook"):
        _handle = convert_frame.register_bytecode_hook(_compiled)
        _add_compiled_before(convert_frame)


def remove():
    """Stops to name regions."""
    global _session, _handle
    _session = None
    handle, _handle = _handle, None
    if handle is not None:
        handle.remove()


def _compiled(_code, generated):
    """Called by PyTorch with each code object that it has generated."""
    try:
        region = sys.modules["torch._guards"].CompileContext.current_compile_id()
        if region is not None:
            _add(generated, f"{PREFIX}{region}")
    except Exception as error:  # The program must not notice.
        raise_if_of_handler(error)


def _add_compiled_before(convert_frame):
    """Names the regions that were compiled before this module saw PyTorch compile."""
    try:
        cache = sys.modules["torch._dynamo.eval_frame"]._debug_get_cache_entry_list
        for reference in list(convert_frame.input_codes.seen):
            code = reference()
            for entry in cache(code) if code is not None else ():
                region = getattr(entry, "compile_id", None)
                if region is not None:
                    _add(entry.code, f"{PREFIX}{region}")
    except Exception:  # Another version of PyTorch: regions are recognized by their files.
        pass


def _add(code, name):
    address = id(code)

    def forget(_):
        _regions.pop(address, None)
        session = _session
        if session is not None:
            session.remove_region(address)

    _regions[address] = weakref.ref(code, forget), name
    session = _session
    if session is not None:
        session.add_region(address, name)
