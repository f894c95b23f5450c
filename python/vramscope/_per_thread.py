"""Values that each thread of the program has for itself."""

import threading


class PerThreadList(threading.local):
    """A list of each thread."""

    def __init__(self):
        self.items = []
