#!/usr/bin/env python3
"""Prints sixty names and sixty sentences of the workspace, chosen at random.

    sample.py [SEED]

The seed is the hash of the current commit unless given. A reader who sees only this list explains
each name and sentence; what is guessed wrong needs a better name or a better comment. Each is
printed with the documentation and signature of its item, and nothing else.
"""

import random
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = [*(f"crates/{path.name}" for path in sorted((ROOT / "crates").iterdir())), "collector", "viewer", "www",
           "xtask"]
SAMPLE = 60
ITEM = re.compile(
    r"^\s*(?P<vis>pub(?:\([a-z]+\))? )?(?:const |async |unsafe |extern \"C\" )*"
    r"(?P<kind>fn|struct|enum|trait|type|const|static|mod) (?P<name>[A-Za-z_][A-Za-z0-9_]*)"
)


def code_without_tests(text):
    """Returns the lines of a file without items under `#[cfg(test)]`: test modules and others."""
    kept, lines = [], iter(text.splitlines())
    for line in lines:
        match = re.match(r"(\s*)#\[cfg\((?:all\()?test\b", line)
        if not match:
            kept.append(line)
            continue
        indent = match[1]
        # The item's comment and attributes, before and after `#[cfg(test)]`, belong to it.
        while kept and re.match(indent + r"(?:///|#\[)", kept[-1]):
            kept.pop()
        # The item ends with its closing brace, or without one at its semicolon.
        for line in lines:
            if re.match(indent + r"(?:///|#\[)", line):
                continue
            if re.match(indent + r"(?:\}|\S.*(?:;|\{.*\})\s*$)", line):
                break
    return kept


def until_body(signature, kind):
    """Cuts a signature before its body or after its semicolon. Returns None if it has neither.

    A constant keeps its value up to the end of the line.
    """
    if kind in ("const", "static"):
        return signature.rstrip("{ ") if re.search(r"[{;]\s*$", signature) else None
    depth = 0
    for at, char in enumerate(signature):
        depth += (char in "([") - (char in ")]")
        if depth == 0 and char in "{;":
            return signature[:at].rstrip() if char == "{" else signature[:at + 1]
    return None


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
        source = ROOT / folder / "src"
        for path in sorted(source.rglob("*.rs")) if source.is_dir() else [ROOT / folder / "lib.rs"]:
            if "tests" in path.name:
                continue
            lines = code_without_tests(path.read_text())
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
                while until_body(signature, match["kind"]) is None and below < len(lines) and below < at + 8:
                    signature += " " + lines[below].strip()
                    below += 1
                holder = enclosing_type(lines, at)
                if holder is not None:
                    signature = until_body(signature, match["kind"]) or signature
                    yield folder, holder + match["name"], signature, docs


def sentences_of(docs):
    """Returns the sentences of a documentation, without headings and code."""
    text, is_code = [], False
    for line in docs:
        if line.startswith("```"):
            is_code = not is_code
        elif not is_code and not line.startswith("#"):
            text.append(line)
    return [one for one in re.split(r"(?<=[.:])\s+(?=[A-Z`\[])", " ".join(text)) if len(one.split()) > 3]


def main():
    seed = sys.argv[1] if len(sys.argv) > 1 else subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    generator = random.Random(seed)
    found = list(items())
    sentences = [(item, sentence) for item in found for sentence in sentences_of(item[-1])]
    print(f"seed {seed}: {len(found)} names, {len(sentences)} sentences\n")
    print("## Names\n")
    for number, (folder, name, signature, docs) in enumerate(generator.sample(found, SAMPLE), 1):
        print(f"{number}. {folder}: `{name}`")
        for line in docs:
            print(f"   {line}")
        print(f"   `{signature}`\n")
    print("## Sentences\n")
    for number, ((folder, name, signature, docs), sentence) in enumerate(generator.sample(sentences, SAMPLE), 1):
        print(f"{number}. {folder}: {sentence}")
        print(f"   of `{name}`: {' '.join(docs)}")
        print(f"   `{signature}`\n")


if __name__ == "__main__":
    main()
