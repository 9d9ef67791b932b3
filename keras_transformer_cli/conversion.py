"""The command `convert`, and the conversion of published models that `serve` starts."""

import argparse
import contextlib
import hashlib
import importlib.metadata
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from keras_transformer_cli import folders, generation
from keras_transformer_cli.output import note, noting, progress_of_exports, say, suggest
from keras_transformer_cli.quiet import load_libraries, quiet_start
from keras_transformer_options.arguments import check, check_one_of, check_positive_integer, renamed
from keras_transformer_options.files import checked_file, checked_model_name

PRECISIONS = ("float32", "float16", "int8", "int4")
FORMATS = ("saved_model", "onnx")  # by default
_WITH_PRECISIONS = ("onnx", "ctranslate2", "litert")
_KNOWN_FORMATS = ("saved_model", *_WITH_PRECISIONS)
_TITLES = {"onnx": "ONNX graphs", "ctranslate2": "models of CTranslate2", "litert": "models of LiteRT"}
_DISTRIBUTION = "keras-transformer-core"
_SHOWN = 12  # characters of a commit
_INSTRUCTIONS = """
Serve it over HTTP, without TensorFlow:
  keras-transformer serve {folder}
Ask it, from another terminal:
  {request}
Serve it with TensorFlow Serving or Triton: {card}"""


