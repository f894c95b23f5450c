"""Collects recordings and notes of programs.py for tests/data/categories.

    collect.py FOLDER OUT

Shortens the paths of frames, keeps what a recording needs, and writes OUT/NAME.pickle.zst and
OUT/truth.json. Needs the package zstandard.
"""

import gzip
import json
import pickle
import re
import sys
from pathlib import Path

import zstandard

#: The parts of a snapshot that a recording needs.
PARTS = ("segments", "device_traces", "allocator_settings")


def shorten(value, home):
    """Shortens the paths of all frames in a value."""
    if isinstance(value, list):
        for inner in value:
            shorten(inner, home)
    elif isinstance(value, dict):
        if "filename" in value:
            path = re.sub(
                r".*/site-packages/", "/usr/lib/python3/site-packages/", value["filename"]
            )
            path = re.sub(r"/torchinductor_\w+/", "/torchinductor_user/", path)
            value["filename"] = path.replace(home, "/home/user")
        for inner in value.values():
            shorten(inner, home)


def main():
    folder, out = map(Path, sys.argv[1:3])
    home = str(Path(__file__).resolve().parent)
    truth = {}
    for path in sorted(folder.glob("*.pickle.gz")):
        name = path.name.removesuffix(".pickle.gz")
        snapshot = pickle.loads(gzip.decompress(path.read_bytes()))
        snapshot = {part: snapshot[part] for part in PARTS if part in snapshot}
        shorten(snapshot, home)
        packed = zstandard.ZstdCompressor(19).compress(pickle.dumps(snapshot, protocol=4))
        (out / f"{name}.pickle.zst").write_bytes(packed)
        truth[name] = json.loads((folder / f"{name}.json").read_text())
    lines = [f"{json.dumps(name)}: {json.dumps(notes)}" for name, notes in truth.items()]
    (out / "truth.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
