"""The command `detlite`, also `python -m detlite` and `torchrun -m detlite`.

Each command is a function of a module of this folder, see `options.Command`.
"""

import argparse
import contextlib
import importlib
import os
import sys
from collections.abc import Sequence
from itertools import pairwise

from detlite import __version__, errors
from detlite.files.errors import DataError
from detlite.threads import configure_cpu_libraries

from . import data, info, models, prediction, removed, reports, training
from .options import collect_overrides

COMMANDS = {
    command.run.__name__: command
    for command in (
        data.init, training.train, training.test, prediction.predict, prediction.serve,
        reports.report, info.config, reports.compare, reports.browse, data.check, models.convert,
        models.export, info.doctor,
    )
}  # fmt: skip
INTERRUPTED = 130  # the status that shells report for a program ended by SIGINT
STOPPED = 75  # EX_TEMPFAIL in sysexits.h: try again later
PIPE_CLOSED = 141  # the status of a program ended by SIGPIPE
# Errors whose message tells the user what to fix; they need no traceback. OSError: for example a
# full disk while results are written.
_USER_ERRORS = (
    errors.ConfigError, DataError, errors.CheckpointError, errors.LoaderProcessError,
    errors.NonFiniteLossError, OSError,
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command in `arguments`, by default the arguments of this process.

    Returns:
        The exit status: 0 on success, 2 for an error that the user can fix, 130 after Ctrl-C. Some
        commands use 1 and 75, see their help.
    """
    _prepare_streams()
    commands = "\n".join(f"  {name:14} {summary(name)}" for name in COMMANDS)
    parser = argparse.ArgumentParser(
        "detlite",
        description=f"Train, evaluate and use Mask R-CNN models.\n\ncommands:\n{commands}",
        epilog="`detlite COMMAND --help` describes a command. Example:\n"
        "  detlite train --config configs/demo_shapes.yaml OUTPUT_DIR output/demo",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"detlite {__version__}")
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND")
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words and words[0] in removed.COMMANDS:
        parser.error(f"{words[0]} was removed: {removed.COMMANDS[words[0]]}")
    return run_command(parser.parse_args(words[:1]).command, words[1:])


def summary(name: str) -> str:
    """Return the first line of the help text of a command."""
    return COMMANDS[name].help.partition("\n")[0]


def build_parser(name: str) -> argparse.ArgumentParser:
    """Return the parser of a command, with its help text."""
    command = COMMANDS[name]
    parser = argparse.ArgumentParser(
        f"detlite {name}",
        description=command.help,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for names, settings in command.options:
        parser.add_argument(*names.split(), **settings)
    return parser


def run_command(name: str, arguments: Sequence[str]) -> int:
    """Parse the arguments of one command, run it and return its exit status."""
    configure_cpu_libraries()  # before the command imports torch
    parser = build_parser(name)
    for word, value in pairwise([*arguments, "-"]):
        for option in (word.partition("=")[0], word.replace("=", " ", 1), f"{word} {value}"):
            if (name, option) in removed.OPTIONS:
                parser.error(f"{option} was removed: {removed.OPTIONS[name, option]}")
        if word.startswith("--") and (not value or word.endswith("=")):  # of an unset variable
            parser.error(f"{word}: the value is empty")
    try:
        args = parser.parse_intermixed_args(arguments)
        if "overrides" in args:
            collect_overrides(args)
        if getattr(args, "font", None):
            from detlite.apps.drawing.fonts import use_font  # imports torch

            use_font(args.font)
        # Before torch, which loses a Ctrl-C while it imports numpy.
        importlib.import_module("numpy")
        status = COMMANDS[name].run(args)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # for example of `detlite check ... | head`
        _discard_output()
        return PIPE_CLOSED
    except KeyboardInterrupt as stop:  # with a text if the step was saved, see `StopSignals`
        print(str(stop) or COMMANDS[name].interrupted, file=sys.stderr)
        return INTERRUPTED if getattr(stop, "signal_name", "SIGINT") == "SIGINT" else STOPPED
    except _USER_ERRORS as error:
        print("error:", "\n".join(map(errors.one_line, str(error).split("\n"))), file=sys.stderr)
        return 2


def _prepare_streams() -> None:
    """Replace missing streams, and let the others escape characters that they cannot encode.

    A service, or a program without a console, has no standard streams; a pipe of Windows often
    encodes in cp1252, which lacks most characters.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _discard_output() -> None:
    """Discard all further output, after the program that read it from a pipe has ended."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
