"""What ``diagnose``, ``advise`` and ``autopsy`` find in a recording, as parsed JSON."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TypedDict

from . import _command

#: Exit statuses with an answer: 1 is a negative one, such as an out-of-memory error that was found,
#: and 3 means that the recording lacks what the question needs.
_ANSWERS = (0, 1, 3)


class AnalysisError(RuntimeError):
    """A recording that cannot be read or analyzed; the message says why and what to do."""


class Finding(TypedDict):
    """A memory problem, where it comes from and what helps."""

    id: str
    severity: str
    device: int
    events: list[int]
    bytes: int
    site: str
    summary: str
    remedy: str | None
    steps_left: int | None
    checked: bool
    saves_bytes: int | None
    peak_reserved_bytes: int | None
    check: str | None


class Verdict(TypedDict):
    """What to say first about a recording."""

    summary: str
    cause: str
    remedy: str | None
    remedy_lines: list[str]
    saves_bytes: int | None
    checked: bool
    confidence: str
    device: int | None
    event: int | None
    site: str | None
    bytes: int | None


class UnansweredRule(TypedDict):
    """A rule that cannot answer, and what the recording lacks."""

    rule: str
    needs: str


class LastStep(TypedDict):
    """The reserved bytes of a device at the end of its last complete step."""

    device: int
    reserved_bytes: int
    stuck_bytes: int
    releasable_bytes: int


class Diagnosis(TypedDict):
    """What :func:`diagnose` returns."""

    status: str
    verdict: Verdict
    unknown: list[UnansweredRule]
    state: list[str]
    last_steps: list[LastStep]
    findings: list[Finding]


class Holder(TypedDict):
    """What a line of the program holds."""

    site: str
    category: str
    bytes: int
    blocks: int


class Remedy(TypedDict):
    """A change that prevents an out-of-memory error."""

    kind: str
    detail: str
    saves_bytes: int
    peak_reserved_bytes: int
    checked: bool


class FreeMemory(TypedDict):
    """Free memory at an out-of-memory error."""

    own_bytes: int
    own_largest_bytes: int
    other_stream_bytes: int
    other_stream_largest_bytes: int
    private_pool_bytes: int
    private_pool_largest_bytes: int
    other_size_class_bytes: int
    releasable_bytes: int
    pending_bytes: int


class Pin(TypedDict):
    """A live block that keeps free memory apart."""

    address: str
    bytes: int
    site: str


class Pinning(TypedDict):
    """The live blocks that keep a range apart that is large enough."""

    segment_address: str
    bytes: int
    live_bytes: int
    blocks: int
    largest: list[Pin]


class OutOfMemory(TypedDict):
    """An out-of-memory error, and the number of equal ones."""

    device: int
    event: int
    count: int
    last_event: int
    requested_bytes: int
    rounded_bytes: int
    stream: int
    pool: str
    request_site: str | None
    cause: str
    site: str
    summary: str
    pytorch_issue: int | None
    cap_bytes: int | None
    cap_at_least_bytes: int | None
    cap_below_bytes: int | None
    reserved_bytes: int
    device_free_bytes: int
    device_bytes: int | None
    outside_bytes: int | None
    outside_at_least_bytes: int
    free: FreeMemory
    pinning: Pinning | None
    holders: list[Holder]
    reproduced: bool | None
    follows: str | None
    unchanged_peak_bytes: int | None
    remedies: list[Remedy]


class Defect(TypedDict):
    """A known defect of PyTorch's allocator that wastes memory."""

    pytorch_issue: int
    device: int
    event: int
    bytes: int
    summary: str
    remedy: str
    saves_bytes: int | None


class Autopsy(TypedDict):
    """What :func:`autopsy` returns."""

    status: str
    verdict: Verdict
    ooms: list[OutOfMemory]
    omitted: int
    defects: list[Defect]


class Figures(TypedDict):
    """Figures of a recorded or simulated run."""

    peak_allocated_bytes: int
    peak_reserved_bytes: int
    ooms: int
    retries: int
    device_allocations: int
    peak_fragmentation: float


class Trial(TypedDict):
    """Allocator settings and the figures of a simulated run with them."""

    alloc_conf: str
    predicted: Figures


class BestTrial(Trial):
    """The best allocator settings."""

    saves_bytes: int
    pytorch: str


class SmallestCapacity(Trial):
    """The least memory that the program runs in."""

    capacity_bytes: int
    card: str | None


class DeviceAdvice(TypedDict):
    """The advice for one device."""

    device: int
    alloc_conf: str
    capacity_bytes: int | None
    capacity_is_estimate: bool
    unverified_from: int | None
    stops_at_gap: bool
    recorded: Figures
    floor_bytes: int
    packed_bytes: int | None
    tried: list[Trial]
    best: BestTrial
    worthwhile: bool
    simpler: Trial | None
    smallest: SmallestCapacity | None
    smallest_recorded: SmallestCapacity | None


class Advice(TypedDict):
    """What :func:`advise` returns."""

    devices: list[DeviceAdvice]


def _answer(command, path, **sizes):
    """Runs a command that prints JSON and returns the parsed object."""
    options = [f"--{name.replace('_', '-')}={size}" for name, size in sizes.items() if size is not None]
    program, path = _command.find_required(AnalysisError), os.path.expanduser(os.fspath(path))
    arguments = [program, command, "--json", *options, "--", path]
    done = subprocess.run(arguments, stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", errors="replace")
    if done.returncode in _ANSWERS:
        return json.loads(done.stdout)
    messages = done.stderr.strip().splitlines() or [f"vramscope {command} ended with status {done.returncode}"]
    raise AnalysisError(messages[-1].removeprefix("vramscope: "))


def diagnose(path: str | os.PathLike[str], *, limit_bytes: int | str | None = None) -> Diagnosis:
    """Finds the memory problems of a recording or snapshot, where they come from and what helps.

    ``limit_bytes`` is the memory limit that the recorded process ran under, in bytes or as in
    ``"40GiB"``; by default it is inferred from out-of-memory errors. ``docs/diagnose.md`` has the
    fields.
    """
    return _answer("diagnose", path, limit_bytes=limit_bytes)


def autopsy(path: str | os.PathLike[str], *, limit_bytes: int | str | None = None) -> Autopsy:
    """Explains the out-of-memory errors of a recording or snapshot, and what would have prevented
    them.

    ``limit_bytes`` is the memory limit that the recorded process ran under, in bytes or as in
    ``"40GiB"``; by default it is inferred from the errors. ``docs/autopsy.md`` has the fields.
    """
    return _answer("autopsy", path, limit_bytes=limit_bytes)


def advise(
    path: str | os.PathLike[str], *, capacity: int | str | None = None, limit_bytes: int | str | None = None
) -> Advice:
    """Finds the allocator settings that need least memory, and the smallest GPU, from the requests
    of a recording or snapshot.

    ``capacity`` is the most that the simulated allocator may reserve, in bytes or as in
    ``"40GiB"``; ``limit_bytes`` is the limit that the recorded process ran under.
    ``docs/advise.md`` has the fields.
    """
    return _answer("advise", path, capacity=capacity, limit_bytes=limit_bytes)
