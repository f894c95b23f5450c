"""The allocator of pinned host memory, whose memory does not exist.

As PyTorch's, it rounds requests up to a power of two, keeps freed blocks for later requests of that
size, and calls no tracker.
"""


class Allocator:
    def __init__(self):
        self._next_address = 0x7F00_0000_0000
        #: Size and use of each block by its address.
        self._blocks = {}
        #: True while the history is recorded; only then do snapshots have the blocks.
        self.has_history = False

    def allocate(self, size):
        size = 1 << (size - 1).bit_length()
        for address, (block_size, is_used) in self._blocks.items():
            if block_size == size and not is_used:
                break
        else:
            address = self._next_address
            self._next_address += size
        self._blocks[address] = (size, True)
        return address

    def free(self, address):
        self._blocks[address] = (self._blocks[address][0], False)

    def stats(self):
        counters = {
            "allocated_bytes": sum(size for size, _ in self._blocks.values()),
            "active_bytes": sum(size for size, is_used in self._blocks.values() if is_used),
        }
        return {name: {"current": value} for name, value in counters.items()}

    def segments(self):
        return [self._segment(address) for address in self._blocks] if self.has_history else []

    def _segment(self, address):
        size, is_used = self._blocks[address]
        used = size if is_used else 0
        block = {
            "address": address, "size": size, "requested_size": size, "frames": [],
            "state": "active_allocated" if is_used else "inactive",
        }
        return {
            "device": -1, "address": address, "total_size": size, "allocated_size": used, "active_size": used,
            "requested_size": size, "stream": 0, "segment_type": "large", "segment_pool_id": (0, 0),
            "is_expandable": False, "frames": [], "blocks": [block],
        }


allocator = Allocator()
