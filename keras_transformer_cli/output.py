"""Lines of standard output and error."""

import argparse
import contextlib
import logging
import os
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from keras_transformer_options.arguments import Message

_CHUNK = 1000
_EXPORTS = "keras_transformer.export"  # the logger of the steps of exports
_WIDTH = 79
_MEMORY = re.compile(
    r"ResourceExhausted|RESOURCE_EXHAUSTED|bad_alloc|bad allocation|can't start new thread|Failed to allocate memory"
    r"|failed to map segment|[Cc]annot allocate memory"
)
# What errors of pipelines advise: the option that a command needs, and what it is on the command line.
_ADVICE = {
    "long_texts='split'": ("long_texts", "--long-texts split"),
    "long_texts='window'": ("", ""),  # of a pipeline, not of a call
    "truncate=True": ("long_texts", "--long-texts truncate"),
    "long_audio='split'": ("long_audio", "--long-audio split"),
    "long_audio='sequential'": ("long_audio", "--long-audio sequential"),
    "resample=True": ("resample", "--resample"),
    "their rate as `sample_rate`": ("sample_rate", "their rate as --sample-rate"),
}
_ADVISED = re.compile(f"(, or )?({'|'.join(map(re.escape, _ADVICE))})")
_RECEIVED = "Received: "
_ARGUMENT = re.compile(r"`(\w+)`")
_PLACE = re.compile(r"(?<= in )\w+\[(\d+)\]$|(?<=Received: )\w+\[(\d+)\]")  # of a row in an error


_quiet = False  # `--quiet` of the command that runs


def add_quiet(parser: argparse.ArgumentParser) -> None:
    """Add the option `--quiet` to a command."""
    parser.add_argument(
        "--quiet", action="store_true", help="print results, warnings and errors only, without progress"
    )


def set_quiet(quiet: bool) -> None:
    """Set whether `note` prints nothing."""
    global _quiet
    _quiet = quiet


def note(line: str) -> None:
    """Print a line of progress, unless the command is quiet."""
    if not _quiet:
        say(line)


def noting(options: Mapping[str, str]) -> Callable[[str], None]:
    """Return `note` with options of the command line in place of arguments."""
    return lambda line: note(with_options(line, options))


def verbosity() -> int:
    """Return `verbose` of `fit`: nothing, a progress bar on a terminal with colours, or a line for each epoch."""
    if _quiet:
        return 0
    has_colours = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return 1 if has_colours else 2


def say(line: str, end: str = "\n") -> None:
    """Print a line."""
    sys.stdout.write(line + end)
    sys.stdout.flush()


def one_line(text: str) -> str:
    """Return a text as one line."""
    return " ".join(text.splitlines())


def flag_of(name: str) -> str:
    """Return the flag of an argument."""
    return "--" + name.rstrip("_").replace("_", "-")


def suggest(action: argparse.Action, values: Iterable[str]) -> None:
    """Set the known values of an option that takes others, too, which a shell completes."""
    action.known_values = [*values]  # type: ignore[attr-defined]


