"""Paths and lines of users' text files, plain or compressed by gzip, in UTF-8 or another encoding."""

import codecs
import glob
import gzip
import io
import itertools
import os
import pathlib
import re
import shlex
import unicodedata
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO

from keras_transformer_options.arguments import ArgumentError, Message, check, check_positive_integer

Path = str | os.PathLike[str]
Paths = Path | Iterable[Path]

# The format of a file by its suffix, without ".gz".
FORMATS = {".tsv": "tsv", ".csv": "csv", ".jsonl": "jsonl", ".txt": "text", ".story": "story"}

_HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
_GZIP, _ZIP = b"\x1f\x8b", b"PK\x03\x04"
# UTF-32 first: its byte order mark begins with that of UTF-16.
_ENCODINGS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_SAMPLE = 4096  # bytes, to recognise UTF-16 without a byte order mark


def format_of(path: Path) -> str | None:
    """Return the format of a path's suffix, `None` if it is not in `FORMATS`."""
    path = pathlib.Path(path)
    return FORMATS.get((path.with_suffix("") if _is_compressed(path) else path).suffix.lower())


def other_file(argument: str, path: Path, expected: str, reason: str = "", **values: Any) -> Message:
    """Return the message that an argument must name other files than `path`.

    Args:
        argument: the argument.
        path: the path.
        expected: the files that it must name.
        reason: a template of the reason why the path is invalid.
        **values: the values of the template.
    """
    template = f"{{}} must name {expected}. Received: {{path!r}}{reason}"
    return Message(template, argument, path=os.fspath(path), **values)


def checked_file(path: Path, argument: str) -> pathlib.Path:
    """Return the path of a file.

    Args:
        path: the file.
        argument: the name of the argument with the path, for error messages.
    """
    path = pathlib.Path(path)
    if path.is_dir():
        suffixes = sorted({file.suffix for file in path.iterdir() if file.suffix in FORMATS} or {".txt"})
        examples = " ".join(os.fspath(path / f"*{suffix}") for suffix in suffixes)
        raise ArgumentError(
            other_file(argument, path, "files", ", a directory; pass {pattern!s}", pattern=examples)
        )
    if not path.exists():
        raise FileNotFoundError(other_file(argument, path, "files that exist"))
    return path


def is_hub_id(source: Path) -> bool:
    """Return whether a path that does not exist may be the id of a model of the Hugging Face Hub."""
    return _HUB_ID.fullmatch(os.fspath(source)) is not None and not os.path.exists(source)


def check_quickstart(folder: Path, argument: str = "folder") -> None:
    """Raise a FileExistsError unless a folder is new, empty, or has exactly the files of a quickstart."""
    folder = pathlib.Path(folder)
    if not folder.exists():
        return
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else None
    is_quickstart = names == ["export", "pipeline", "report.json"] and (
        (config := folder / "pipeline/config.json").is_file() and b'"pipeline"' in config.read_bytes()
    )
    if names != [] and not is_quickstart:
        content = "a file" if names is None else names[:5]
        raise FileExistsError(
            Message(
                "{} must be new or an earlier quickstart. Received: {folder!s}, with {content!s}",
                argument,
                folder=folder,
                content=content,
            )
        )


def checked_model_name(folder: Path, name: str | None, version: int, can_be_named: bool = True) -> str:
    """Return the name of an exported model in TensorFlow Serving, by default its folder's name.

    Args:
        folder: the folder of the export.
        name: the name, or None.
        version: the model's version.
        can_be_named: whether the error for a folder proposes `name`.
    """
    default = pathlib.Path(folder).absolute().name
    if name is None and not _is_plain_name(default):
        raise ArgumentError(
            Message(
                "{folder} must end with a plain name, of letters, digits, '.', '_' and '-', such as {proposal!s}"
                + (", or {name} must be one" if can_be_named else "")
                + ". Received: {path!s}",
                proposal=plain_name(default),
                path=os.fspath(folder),
            )
        )
    check(name is None or _is_plain_name(name), "be a plain folder name", name=name)
    check_positive_integer(version=version)
    return default if name is None else name


def plain_name(text: str) -> str:
    """Return a name of ASCII letters, digits, ".", "_" and "-" that resembles a text."""
    ascii_ = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    return re.sub(r"[^\w.-]+", "-", ascii_).strip("-.") or "model"


def _is_plain_name(name: Any) -> bool:
    return isinstance(name, str) and re.fullmatch(r"\w[\w.-]*", name) is not None


def matching(path: Path, argument: str) -> list[Path]:
    """Return the files that match a pattern, in alphabetical order, or the file that a path names."""
    pattern = os.fspath(path)
    if not set(pattern) & set("*?[") or os.path.exists(pattern):
        checked_file(path, argument)
        return [path]
    files = sorted(glob.glob(pattern, recursive=True))
    if not files:
        raise FileNotFoundError(
            other_file(argument, path, "files that exist", ", a pattern that no file matches")
        )
    return [*files] if isinstance(path, str) else [pathlib.Path(file) for file in files]


def checked_paths(paths: Any, argument: str = "paths") -> list[Path]:
    """Return paths as a list, with patterns replaced by the files that match them.

    Args:
        paths: a path, or several.
        argument: the name of the argument, for error messages.
    """
    items = (
        [paths] if isinstance(paths, str | os.PathLike) or not isinstance(paths, Iterable) else list(paths)
    )
    if not items:
        raise ArgumentError("{} must hold at least one path", argument, **{argument: paths})
    for path in items:
        if not isinstance(path, str | os.PathLike):
            raise TypeError(Message("{} must be a path or a list of paths", argument, **{argument: paths}))
    return [file for path in items for file in matching(path, argument)]


