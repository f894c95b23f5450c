def load(folder):
    """Returns the module `vramscope._attach`, loaded from `folder` unless the program has it."""
    import importlib
    import importlib.util
    import sys

    class AttachError(Exception):
        pass

    if folder is not None and "vramscope" not in sys.modules:
        # `sys.path` is not changed, because other threads import modules at the same time.
        path = folder + "/vramscope"
        spec = importlib.util.spec_from_file_location(
            "vramscope", path + "/__init__.py", submodule_search_locations=[path]
        )
        package = importlib.util.module_from_spec(spec)
        sys.modules["vramscope"] = package
        try:
            spec.loader.exec_module(package)
        except BaseException:
            sys.modules.pop("vramscope", None)
            raise
    try:
        return importlib.import_module("vramscope._attach")
    except ModuleNotFoundError as error:
        if error.name not in ("vramscope", "vramscope._attach"):
            raise
        if error.name == "vramscope":
            advice = "install it there (pip install vramscope) or name its folder with --package"
            raise AttachError(f"its Python has no package vramscope: {advice}") from None
        advice = "update it and restart the program"
        raise AttachError(f"its package vramscope is too old to attach to: {advice}") from None
