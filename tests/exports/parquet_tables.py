"""Checks Parquet exports with DuckDB against `vramscope info --json`.

    python parquet_tables.py FOLDER ...

A FOLDER holds `run.parquet`, `run.lifetimes.parquet` and `info.json`. The queries of
docs/exports.md are run as printed there. Prints one line a folder. Exit status: 0 correct, 1 not.
"""

import json
import os
import pathlib
import re
import sys

import duckdb

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs" / "exports.md"


def queries():
    """Returns the queries of docs/exports.md by their first comment."""
    found = re.findall(r"```sql\n-- (.*?)\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert found, f"{DOCS} shows no query"
    return dict(found)


def one(query, *arguments):
    return duckdb.execute(query, arguments).fetchone()


def check(folder, shown):
    os.chdir(folder)
    info = json.loads(pathlib.Path("info.json").read_text())
    events, = one("SELECT count(event) FROM 'run.parquet'")
    assert events == info["events"]
    ordered, = one("SELECT bool_and(event > before) FROM "
                   "(SELECT event, lag(event) OVER () AS before FROM 'run.parquet' "
                   "WHERE event IS NOT NULL) WHERE before IS NOT NULL")
    assert ordered in (True, None)
    rows, = one("SELECT count(*) FROM 'run.lifetimes.parquet'")
    for device in info["devices"]:
        number = device["device"]
        last = one("SELECT allocated_bytes, active_bytes, reserved_bytes, requested_bytes FROM 'run.parquet' "
                   "WHERE device = ? AND event IS NOT NULL ORDER BY event DESC LIMIT 1", number)
        assert last == tuple(device[f"{name}_bytes"] for name in ("allocated", "active", "reserved", "requested")), last
        ooms, = one("SELECT count(*) FROM 'run.parquet' WHERE device = ? AND kind = 'oom'", number)
        assert ooms == device["ooms"]
        # The lifetimes' sums at the end equal the counters.
        alive = one("SELECT coalesce(sum(size) FILTER (freed_event IS NULL), 0), coalesce(sum(size), 0), count(*) "
                    "FROM 'run.lifetimes.parquet' WHERE device = ? AND completed_event IS NULL", number)
        assert alive == (device["allocated_bytes"], device["active_bytes"], device["blocks"]), alive
        began, = one("SELECT count(*) FROM 'run.lifetimes.parquet' "
                     "WHERE device = ? AND allocated_event IS NOT NULL", number)
        allocs, = one("SELECT count(*) FROM 'run.parquet' WHERE device = ? AND kind = 'alloc'", number)
        assert began == allocs, (began, allocs)
        check_moments(number)
    if info["devices"]:
        check_docs(shown, info["devices"][0])
    print(f"{folder.name}: duckdb reads {events} events, {rows} lifetimes; totals and"
          f" {len(shown)} queries of the docs agree")


def check_moments(device):
    """Checks at sampled events that the live allocations add up to the counters."""
    wrong = duckdb.execute(
        """
        SELECT e.event, e.allocated_bytes, e.active_bytes,
            coalesce(sum(l.size) FILTER (l.freed_event IS NULL OR l.freed_event > e.event), 0) AS allocated,
            coalesce(sum(l.size), 0) AS active
        FROM (SELECT * FROM 'run.parquet' WHERE device = ? AND event IS NOT NULL USING SAMPLE 50 ROWS (reservoir, 7)) e
        LEFT JOIN 'run.lifetimes.parquet' l ON l.device = e.device AND coalesce(l.allocated_event, 0) <= e.event
            AND (l.completed_event IS NULL OR l.completed_event > e.event)
        GROUP BY ALL HAVING allocated <> e.allocated_bytes OR active <> e.active_bytes
        """,
        [device],
    ).fetchall()
    assert not wrong, wrong[0]


def check_docs(shown, device):
    results = {name: duckdb.execute(query).fetchall() for name, query in shown.items()}
    largest = results["What held memory when the most was allocated, by site"]
    bytes_at_peak = sum(row[-1] for row in largest)
    most, = one("SELECT max(allocated_bytes) FROM 'run.parquet' WHERE device = 0")
    assert bytes_at_peak == most, (bytes_at_peak, most)
    # If memory was in use before the first event, the peak may be there.
    assert most == device["peak_allocated_bytes"] or not device["history_complete"]


shown = queries()
for folder in [pathlib.Path(folder).resolve() for folder in sys.argv[1:]]:
    check(folder, shown)
