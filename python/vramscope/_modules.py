"""Names the program's modules (``torch.nn.Module``)."""

from ._native import tracked_objects


def all_modules(torch):
    """Returns each module in the process with its name, as ``GPT/blocks/0/attn``, and the modules
    that have parameters and are not part of another module."""
    modules = tracked_objects(torch.nn.Module)
    children = {id(child) for module in modules for child in _children(module).values()}
    names = []
    seen = set()
    roots = []
    for module in modules:
        if id(module) not in children:
            _add(module, type(module).__name__, names, seen)
            if _has_parameters(module):
                roots.append(module)
    return names, roots


def names_in(root):
    """Returns a module and each module in it with their names."""
    names = []
    _add(root, type(root).__name__, names, set())
    return names


def _children(module):
    """Returns the modules in a module by name. The copy is made at once: the program may add
    modules in another thread."""
    children = dict(module.__dict__.get("_modules", ()))
    return {name: child for name, child in children.items() if child is not None}


def _has_parameters(root):
    """Returns true if a module or one in it has parameters."""
    waiting, seen = [root], set()
    while waiting:
        module = waiting.pop()
        if id(module) not in seen:
            seen.add(id(module))
            if module.__dict__.get("_parameters"):
                return True
            waiting += _children(module).values()
    return False


def _add(root, name, names, seen):
    """Adds a module and those in it to ``names``."""
    waiting = [(root, name)]
    while waiting:
        module, path = waiting.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        names.append((module, path))
        waiting += [(child, f"{path}/{child_name}") for child_name, child in _children(module).items()]
