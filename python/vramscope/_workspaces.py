"""The size of the workspaces that PyTorch gives cuBLAS."""

import os
import re

#: Bytes on GPUs of compute capability 9 and 10, and on others.
HOPPER_BYTES = 32 << 20
OTHER_BYTES = (4096 * 2 + 16 * 8) << 10


def workspace_bytes(major):
    """Returns the bytes of a workspace on a GPU of compute capability ``major``, by the rules of
    PyTorch: the environment variable ``CUBLAS_WORKSPACE_CONFIG`` has pairs of size in KiB and
    count, as ``:4096:2:16:8``."""
    pairs = re.findall(r":(\d+):(\d+)", os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""))
    if pairs:
        return sum(int(size) * int(count) for size, count in pairs) << 10
    return HOPPER_BYTES if major in (9, 10) else OTHER_BYTES


def of_devices(torch):
    """Returns number and bytes of a workspace for each device."""
    devices = range(torch.cuda.device_count())
    return [(device, workspace_bytes(torch.cuda.get_device_properties(device).major)) for device in devices]
