"""Names the program's modules (``torch.nn.Module``)."""

import gc


def module_names(torch):
    """Returns the address and the name of each module in the process: ``GPT/blocks/0/attn``."""
    module_type = torch.nn.Module
    # `isinstance` would run code of lazy proxies.
    modules = [thing for thing in gc.get_objects() if issubclass(type(thing), module_type)]
    children = {id(child) for module in modules for child in _children(module)}
    names = []
    seen = set()
    for module in modules:
        if id(module) not in children:
            _add(module, type(module).__name__, names, seen)
    return names


def names_in(root):
    """Returns the address and the name of a module and of each module in it."""
    names = []
    _add(root, type(root).__name__, names, set())
    return names


def _children(module):
    return [child for child in module.__dict__.get("_modules", {}).values() if child is not None]


def _add(root, name, names, seen):
    """Adds a module and those in it to ``names``."""
    waiting = [(root, name)]
    while waiting:
        module, path = waiting.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        names.append((id(module), path))
        for child_name, child in module.__dict__.get("_modules", {}).items():
            if child is not None:
                waiting.append((child, f"{path}/{child_name}"))
