"""Watches the demo's GPT train on the page, live, and compares the page's totals with the pool's.

    watch_page.py GPT VRAMSCOPE CHROMIUM [--device cuda|host] [--steps N] [--out DIR]
                  [--model OPTIONS]

GPT is the example `gpt` of `vramscope-demo`, with its OPTIONS as one argument; CHROMIUM is a
browser's executable. The page follows the training from its first step to its end. Then a second
page opens the saved recording. Both must show the bytes that the pool counted, and every event.
Prints watch.json and writes it to DIR, with pictures. The exit status is 1 if a figure differs.
"""

import argparse
import json
import shlex
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from chromium import Chromium  # noqa: E402  (the folder is no package)

STATE = "window.vramscope?.ready?.then(() => window.vramscope.state()) ?? null"
TOTALS = ("events", "lost_events", "allocated_bytes", "reserved_bytes", "active_bytes", "segments", "blocks")
SECONDS_BETWEEN_READINGS = 0.1


def wait_for_state(browser, is_reached, seconds):
    """Returns the page's state once the condition holds, or fails after some seconds."""
    deadline = time.monotonic() + seconds
    state = None
    while time.monotonic() < deadline:
        state = browser.run(STATE)
        if state and is_reached(state):
            return state
        time.sleep(SECONDS_BETWEEN_READINGS)
    raise SystemExit(f"the page did not get there within {seconds} s; it shows {state}")


def train(options, record):
    """Starts the training; returns the process and the URL of its page."""
    command = [options.gpt, "--device", options.device, "--steps", str(options.steps), *options.model]
    if record:
        command += ["--record", str(options.out / "watched.vram")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    url = process.stderr.readline().removeprefix("listening: ").strip() if record else None
    return process, url


def result(process):
    """Waits for the training and returns what it printed."""
    output, errors = process.communicate(timeout=300)
    if process.returncode != 0:
        raise SystemExit(f"the training failed: {errors}")
    return json.loads(output)


def watch(options, browser):
    """Follows a training on the page; returns the training's figures and the page's."""
    process, url = train(options, record=True)
    browser.open(url)
    readings = []
    while process.poll() is None:
        state = browser.run(STATE)
        if state:
            readings.append(state)
            if len(readings) == 30:
                browser.screenshot(options.out / "watched_live.png")
        time.sleep(SECONDS_BETWEEN_READINGS)
    trained = result(process)
    events = trained["recording"]["events"]
    final = wait_for_state(browser, lambda state: state["events"] == events, 30)
    browser.screenshot(options.out / "watched_end.png")
    shown = [reading for reading in readings if reading["live"] and reading["events"] > 0]
    if not shown:
        raise SystemExit("the page showed nothing while the training ran")
    return trained, {
        "readings": len(shown),
        "events_at_first_reading": shown[0]["events"],
        "frame_ms": statistics.median(reading["frame_ms"] for reading in shown),
        "end": {name: final[name] for name in TOTALS},
    }


def open_saved(options, browser, events):
    """Opens the saved recording in a page and returns the totals at its end."""
    command = [options.vramscope, "view", str(options.out / "watched.vram"), "--no-open", "--listen", "127.0.0.1:0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        browser.open(server.stdout.readline().removeprefix("listening: ").strip())
        wait_for_state(browser, lambda state: state["events"] == events, 60)
        browser.run(f"window.vramscope.seek({events})")
        state = wait_for_state(browser, lambda state: state["event"] == events, 30)
        browser.screenshot(options.out / "saved.png")
        return {name: state[name] for name in TOTALS}
    finally:
        server.terminate()
        server.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gpt")
    parser.add_argument("vramscope")
    parser.add_argument("chromium")
    parser.add_argument("--device", choices=("cuda", "host"), default="cuda")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=Path("watched"))
    parser.add_argument("--model", type=shlex.split, default="--precision tf32", metavar="OPTIONS")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "watched.vram").unlink(missing_ok=True)

    unwatched = result(train(options, record=False)[0])
    with Chromium(options.chromium) as browser:
        trained, page = watch(options, browser)
    with Chromium(options.chromium) as browser:
        saved = open_saved(options, browser, trained["recording"]["events"])

    pool = {name: trained[name] for name in ("allocated_bytes", "reserved_bytes")}
    pool |= {"events": trained["recording"]["events"], "lost_events": 0}
    shown = {"live": page["end"], "saved": saved}
    differences = [
        f"{where}: {name} is {figures[name]}, the pool has {expected}"
        for where, figures in shown.items()
        for name, expected in pool.items()
        if figures[name] != expected
    ]
    differences += [f"{name}: {page['end'][name]} live, {saved[name]} saved" for name in TOTALS
                    if page["end"][name] != saved[name]]
    report = {
        "steps": options.steps,
        "file_bytes": (options.out / "watched.vram").stat().st_size,
        "step_ms": {"not recorded": unwatched["step_ms"], "recorded and watched": trained["step_ms"]},
        "pool": pool,
        "page": page,
        "saved": saved,
        "differences": differences,
    }
    (options.out / "watch.json").write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
