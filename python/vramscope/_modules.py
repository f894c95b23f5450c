"""Names the modules (``torch.nn.Module``) in a model."""


def names_in(root):
    """Returns a module and each module in it with their names, as ``GPT/blocks/0/attn``."""
    names = []
    seen = set()
    waiting = [(root, type(root).__name__)]
    while waiting:
        module, path = waiting.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        names.append((module, path))
        waiting += [(child, f"{path}/{child_name}") for child_name, child in _children(module).items()]
    return names


def _children(module):
    """Returns the modules in a module by name. The copy is made at once: the program may add
    modules in another thread."""
    children = dict(module.__dict__.get("_modules", ()))
    return {name: child for name, child in children.items() if child is not None}