def check_encoding(**values: Any) -> None:
    """Raise an error unless each value is None or the name of a Python text encoding."""
    for name, value in values.items():
        try:
            if value is not None:
                " ".encode(value)
        except (LookupError, TypeError):
            raise ArgumentError(
                "{} must be a Python text encoding, such as 'cp1252' or 'utf-16'", name, **{name: value}
            ) from None


def file_lines(
    path: Path,
    argument: str,
    opened: Callable[[BinaryIO], None] | None = None,
    encoding: str | None = None,
    has_encoding: bool = False,
) -> Iterator[bytes]:
    r"""Read the lines of a file as UTF-8, without a byte order mark and with their line ends.

    Args:
        path: the file; if its name ends in ".gz", it is decompressed.
        argument: the name of the argument with the path, for error messages.
        opened: a function that is called with the file, compressed or not, after it is opened.
        encoding: the encoding of the file, by default UTF-8, whose lines are not validated.
        has_encoding: whether the caller has an argument `encoding`, which an error may recommend.

    Returns:
        An iterator of the lines, which end in "\n", "\r\n" or "\r".

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the path is a directory or, while lines are read, if the compression of the file does not match
            its name, or its encoding differs from `encoding` or, by its byte order mark or zero bytes, from UTF-8.
    """
    return _lines(checked_file(path, argument), argument, opened, encoding, has_encoding)


def _lines(
    path: pathlib.Path,
    argument: str,
    opened: Callable[[BinaryIO], None] | None,
    encoding: str | None,
    has_encoding: bool,
) -> Iterator[bytes]:
    is_utf8 = encoding is None or codecs.lookup(encoding).name in ("utf-8", "utf-8-sig")
    try:
        with open(path, "rb") as file:
            if opened is not None:
                opened(file)
            if not _is_compressed(path):
                _check_uncompressed(file.peek(), path, argument)
            content: Any = gzip.GzipFile(fileobj=file) if _is_compressed(path) else file
            if is_utf8:
                _check_utf8(content.peek(_SAMPLE), path, argument, has_encoding)
                lines = content
            else:
                text = io.TextIOWrapper(content, encoding, newline="\n")
                lines = (line.encode(errors="surrogatepass") for line in text)
            first = next(iter(lines), b"").removeprefix(codecs.BOM_UTF8)
            for line in itertools.chain([first], lines):
                yield from line.splitlines(keepends=True)  # at carriage returns, too
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        expected = "complete gzip files if they end in '.gz'"
        raise ArgumentError(other_file(argument, path, expected, " ({error!s})", error=str(error))) from None
    except UnicodeError as error:
        expected = f"files in the encoding {encoding!r}"
        raise ArgumentError(other_file(argument, path, expected, " ({error!s})", error=str(error))) from None


def _check_uncompressed(start: bytes, path: pathlib.Path, argument: str) -> None:
    """Raise a ValueError if a file starts like a gzip file, or a ZIP archive such as Excel's files."""
    if start.startswith(_GZIP):
        remedy = f"rename it to {path.name + '.gz'!r}, or decompress it: "
        remedy += f"gunzip -c {shlex.quote(str(path))} > {_converted(path)}"
        reason = ", compressed by gzip: {remedy!s}"
        raise ArgumentError(other_file(argument, path, "gzip files that end in '.gz'", reason, remedy=remedy))
    if start.startswith(_ZIP):
        remedy = "decompress it with unzip, or save the table as CSV in UTF-8"
        reason = f", a ZIP archive or an Excel workbook: {remedy}"
        raise ArgumentError(other_file(argument, path, "text files", reason))


def _check_utf8(start: bytes, path: pathlib.Path, argument: str, has_encoding: bool) -> None:
    """Raise a ValueError if a file starts like UTF-16 or UTF-32."""
    encoding = next((encoding for mark, encoding in _ENCODINGS.items() if start.startswith(mark)), None)
    zeros = [start[parity:_SAMPLE:2].count(0) for parity in (0, 1)]
    if encoding is None and max(zeros) > len(start[:_SAMPLE]) / 8:
        encoding = "utf-16be" if zeros[0] > zeros[1] else "utf-16le"
    if encoding is not None:
        remedy = conversion(path, encoding, has_encoding)
        reason = f", in {encoding.upper()}: {{remedy!s}}"
        raise ArgumentError(other_file(argument, path, "files in UTF-8", reason, remedy=remedy))


def conversion(path: Path, encoding: str, has_encoding: bool) -> Message:
    """Return instructions to read or convert a file that is not in UTF-8.

    Args:
        path: the file.
        encoding: its encoding.
        has_encoding: see `file_lines`.
    """
    path = pathlib.Path(path)
    command = f"iconv -f {encoding.upper()} -t UTF-8"
    file = shlex.quote(str(path))
    command = f"gunzip -c {file} | {command}" if _is_compressed(path) else f"{command} {file}"
    passed = f"pass {{encoding={encoding!r}}}, or " if has_encoding else ""
    return Message(passed + "convert it: {command!s}", command=f"{command} > {_converted(path)}")


def _converted(path: pathlib.Path) -> str:
    """Return a name for the converted file, quoted for a shell."""
    plain = path.with_suffix("") if _is_compressed(path) else path
    return shlex.quote(str(plain.with_name(f"{plain.stem}-utf8{plain.suffix}")))


def _is_compressed(path: pathlib.Path) -> bool:
    return path.suffix.lower() == ".gz"
