"""A table of the program's objects that keeps none of them alive."""

import functools
import weakref


class ObjectTable:
    """Values by object, until the object is freed.

    Objects are found by their addresses: classes of the program may define ``__eq__`` and
    ``__hash__``. The tables of ``weakref`` call Python functions when an object is freed. The
    interpreter runs signal handlers in those, and prints what they raise instead of passing it to
    the program; so this one has no such function.
    """

    def __init__(self):
        #: By address: a weak reference to the object, and its value.
        self._entries = {}

    def __contains__(self, item):
        return self.get(item, self) is not self

    def get(self, item, default=None):
        """Returns the value of an object; ``default`` if it has none."""
        reference, value = self._entries.get(id(item), (None, None))
        return value if reference is not None and reference() is item else default

    def set(self, item, value):
        """Gives an object a value. One of a class without weak references gets none."""
        address = id(item)
        try:
            reference = weakref.ref(item, functools.partial(self._entries.pop, address))
        except TypeError:
            return
        self._entries[address] = reference, value

    def clear(self):
        """Removes all objects and returns their values."""
        entries = list(self._entries.values())
        self._entries.clear()
        return [value for _, value in entries]
