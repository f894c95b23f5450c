"""Asks `vramscope mcp` with the official Python client of the protocol.

    python python_client.py VRAMSCOPE

VRAMSCOPE is the command to test. The client validates every result with the
schema that the tool declares. Prints one line a protocol version. Exit status:
0 correct, 1 not.
"""

import asyncio
import json
import pathlib
import subprocess
import sys

from mcp import Client, StdioServerParameters

TESTS = pathlib.Path(__file__).resolve().parent.parent
TRAINING = "data/mlp_train.pickle.zst"
FAILED = "labelled/development/oom_fragmentation_1.pickle.gz"

# Each tool with arguments, and the same question on the command line.
CALLS = [
    ("info", {"source": TRAINING}, ["info", TRAINING]),
    (
        "table",
        {"source": TRAINING, "by": "line", "at": "end", "limit": 200},
        ["table", TRAINING, "--by", "line", "--at", "end"],
    ),
    ("diagnose", {"source": FAILED, "limit": 200}, ["diagnose", FAILED]),
    ("autopsy", {"source": FAILED, "limit": 200}, ["autopsy", FAILED]),
    ("advise", {"source": TRAINING, "capacity": "2GiB", "limit": 200}, ["advise", TRAINING, "--capacity", "2GiB"]),
    (
        "diff",
        {"a": TRAINING, "b": TRAINING, "a_moment": "100", "limit": 200},
        ["diff", f"{TRAINING}@100", TRAINING],
    ),
]


def command_output(vramscope, arguments):
    finished = subprocess.run([vramscope, *arguments, "--json"], cwd=TESTS, capture_output=True, text=True)
    assert finished.returncode in (0, 1), finished.stderr
    return json.loads(finished.stdout)


def without_paths(name, report):
    """Returns a report without the paths of its files, which the server resolves."""
    report = dict(report)
    report.pop({"info": "file", "diff": "files"}.get(name), None)
    return report


async def check(vramscope, mode):
    server = StdioServerParameters(command=vramscope, args=["mcp", "--allow", str(TESTS)])
    progress = []

    async def on_progress(done, total, message):
        progress.append((done, message))

    async with Client(server, mode=mode) as client:
        assert client.server_info.name == "vramscope"
        assert str(TESTS) in client.instructions
        tools = (await client.list_tools()).tools
        assert [tool.name for tool in tools] == [name for name, _, _ in CALLS]
        assert all(tool.output_schema and tool.annotations.read_only_hint for tool in tools)
        for name, arguments, command in CALLS:
            result = await client.call_tool(name, arguments, progress_callback=on_progress)
            assert not result.is_error, result.content
            report = dict(result.structured_content)
            assert json.loads(result.content[0].text) == report
            assert report.pop("left_out") == [], name
            report.pop("messages")
            expected = command_output(vramscope, command)
            assert without_paths(name, report) == without_paths(name, expected), name
        assert progress and all(message for _, message in progress)

        shortened = await client.call_tool("table", {"source": TRAINING, "by": "line", "limit": 1})
        assert shortened.structured_content["left_out"][0]["list"] == "devices.rows"
        refused = await client.call_tool("info", {"source": "/etc/passwd"})
        assert refused.is_error and "--allow" in refused.content[0].text
        version = client.protocol_version
    print(f"protocol {version}: {len(CALLS)} tools agree with the commands")


async def main(vramscope):
    # The handshake of every version before 2026-07-28, and what came after it.
    await check(vramscope, "legacy")
    await check(vramscope, "auto")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
