"""Checks Perfetto exports with Perfetto's own messages against `vramscope info --json`.

    python perfetto_trace.py FOLDER ...

A FOLDER holds `run.pftrace` and `info.json`. Like Perfetto's trace processor it sorts by
time and keeps a stack of open slices for each track and the last value of each counter. Prints one
line a folder. Exit status: 0 correct, 1 not.
"""

import collections
import json
import pathlib
import sys

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto

# Generated message code keeps unknown fields silently, so their absence is checked.
from google.protobuf import unknown_fields


def known(message):
    """Fails if a message or one inside it has a field that Perfetto does not define."""
    unknown = unknown_fields.UnknownFieldSet(message)
    assert len(unknown) == 0, f"{message.DESCRIPTOR.name} has an unknown field {unknown[0].field_number}"
    for field, value in message.ListFields():
        if field.message_type:
            for part in value if field.is_repeated else [value]:
                known(part)


class Reader:
    def __init__(self, packets):
        self.tracks = {}
        self.names, self.keys, self.texts = {}, {}, {}
        self.counters, self.peaks = collections.defaultdict(list), collections.Counter()
        self.open = collections.defaultdict(list)
        self.slices = []
        self.instants = []
        self.deepest = collections.Counter()
        events = []
        for number, packet in enumerate(packets):
            if number < 100:
                known(packet)
            assert packet.trusted_packet_sequence_id == 1
            assert (packet.sequence_flags & 1 != 0) == (number == 0), "interned data is cleared once, at the start"
            self.intern(packet.interned_data)
            if packet.HasField("track_descriptor"):
                self.track(packet.track_descriptor)
            if packet.HasField("track_event"):
                events.append((packet.timestamp, self.resolve(packet)))
        # Python's sort keeps the order of equals, as Perfetto's does.
        events.sort(key=lambda event: event[0])
        for time, event in events:
            self.event(time, *event)

    def intern(self, data):
        for names, entries, text in (
            (self.names, data.event_names, "name"),
            (self.keys, data.debug_annotation_names, "name"),
            (self.texts, data.debug_annotation_string_values, "str"),
        ):
            for entry in entries:
                assert entry.iid not in names, "an id is defined once"
                names[entry.iid] = getattr(entry, text)

    def track(self, track):
        assert track.uuid not in self.tracks
        assert track.HasField("process") != track.HasField("parent_uuid")
        assert track.HasField("process") or track.parent_uuid in self.tracks
        self.tracks[track.uuid] = track

    def resolve(self, packet):
        event = packet.track_event
        assert event.track_uuid in self.tracks, "a track is described before its first event"
        assert not event.name_iid or packet.sequence_flags & 2
        arguments = {}
        for argument in event.debug_annotations:
            value = getattr(argument, argument.WhichOneof("value"))
            is_interned = argument.HasField("string_value_iid")
            arguments[self.keys[argument.name_iid]] = self.texts[value] if is_interned else value
        name = self.names[event.name_iid] if event.name_iid else None
        return event.type, event.track_uuid, name, arguments, event.counter_value

    def event(self, time, kind, track, name, arguments, value):
        Kind = proto.TrackEvent
        is_counter = self.tracks[track].HasField("counter")
        assert is_counter == (kind == Kind.TYPE_COUNTER)
        if is_counter:
            self.counters[track].append((time, value))
            self.peaks[track] = max(self.peaks[track], value)
        elif kind == Kind.TYPE_SLICE_BEGIN:
            assert name
            self.open[track].append((time, name, arguments))
            self.deepest[track] = max(self.deepest[track], len(self.open[track]))
        elif kind == Kind.TYPE_SLICE_END:
            begun, name, arguments = self.open[track].pop()
            self.slices.append((track, begun, time, name, arguments))
        else:
            assert kind == Kind.TYPE_INSTANT and name
            self.instants.append((track, time, name, arguments))

    def process(self, track):
        while not self.tracks[track].HasField("process"):
            track = self.tracks[track].parent_uuid
        return self.tracks[track].process.pid - 1

    def under(self, track):
        """Returns the name of the parent track."""
        return self.tracks[self.tracks[track].parent_uuid].name


def check(folder):
    info = json.loads((folder / "info.json").read_text())
    trace = proto.Trace()
    trace.ParseFromString((folder / "run.pftrace").read_bytes())
    reader = Reader(trace.packet)
    allocations = 0
    for device in info["devices"]:
        mine = [track for track in reader.tracks if reader.process(track) == device["device"]]
        counters = {reader.tracks[track].name: track for track in mine if reader.tracks[track].HasField("counter")}
        for name in ("allocated", "active", "reserved", "requested"):
            counter = counters[f"{name} bytes"]
            assert reader.tracks[counter].counter.unit == proto.CounterDescriptor.UNIT_SIZE_BYTES
            assert reader.counters[counter][-1][1] == device[f"{name}_bytes"], name
            if name in ("allocated", "reserved"):
                assert reader.peaks[counter] == device[f"peak_{name}_bytes"], name
        lanes = [
            track for track in mine if reader.tracks[track].parent_uuid and reader.under(track) == "allocations by site"
        ]
        for lane in lanes:
            assert reader.deepest[lane] == 1, "allocations in a lane do not overlap"
            assert len(reader.open[lane]) <= 1
        keys = {}
        for lane in lanes:
            key = reader.tracks[lane].sibling_merge_key_int
            assert keys.setdefault(key, reader.tracks[lane].name) == reader.tracks[lane].name
        open_bytes = sum(arguments["bytes"] for lane in lanes for _, _, arguments in reader.open[lane])
        left_out = [
            arguments for track, _, name, arguments in reader.instants
            if track in mine and name == "allocations without a slice"
        ]
        if not left_out:
            assert open_bytes == device["active_bytes"], "open slices are the active blocks"
            allocations += check_sums(reader, set(lanes), dict(reader.counters[counters["active bytes"]]))
        ooms = [track for track, _, name, _ in reader.instants if track in mine and name == "out of memory"]
        assert len(ooms) == device["ooms"]
    slices = len(reader.slices) + sum(map(len, reader.open.values()))
    print(f"{folder.name}: perfetto reads {len(trace.packet)} packets, {len(reader.tracks)} tracks, {slices} slices,"
          f" {len(reader.instants)} instants; counters and {allocations} allocations agree")


def check_sums(reader, lanes, active_bytes):
    """Checks at each time that the open slices add up to the active bytes; returns their number."""
    steps = []
    for track, begun, ended, _, arguments in reader.slices:
        if track in lanes:
            assert ended >= begun
            steps += [(begun, arguments["bytes"]), (ended, -arguments["bytes"])]
    for lane in lanes:
        steps += [(begun, arguments["bytes"]) for begun, _, arguments in reader.open[lane]]
    # Several events may share a time: the sum and the counter are compared after the last.
    by_time = collections.Counter()
    for time, step in steps:
        by_time[time] += step
    active = 0
    for time in sorted(by_time):
        active += by_time[time]
        assert active == active_bytes.get(time, active), f"at {time}: {active} in slices, {active_bytes[time]} counted"
    return sum(1 for _, step in steps if step > 0)


for folder in sys.argv[1:]:
    check(pathlib.Path(folder))