def options_of(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> dict[str, str]:
    """Return the options of the command in `arguments`, by the names of function arguments."""
    options = {action.dest: action.option_strings[0] for action in parser._actions if action.option_strings}
    command = _command(parser, arguments)
    options |= {} if command is None else options_of(command, arguments)
    return options | (parser.get_default("also_options") or {})


def parser_of(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser of the command in `arguments`, whose usage its errors show."""
    command = _command(parser, arguments)
    return parser if command is None else parser_of(command, arguments)


def _command(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> argparse.ArgumentParser | None:
    """Return the parser of the subcommand in `arguments`, or None if there is none."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            name = next((argument for argument in arguments if argument in action.choices), None)
            return None if name is None else action.choices[name]
    return None


def error_text(error: Exception, options: Mapping[str, str]) -> str:
    """Return the text of an error, with options of the command line in place of arguments.

    Errors of pipelines, which may be made in graphs, are texts without a `Message`; in these, the arguments before what
    was received are replaced, and what is advised.
    """
    message = next((message for message in error.args if isinstance(message, Message)), None)
    return with_options(str(error) if message is None else message, options)


def with_options(message: str | Message, options: Mapping[str, str]) -> str:
    """Return a message with options of the command line in place of arguments, see `error_text`."""

    def option(match: re.Match[str]) -> str:
        return f"`{options.get(match[1], match[1])}`"

    def advice(match: re.Match[str]) -> str:
        name, advised = _ADVICE[match[2]]
        joint = match[1] or ""
        return joint + advised if name in options else "" if joint else match[0]

    if isinstance(message, Message):
        return _ADVISED.sub(advice, message.shown(options))
    expected, received, value = _ADVISED.sub(advice, message).partition(_RECEIVED)
    name, equals, rest = value.partition("=")
    value = f"{options[name]} {rest}" if equals and name in options else value
    return _ARGUMENT.sub(option, expected) + received + value


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory is not sufficient, also those of TensorFlow, JAX and ONNX Runtime."""
    return isinstance(error, MemoryError) or _MEMORY.search(f"{type(error).__name__} {error}") is not None


@contextlib.contextmanager
def warnings_on_stderr(options: Mapping[str, str]) -> Iterator[None]:
    """Print warnings of the package on standard error, each on one line, with options in place of arguments."""

    class _Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            content: Any = record.msg
            message = with_options(content if isinstance(content, Message) else record.getMessage(), options)
            sys.stderr.write(f"keras-transformer: {record.levelname.lower()}: {message}\n")

    def show(message: Warning | str, category: type[Warning], *details: Any, **more: Any) -> None:
        if category is UserWarning:
            sys.stderr.write(f"keras-transformer: warning: {one_line(str(message))}\n")
        else:
            default(message, category, *details, **more)

    logger, handler = logging.getLogger("keras_transformer"), _Handler(logging.WARNING)
    logger.addHandler(handler)
    default, warnings.showwarning = warnings.showwarning, show
    try:
        yield
    finally:
        warnings.showwarning = default
        logger.removeHandler(handler)


@contextlib.contextmanager
def progress_of_exports() -> Iterator[None]:
    """Print a line when a step of an export begins, with the time since the start."""

    class _Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            note(f"{time.monotonic() - began:6.0f} s  {record.getMessage()}")

    began, logger, handler = time.monotonic(), logging.getLogger(_EXPORTS), _Handler()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)


def in_chunks(
    answer: Callable[..., Sequence[Any]],
    rows: Sequence[Any],
    chunk: int = _CHUNK,
    unit: str = "lines",
    place: Callable[[int], str] = lambda row: f"line {row + 1}",
    returns_errors: bool = False,
) -> Iterator[Any]:
    """Answer rows in chunks, with progress on standard error if there are several chunks.

    Args:
        answer: a function from a list of rows to a list of answers.
        rows: the rows.
        chunk: the number of rows in a chunk.
        unit: the name of rows in the progress.
        place: a function from the index of a row to its name in errors.
        returns_errors: whether an error of a row takes the place of its answer.

    Yields:
        The answer of each row, or its error.

    Raises:
        OSError, TypeError, ValueError: as `answer`, with the place of the row.
    """
    began = time.monotonic()
    for start in range(0, len(rows), chunk):
        yield from _answers(answer, rows[start : start + chunk], start, place, returns_errors)
        if len(rows) > chunk and not _quiet:
            _show_progress(min(start + chunk, len(rows)), len(rows), unit, time.monotonic() - began)


def _answers(
    answer: Callable[..., Sequence[Any]],
    rows: Sequence[Any],
    start: int,
    place: Callable[[int], str],
    returns_errors: bool,
) -> Sequence[Any]:
    """Answer rows, the first of which has the index `start`; halve them until only those with errors are left."""
    try:
        with errors_at(lambda row: place(start + row)):
            return answer(rows)
    except (OSError, TypeError, ValueError) as error:
        if not returns_errors:
            raise
        if len(rows) == 1:
            return [error.with_traceback(None)]
        middle = len(rows) // 2
        halves = ((rows[:middle], start), (rows[middle:], start + middle))
        return [one for half in halves for one in _answers(answer, *half, place, returns_errors)]


@contextlib.contextmanager
def errors_at(place: Callable[[int], str]) -> Iterator[None]:
    """Name the place of a row in errors, instead of an index of an argument."""
    try:
        yield
    except (TypeError, ValueError) as error:
        message = str(error)
        if (match := _PLACE.search(message)) is None:
            raise
        name = place(int(match[1] or match[2]))
        type_ = TypeError if isinstance(error, TypeError) else ValueError
        raise type_(message[: match.start()] + name + message[match.end() :]) from error


def progress_of(unit: str) -> Callable[[int, int], None]:
    """Return a function that shows how many of several units are computed, as standard error's progress."""
    began = time.monotonic()

    def show(done: int, total: int) -> None:
        if total > 1 and not _quiet:
            _show_progress(done, total, unit, time.monotonic() - began)

    return show


def _show_progress(done: int, total: int, unit: str, seconds: float) -> None:
    """Write the progress to standard error; on a terminal, rewrite one line."""
    minutes, rest = divmod(round(seconds / done * (total - done)), 60)
    rate = done / max(seconds, 1e-9)
    line = f"{done:,} of {total:,} {unit}, {rate:,.0f} per second, {minutes}:{rest:02d} left"
    if sys.stderr.isatty():
        sys.stderr.write("\r" + line.ljust(_WIDTH) + ("\n" if done == total else ""))
    else:
        sys.stderr.write(line + "\n")
    sys.stderr.flush()
