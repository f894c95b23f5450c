"""Shows the page in a notebook: ``show`` and the magic ``%vramscope``.

Functions import what they need, because every program that is watched imports this module.
"""

import os
import sys

from . import _kernel, _watch
from ._messages import raise_if_of_handler

#: The height of the page in a notebook, in CSS pixels.
DEFAULT_HEIGHT = 640
#: What a notebook shows until its script runs: a notebook that was opened again, or printed.
OUTPUT = """<div data-vramscope="{id}"><b>vramscope</b>: {name}. Run the cell to show the page.</div>
<script>({script}
)("{id}", {page_location});</script>"""


def show(path_or_url=None, height=DEFAULT_HEIGHT):
    """Shows the page in the notebook.

    ``path_or_url`` is a recording or a snapshot, or the address of a live page (``watch().url``).
    Without it, the live page of this process is shown; ``watch()`` is called if nothing is watched
    yet. ``height`` is in CSS pixels. Outside of a notebook the page is opened in the browser.
    """
    height = int(height)
    server = None
    if path_or_url is None:
        name, url = "live", _live_url()
    elif isinstance(path_or_url, str) and path_or_url.startswith(("http://", "https://")):
        name, url = path_or_url.split("/")[2], path_or_url
    else:
        from . import _view

        server = _view.serve(path_or_url)
        name, url = os.path.basename(os.fspath(path_or_url)), server.url
    if server is not None and _kernel.is_kernel():
        _print_verdict(path_or_url)
    if _kernel.is_colab():
        _show_in_colab(name, url)
    elif _kernel.is_kernel():
        _show_in_notebook(name, url, height)
    else:
        _show_in_browser(name, url, server)


def _print_verdict(path):
    """Prints what to say first about a recording; nothing if it cannot be analyzed."""
    from . import _analyses

    try:
        print(_analyses.diagnose(path)["verdict"]["summary"])
    except _analyses.AnalysisError:
        pass


def _live_url():
    """Returns the address of this process's live page."""
    session = _watch.start_with_page()
    if not session.url:
        raise _watch.WatchError(
            "the session in progress has no page: stop it first, or start it with watch(listen=...)"
        )
    return session.url


def _show_in_notebook(name, url, height):
    """Adds the page to the cell's output. A script finds the proxy of the notebook's server."""
    import html
    import importlib.resources
    import json
    import secrets

    from IPython.display import display

    # It would end the script's element.
    page_location = json.dumps(_page_location(name, url, height)).replace("<", "\\u003c")
    script = importlib.resources.files(__package__).joinpath("_notebook.js").read_text("utf-8")
    output = OUTPUT.format(
        id=secrets.token_hex(8), name=html.escape(name), script=script.strip(), page_location=page_location
    )
    display({"text/html": output, "text/plain": f"vramscope: {name}: {url}"}, raw=True)


def _page_location(name, url, height):
    """Returns where the page is: ``port`` is None if the proxy does not reach it."""
    import urllib.parse

    parts = urllib.parse.urlsplit(url)
    is_proxied = parts.scheme == "http" and parts.hostname in ("127.0.0.1", "localhost")
    return {
        "name": name, "url": url, "height": height, "query": f"?{parts.query}" if parts.query else "",
        "port": (parts.port or 80) if is_proxied else None,
    }


def _show_in_colab(name, url):
    """Adds a link, which Colab forwards to the kernel's machine."""
    import urllib.parse

    from google.colab import output

    parts = urllib.parse.urlsplit(url)
    path = urllib.parse.urlunsplit(("", "", parts.path or "/", parts.query, ""))
    output.serve_kernel_port_as_window(parts.port, path=path, anchor_text=f"vramscope: {name}")


def _show_in_browser(name, url, server):
    """Opens the page in the browser if there is a desktop, and prints its address otherwise."""
    print(f"vramscope: {name}: {url}", flush=True)
    if os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        import webbrowser

        webbrowser.open(url)
    # The server ends with this process, so a script waits as long as the user looks at the page.
    if server is not None and not _is_interactive() and sys.stdin is not None and sys.stdin.isatty():
        print("vramscope: press Ctrl+C to continue", flush=True)
        try:
            server.wait()
        except KeyboardInterrupt:
            pass


def _is_interactive():
    return hasattr(sys, "ps1") or bool(sys.flags.interactive) or _kernel.interactive_shell() is not None


def _magic(line):
    """Shows vramscope's page in the notebook.

    ``%vramscope`` shows the live page of this kernel, and begins to watch if nothing is watched.
    ``%vramscope PATH`` shows a recording or a snapshot, ``%vramscope URL`` the live page of another
    program. ``--height 700`` sets the height in CSS pixels.
    """
    import shlex

    from IPython.core.error import UsageError
    from IPython.core.magic_arguments import MagicArgumentParser

    from ._view import ViewError

    parser = MagicArgumentParser(prog="%vramscope")
    parser.add_argument("path_or_url", nargs="?")
    parser.add_argument("--height", type=int, default=DEFAULT_HEIGHT)
    try:
        options = parser.parse_args(shlex.split(line))
        show(options.path_or_url, options.height)
    except (ValueError, ViewError, _watch.WatchError) as error:
        raise_if_of_handler(error)
        # Without the traceback, which is of no use to the user of a magic.
        raise UsageError(f"%vramscope: {error}") from None


def load_ipython_extension(shell):
    """Registers the magic: ``%load_ext vramscope``."""
    shell.register_magic_function(_magic, "line", "vramscope")


def register_magic():
    """Registers the magic if this process is IPython and the name is free."""
    shell = _kernel.interactive_shell()
    try:
        if shell is not None and shell.find_line_magic("vramscope") is None:
            load_ipython_extension(shell)
    except Exception as error:
        # Importing the package must not fail in a shell that has no magics.
        raise_if_of_handler(error)
