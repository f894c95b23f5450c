"""Detects the kernel of a notebook, without importing IPython."""

import sys

from ._messages import raise_if_of_handler


def interactive_shell():
    """Returns IPython's shell in this process; None if the program does not run in IPython."""
    ipython = sys.modules.get("IPython")
    try:
        return ipython.get_ipython() if ipython is not None else None
    except Exception as error:
        raise_if_of_handler(error)
        # IPython is being imported.
        return None


def is_kernel():
    """Returns True if this process is the kernel of a notebook, which can show HTML."""
    return getattr(interactive_shell(), "kernel", None) is not None


def is_colab():
    """Returns True if the notebook is one of Google Colab."""
    return "google.colab" in sys.modules and is_kernel()