def add_command(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the command to a parser.

    Args:
        command: a function that creates a command from a name, a function of its options and a description.
    """
    convert = command(
        "convert",
        _convert,
        "write a published model as SavedModel, ONNX or another format: from the Hugging Face Hub, or a folder",
    )
    convert.add_argument(
        "source",
        help="the id of a model of the hub, or a folder of `transformers` or `sentence-transformers`",
    )
    convert.add_argument("--output", required=True, metavar="FOLDER", help="a new folder for the export")
    add_formats(convert)
    add_precisions(convert)
    add_texts(convert)
    _add_options(convert)
    add_settings(convert)
    convert.add_argument(
        "--cache-dir", metavar="FOLDER", help="the folder of downloads; default: the cache of huggingface_hub"
    )
    convert.add_argument(
        "--no-instructions", dest="instructions", action="store_false", help=argparse.SUPPRESS
    )


def add_formats(
    parser: argparse.ArgumentParser, exclusive: Mapping[str, str] = types.MappingProxyType({})
) -> None:
    """Add the option for the formats of an export, which `formats_of` reads.

    Args:
        parser: the parser.
        exclusive: descriptions of other values, each of which must be the only one.
    """
    others = ", ".join(f"{name} alone writes {text}" for name, text in exclusive.items())
    action = parser.add_argument(
        "--formats",
        nargs="+",
        metavar="FORMAT",
        help=f"{', '.join(_KNOWN_FORMATS)}; default: {' and '.join(FORMATS)}; {others}{'; ' if others else ''}packages "
        "can add others",
    )
    suggest(action, (*_KNOWN_FORMATS, *_other_formats(), *exclusive))


def formats_of(options: argparse.Namespace) -> tuple[str, ...]:
    """Return the targets to write, of the options for formats and precisions."""
    targets, precisions = tuple(dict.fromkeys(options.formats or FORMATS)), options.precisions
    for name in targets:
        check_one_of((*_KNOWN_FORMATS, *_other_formats()), formats=name)
    if precisions and not {*targets} - {"saved_model"}:
        raise ValueError(
            f"`--precisions` requires the format {' or '.join(_WITH_PRECISIONS)}. "
            f"Received: --precisions {' '.join(precisions)}, --formats {' '.join(targets)}"
        )
    return targets


def _other_formats() -> list[str]:
    """Return the formats of other packages, without importing them."""
    return sorted(importlib.metadata.entry_points(group="keras_transformer.targets").names)


def add_precisions(parser: argparse.ArgumentParser) -> None:
    """Add the option for the precisions of formats besides SavedModel, separated by commas or spaces."""
    action = parser.add_argument(
        "--precisions",
        nargs="+",
        type=_precisions,
        action=_Joined,
        metavar="PRECISION",
        help="precisions of each format but saved_model: float32, and float16 for GPUs, int8 for CPUs or, with onnx, "
        "int4 for language models on CPUs; default: float32, and float16 and int8 if they are close to the model",
    )
    suggest(action, PRECISIONS)


def add_texts(parser: Any) -> None:
    """Add the option for the texts on which an export is compared, which `texts_of` reads."""
    parser.add_argument(
        "--texts",
        metavar="FILE",
        help="compare the export with the model on the texts of this file, one a line, pairs separated by a tab, and "
        "fit int8 graphs of encoders to them; default: texts made from the vocabulary",
    )


def texts_of(options: argparse.Namespace) -> pathlib.Path | None:
    """Return the file of `--texts`, which must exist."""
    return None if options.texts is None else checked_file(options.texts, "texts")


def add_settings(parser: argparse.ArgumentParser) -> Any:
    """Add the options for the search and the constraints of an export, and return their group."""
    group = parser.add_argument_group(
        "generation", "the settings of a model that generates, which an export fixes"
    )
    generation.add_settings(group)
    return group


def add_serve_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `serve` for models that it converts."""
    group = parser.add_argument_group(
        "published models",
        "a folder may be the id of a model of the Hugging Face Hub, or a folder of `transformers`",
    )
    _add_options(group)
    add_texts(group)
    group.add_argument(
        "--cache-dir", metavar="FOLDER", help=f"the folder of converted models; default: {_cache_folder()}"
    )


def _add_options(parser: Any) -> None:
    parser.add_argument(
        "--max-new-tokens",
        type=int,
        metavar="N",
        help="the maximum number of generated tokens; default: as the model's files say",
    )
    parser.add_argument("--revision", help="a branch, a tag or a commit of the hub; default: the main branch")
    parser.add_argument(
        "--token",
        help="a token of the hub, which other users of the machine can see here; default: HF_TOKEN, or the stored one",
    )


class _Joined(argparse.Action):
    """Store the names of several lists in one."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option: Any = None) -> None:
        """Store the names."""
        setattr(namespace, self.dest, [name for names in values for name in names])


def _precisions(text: str) -> list[str]:
    """Return precisions that are separated by commas."""
    names = text.split(",")
    if not set(names) <= set(PRECISIONS):
        raise argparse.ArgumentTypeError(f"must be {', '.join(PRECISIONS)}. Received: {text}")
    return names


def _convert(options: argparse.Namespace) -> None:
    from keras_transformer_serving import bundle, graph_files
    from keras_transformer_serving.part_files import PartFiles

    folder = pathlib.Path(options.output)
    folders.check_published("source", options.source)
    folders.check_outside("--output", folder, options.source)
    if options.max_new_tokens is not None:
        check_positive_integer(max_new_tokens=options.max_new_tokens)
    with renamed(folder="output"):
        name = checked_model_name(folder, None, 1, can_be_named=False)
    targets, texts = formats_of(options), texts_of(options)
    version = bundle.new_version(folder, name, 1)
    bundle.check_free(folder, [version if target == "saved_model" else target for target in targets])
    note(f"Reading {options.source}")
    load_libraries()
    from keras_transformer import export
    from keras_transformer.pipelines import hugging_face

    settings = {} if options.max_new_tokens is None else {"max_new_tokens": options.max_new_tokens}
    files = hugging_face.download(options.source, options.revision, options.token, options.cache_dir)
    with quiet_start(), progress_of_exports():
        pipeline = hugging_face.read(files, options.revision, settings)
        pipeline = generation.with_fixed_settings(pipeline, options)
        note(_description(pipeline))
        export.bundle(
            pipeline,
            folder,
            targets=targets,
            precisions=options.precisions,
            texts=texts,
            say=noting(options.names),
        )
    if options.instructions:
        written = bundle.Bundle(folder)
        found = {}
        for target in targets:
            names = PartFiles.of_bundle(written, target).names
            found[target] = ", ".join(["float32", *graph_files.converted_precisions(names)])
        parts = [
            "a SavedModel" if target == "saved_model" else f"{_TITLES.get(target, target)} in {precisions}"
            for target, precisions in found.items()
        ]
        say(f"Wrote {folder}: {', and '.join(parts)}, compared with the model")
        say(_instructions(folder, name))


def _description(pipeline: Any) -> str:
    """Return the class, the size, the commit and the licence of a converted pipeline in one line."""
    source = pipeline.source
    at = "" if source.commit is None else f" at {source.commit[:_SHOWN]}"
    licence = source.license or "not named in its model card"
    return (
        f"{source.name}{at}: a {type(pipeline).__name__} of a {type(pipeline.model).__name__} with "
        f"{pipeline.model.count_params():,} parameters; licence: {licence}"
    )


def _instructions(folder: pathlib.Path, name: str) -> str:
    """Return how to serve an export."""
    example = folder / "serving" / "requests" / name / "serving_default.json"
    body = f"@{shlex.quote(str(example))}" if example.is_file() else "@request.json"
    request = f"curl -d {body} localhost:8501/v1/models/{name}:predict"
    return _INSTRUCTIONS.format(
        folder=shlex.quote(str(folder)), request=request, card=shlex.quote(str(folder / "README.md"))
    ).strip("\n")


def serve(options: argparse.Namespace) -> int:
    """Serve exports, and published models, which are converted into the cache unless they are there.

    Returns:
        The exit status: 0, or the status of a conversion that failed.
    """
    from keras_transformer_serving import command_line

    command_line.check_requirements()
    if options.max_new_tokens is not None:
        check_positive_integer(max_new_tokens=options.max_new_tokens)
    texts_of(options)
    served, are_published = [], False
    for text in options.folders:
        name, source = ("", text) if os.path.exists(text) or "=" not in text else text.split("=", 1)
        if not folders.is_published(source):
            served.append(text)
            continue
        are_published = True
        conversion = Conversion.of(source, options)
        if status := conversion.run():
            return status
        served.append(f"{name or conversion.name}={conversion.folder}")
    for argument in () if are_published else ("revision", "max_new_tokens", "texts", "cache_dir"):
        value = getattr(options, argument)
        check(value is None, "be None for exports", **{argument: value})
    options.folders = served
    command_line.run(options)
    return 0


class Conversion:
    """The conversion of a published model into a folder of the cache.

    The folder depends on the model, its commit, the options and the version of this package. It is renamed when it is
    complete, so that what it holds can be served.

    Args:
        source: the id of a model of the hub, or a folder.
        commit: its commit, or a digest of its files; None if it is unknown, so that it is converted each time.
        options: the options of `serve`.
    """

    def __init__(self, source: str, commit: str | None, options: argparse.Namespace) -> None:
        self._source, self._commit, self._options = source, commit, options
        is_folder = os.path.isdir(source)
        self.name = re.sub(r"[^\w.-]", "-", pathlib.Path(source).absolute().name).lstrip(".-") or "model"
        self._precisions = list(dict.fromkeys(["float32", options.precision]))
        path = os.path.abspath(source) if is_folder else source
        texts = options.texts and hashlib.sha256(pathlib.Path(options.texts).read_bytes()).hexdigest()
        values = [path, commit, self._precisions, options.max_new_tokens, texts, _version()]
        digest = hashlib.sha256(json.dumps(values).encode()).hexdigest()
        model = self.name if is_folder else source.replace("/", "--")
        base = pathlib.Path(options.cache_dir or _cache_folder())
        self._new = base / model / f"{(commit or 'unknown')[:_SHOWN]}-{digest[:8]}"
        self.folder = self._new / self.name

    @classmethod
    def of(cls, source: str, options: argparse.Namespace) -> "Conversion":
        """Return the conversion of the requested revision, or of the files of a folder."""
        if os.path.isdir(source):
            check(options.revision is None, "be None for a folder", revision=options.revision)
            return cls(source, _digest(pathlib.Path(source)), options)
        return cls(source, _commit(source, options.revision, options.token), options)

    def run(self) -> int:
        """Convert the model, unless that is done, in a process of its own: the server needs no TensorFlow.

        Returns:
            0, or the exit status of the process, which has printed its error.
        """
        from keras_transformer_serving import files

        if self._is_done():
            say(f"{self._source} was converted into {self.folder}")
            return 0
        say(f"Converting {self._source} into {self.folder}; the next start takes it from there")
        self._new.parent.mkdir(parents=True, exist_ok=True)
        with _locked(self._new.with_name(f"{self._new.name}.lock")):
            if self._is_done():  # by the process that had the lock
                return 0
            for left in self._new.parent.glob(f".{self._new.name}.*"):  # of a process that was killed
                shutil.rmtree(left, ignore_errors=True)
            with contextlib.suppress(_FailedError), files.new_folder(self._new, overwrite=True) as new:
                if status := _in_process(self._arguments(new / self.name), self._options.token):
                    raise _FailedError
                return 0
        return status

    def _is_done(self) -> bool:
        from keras_transformer_serving import bundle

        return self._commit is not None and bundle.is_bundle(self.folder)

    def _arguments(self, output: pathlib.Path) -> list[str]:
        arguments = ["convert", self._source, "--output", str(output), "--no-instructions"]
        arguments += ["--precisions", *self._precisions]
        if self._options.revision is not None:
            arguments += ["--revision", self._options.revision]
        if self._options.texts is not None:
            arguments += ["--texts", self._options.texts]
        if self._options.max_new_tokens is not None:
            arguments += ["--max-new-tokens", str(self._options.max_new_tokens)]
        return arguments


class _FailedError(Exception):
    """A conversion failed, and has printed why."""


def _in_process(arguments: Sequence[str], token: str | None) -> int:
    """Run a command of this program in another process, and return its exit status."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    if token is not None:  # not an argument, which other users could see
        environment["HF_TOKEN"] = token
    command = [sys.executable, "-P", "-m", "keras_transformer_cli", *arguments]
    with subprocess.Popen(command, env=environment) as process, _terminating(process):
        status = process.wait()
    return status if status >= 0 else 128 - status


@contextlib.contextmanager
def _terminating(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Terminate a process when this one is interrupted or terminated."""
    before = signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    try:
        yield
    except BaseException:
        process.terminate()
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _locked(path: pathlib.Path) -> Iterator[None]:
    """Hold the lock of a file, which ends with the process; wait for another process that holds it."""
    import fcntl  # absent on Windows

    with open(path, "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("Waiting for another process that converts it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _commit(name: str, revision: str | None, token: str | None) -> str | None:
    """Return the commit of a revision: as the hub says, or of the files in the cache; None if neither knows it."""
    try:
        import huggingface_hub
    except ImportError:
        return None
    revision = revision or "main"
    try:
        commit: str | None = huggingface_hub.HfApi(token=token).model_info(name, revision=revision).sha
        return commit
    except Exception:  # the conversion raises it again, with an explanation, unless the cache has the model
        cached = huggingface_hub.try_to_load_from_cache(name, "config.json", revision=revision)
        return pathlib.Path(cached).parent.name if isinstance(cached, str) else None


def _digest(folder: pathlib.Path) -> str:
    """Return a digest of the names, sizes and times of the files of a folder."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    described = [
        [path.relative_to(folder).as_posix(), (status := path.stat()).st_size, status.st_mtime_ns]
        for path in paths
    ]
    return hashlib.sha256(json.dumps(described).encode()).hexdigest()


def _cache_folder() -> str:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "keras_transformer")


def _version() -> str | None:
    try:
        return importlib.metadata.version(_DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:  # run from a checkout
        return None
