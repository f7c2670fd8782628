"""The `landscape` command: a thin layer over the functions that scripts call. Only data goes to stdout.

To add a command, write a function in a file of this folder, and add it to COMMANDS. Its signature and docstring are
its help. Each command imports what it needs when it is called, so that `landscape --help` loads neither torch nor ray.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from typing import Any

from cyclopts import App

from cluster.commands.analysis import check, compare, connect, inspect
from cluster.commands.doctor import doctor
from cluster.commands.exporting import export
from cluster.commands.imports import import_, import_mindspore, import_surface
from cluster.commands.measure import measure
from cluster.commands.output import Paragraphs, exit_code_of
from cluster.commands.publish import serve, view
from cluster.commands.run import bench, demo, pack, plan, run
from cluster.commands.runs import (
    compact,
    extend,
    init,
    list_,
    refine,
    rename,
    rm,
    status,
    validate,
)
from cluster.commands.submit import cancel, logs, submit, train
from cluster.runtime.logs import choose_format, common_options, configure, is_supervised, tell_unraisable
from landscape import __version__

COMMANDS: dict[str, Callable[..., Any]] = {
    "init": init,
    "demo": demo,
    "run": run,
    "train": train,
    "plan": plan,
    "pack": pack,
    "status": status,
    "validate": validate,
    "export": export,
    "view": view,
    "serve": serve,
    "import": import_,
    "import-surface": import_surface,
    "import-mindspore": import_mindspore,
    "list": list_,
    "rm": rm,
    "rename": rename,
    "compact": compact,
    "extend": extend,
    "measure": measure,
    "refine": refine,
    "check": check,
    "inspect": inspect,
    "compare": compare,
    "connect": connect,
    "doctor": doctor,
    "bench": bench,
    "submit": submit,
    "logs": logs,
    "cancel": cancel,
}

app = App(
    name="landscape",
    help="Compute and see neural-network loss landscapes, on this machine or a Ray cluster. "
    "Every command takes --debug (tracebacks) and --log-format text|json (what stderr says; or LANDSCAPE_LOG_FORMAT).",
    help_format="plaintext",
    help_formatter=Paragraphs(),
    version=__version__,
    version_flags=["--version"],
    result_action="return_value",
    suppress_keyboard_interrupt=False,  # `exit_code_of` reports it
)
for _name, _function in COMMANDS.items():
    app.command(_function, name=_name)


def command() -> int:
    """Carry out the command of this process, with errors of one or two lines; returns the exit code."""
    arguments, debug, form = common_options(sys.argv[1:])
    # A library that kaleido imports parses sys.argv on import, and would take our --log for an option of its own.
    del sys.argv[1:]

    def carry_out() -> object:
        configure(choose_format(form), debug)
        if is_supervised():
            sys.unraisablehook = tell_unraisable
        else:
            # Until a job installs its own handlers, SIGTERM ends the command in the same way as SIGINT.
            signal.signal(signal.SIGTERM, signal.default_int_handler)
        return app(arguments, exit_on_error=False, print_error=False)

    return exit_code_of(carry_out, debug)
