#!/usr/bin/env python3
"""Prints fifty public items and fifty internal names of the workspace, chosen at random.

    sample.py [SEED]

The seed is the hash of the current commit unless given. A reader who sees only this list explains
each item; what is guessed wrong needs a better name or a better comment. Public items are printed
with their own documentation, internal names with their own comment and signature.
"""

import random
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ["crates/trace", "crates/pool", "crates/formats", "crates/cli", "crates/pluggable", "crates/demo",
           "collector", "viewer"]
ITEM = re.compile(
    r"^\s*(?P<vis>pub(?:\([a-z]+\))? )?(?:const |async |unsafe |extern \"C\" )*"
    r"(?P<kind>fn|struct|enum|trait|type|const|static|mod) (?P<name>[A-Za-z_][A-Za-z0-9_]*)"
)


def code_without_tests(text):
    """Cuts a file at its test module."""
    return re.split(r"^#\[cfg\((?:all\()?test", text, maxsplit=1, flags=re.M)[0]


def enclosing_type(lines, at):
    """Returns the type whose `impl` or `trait` block holds line `at`, or an empty string.

    Returns None inside `impl Trait for Type`: those items are documented at the trait.
    """
    indent = len(lines[at]) - len(lines[at].lstrip())
    for line in reversed(lines[:at]):
        if line.strip() and len(line) - len(line.lstrip()) < indent:
            if re.match(r"\s*(?:unsafe )?impl\b.* for ", line):
                return None
            prefix = r"\s*(?:pub(?:\([a-z]+\))? )?(?:unsafe )?"
            match = re.match(prefix + r"(?:impl|trait)(?:<[^>]*>)? (\w+)", line)
            return match[1] + "::" if match else ""
    return ""


def items():
    for folder in FOLDERS:
        for path in sorted((ROOT / folder / "src").rglob("*.rs")):
            if "tests" in path.name:
                continue
            lines = code_without_tests(path.read_text()).splitlines()
            for at, line in enumerate(lines):
                match = ITEM.match(line)
                if not match or match["name"] in ("main", "fmt", "drop", "from", "default", "new", "tests"):
                    continue
                if match["kind"] == "mod" or line.lstrip().startswith("//"):
                    continue
                docs = []
                above = at - 1
                while above >= 0 and re.match(r"^\s*(///|#\[|//)", lines[above]):
                    if not lines[above].lstrip().startswith("#["):
                        docs.insert(0, re.sub(r"^\s*//[/!]?\s?", "", lines[above]))
                    above -= 1
                signature = line.strip()
                below = at + 1
                while not re.search(r"[{;]\s*$", signature) and below < len(lines) and below < at + 8:
                    signature += " " + lines[below].strip()
                    below += 1
                public = (match["vis"] or "").strip() == "pub"
                holder = enclosing_type(lines, at)
                if holder is not None:
                    yield public, folder, holder + match["name"], signature.rstrip("{ "), docs


def main():
    seed = sys.argv[1] if len(sys.argv) > 1 else subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    generator = random.Random(seed)
    found = list(items())
    public = [item for item in found if item[0]]
    internal = [item for item in found if not item[0]]
    print(f"seed {seed}: {len(public)} public items, {len(internal)} internal names\n")
    for title, group in (("Public items", public), ("Internal names", internal)):
        print(f"## {title}\n")
        for number, (_, folder, name, signature, docs) in enumerate(generator.sample(group, 50), 1):
            print(f"{number}. {folder}: `{name}`")
            for line in docs:
                print(f"   {line}")
            print(f"   `{signature}`\n")


if __name__ == "__main__":
    main()
