"""The command line `keras-transformer COMMAND`; `keras-transformer --help` lists the commands."""

import argparse
import importlib.metadata
import itertools
import json
import os
import pathlib
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

from keras_transformer_cli import conversion, folders, generation, prediction, synthetic, training
from keras_transformer_cli.output import (
    add_quiet,
    error_text,
    errors_at,
    is_out_of_memory,
    note,
    noting,
    one_line,
    options_of,
    parser_of,
    say,
    set_quiet,
    suggest,
    verbosity,
    warnings_on_stderr,
)
from keras_transformer_cli.quiet import load_libraries, quiet_start
from keras_transformer_options.arguments import check, check_positive_integer, renamed
from keras_transformer_options.files import check_quickstart, checked_file, checked_model_name
from keras_transformer_options.metrics import EVALUATED, METRICS
from keras_transformer_options.task_options import TableOptions, column
from keras_transformer_options.tasks import DIRECTIONS, checked_direction

_TRANSFORMERS, _ARGOS = "transformers", "argos"
_DISTRIBUTION = "keras-transformer-core"
_SHELLS = ("bash", "zsh", "tcsh", "fish", "powershell")
_PATHS = (
    "path",
    "source",
    "teacher",
    "inputs",
    "folder",
    "weights",
    "output",
    "pipeline",
)  # without a metavar of one
_HAS_PATH = re.compile("FILE|FOLDER")
_MOST_CHARACTERS = 200  # of an error of a library
_FILES = (*training.FILE_FORMAT, "on_error")  # options of the files of `evaluate`
_ERROR, _INTERRUPTED, _CLOSED_PIPE = 2, 130, 141

_SERVE = """
Translate with ONNX Runtime, without TensorFlow:
  {program} generate {folder}/export "¿Dónde está la estación?"

Serve over HTTP with dynamic batching, and a page to try it, without TensorFlow:
  {program} serve {folder}/export

Serve with TensorFlow Serving, text to text:
  docker run --rm -p 8501:8501 -e MODEL_NAME=es-en \\
    -v "{absolute}/export/saved_model/es-en:/models/es-en" tensorflow/serving
  curl -d '{{"instances": ["¿Dónde está la estación?"]}}' localhost:8501/v1/models/es-en:predict
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        arguments: the arguments of the command line, by default the arguments of the process.

    Returns:
        The exit status: 0; 2 after an error, which is printed as one line on standard error; 130 after Ctrl-C and 143
        after SIGTERM, even if training saved its results; 141 if the reader of standard output ended.
    """
    if None in (sys.stdin, sys.stdout, sys.stderr):
        from keras_transformer_serving.streams import open_closed_streams

        open_closed_streams()
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    names: dict[str, str] = {}
    try:
        program = parser(arguments[0] if arguments else "", arguments)
        names = options_of(program, arguments)
        options, unknown = program.parse_known_args(arguments)
        if unknown:
            parser_of(program, arguments).error(f"unrecognized arguments: {' '.join(unknown)}")
        options.arguments, options.names = arguments, names
        set_quiet(getattr(options, "quiet", False))
        with warnings_on_stderr(names):
            return options.run(options) or 0
    except BrokenPipeError:
        # When Python exits, it flushes the buffer of standard output.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _CLOSED_PIPE
    except Exception as error:
        if is_out_of_memory(error):
            received = one_line(str(error) or repr(error))[:_MOST_CHARACTERS]
            message = (
                "The memory is not sufficient. Stop other programs, raise the limit (ulimit -v), or choose a smaller "
                f"batch or model. Received: {received}"
            )
        elif isinstance(error, ImportError | OSError | TypeError | ValueError):
            message = one_line(error_text(error, names))
        else:
            raise
        print(f"keras-transformer: error: {message}", file=sys.stderr)
        return _ERROR
    except KeyboardInterrupt:
        print("keras-transformer: interrupted", file=sys.stderr)
        return _INTERRUPTED


def _quickstart(options: argparse.Namespace) -> None:
    check_positive_integer(epochs=options.epochs)
    folder = pathlib.Path(options.output)
    check_quickstart(folder, "output")
    load_libraries()
    from keras_transformer import recipes

    with quiet_start():
        recipes.quickstart(folder, options.epochs, note, verbose=verbosity())
    program = pathlib.Path(sys.argv[0])
    shown = program.relative_to(pathlib.Path.cwd()) if program.is_relative_to(pathlib.Path.cwd()) else program
    say(_SERVE.format(program=shown, folder=folder, absolute=folder.absolute()))


def _evaluate(options: argparse.Namespace) -> None:
    if options.data is None:
        checked_direction(options.dataset, options.direction)
    folders.check_pipelines("path", [options.path], exports=True)
    name, generates = folders.pipeline_of(options.path)
    if name is not None and not generates:
        _check_evaluated(name, options)
    load_libraries()
    from keras_transformer import data, pipelines
    from keras_transformer.recipes.translate import translation_data

    with quiet_start():
        pipeline, generates = _loaded(options.path)
    if not generates:
        _show_metrics(pipeline, options)
        return
    for name in ("label_separator", "resample"):
        value = getattr(options, name)
        check(not value, "be None for a pipeline that generates", **{name: value})
    options.metrics = options.metrics or ["bleu", "chrf"]
    pipelines.scorers(options.metrics)
    if options.data is None:
        _, _, test = translation_data(options.dataset, options.direction)
    else:
        with renamed(paths="data"):
            test = data.read_summaries(options.data, options.columns, **_files(options))

    def answer(texts: Sequence[str]) -> list[str]:
        with errors_at(lambda row: f"the source {texts[row][:_MOST_CHARACTERS]!r}"):
            return [*pipeline(texts, **prediction.of_long_texts(options.long_texts))]

    _show_scores(pipelines.evaluate(answer, test, metrics=options.metrics), options.metrics)


def _files(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options of files that are given."""
    return training.given_fields(options, _FILES)


def _loaded(path: str) -> tuple[Any, bool]:
    """Return a pipeline or an export, and whether it generates texts from texts."""
    import keras_transformer_serving as serving
    from keras_transformer import pipelines

    if not serving.bundle.is_bundle(pathlib.Path(path)):
        pipeline = pipelines.load(path)
        return pipeline, pipeline.generates
    export = serving.Bundle(path)
    if "generation" in export.config:
        return prediction.generating_export(export), True
    return serving.load(path), False


def _check_evaluated(name: str, options: argparse.Namespace) -> None:
    """Raise a ValueError if a pipeline that does not generate has no metrics, or not with these options."""
    if name not in EVALUATED:
        raise ValueError(
            f"`path` must be a pipeline that generates, or one of {', '.join(EVALUATED)}. "
            f"Received: {options.path}, a {name}"
        )
    check(options.data is not None, f"name files of examples for a {name}", data=options.data)
    for option in ("metrics", "direction", "long_texts"):
        value = getattr(options, option)
        check(value is None, f"be None for a {name}", **{option: value})


def _show_metrics(pipeline: Any, options: argparse.Namespace) -> None:
    """Print the metrics of a pipeline that does not generate, as the report of its training."""
    from keras_transformer.recipes import evaluation

    _check_evaluated(pipeline.config["pipeline"], options)
    with renamed(paths="data"):
        metrics = evaluation.evaluate(
            pipeline,
            options.data,
            columns=options.columns,
            **_files(options),
            label_separator=options.label_separator,
            resample=options.resample or None,
        )
    width = max(map(len, metrics))
    for metric, value in metrics.items():
        say(f"{metric:{width}} {value:.4g}")


def _average(options: argparse.Namespace) -> None:
    folders.check_pipelines("path", [options.path])
    for path in options.weights:
        checked_file(path, "weights")
    folders.check_new("--output", options.output)
    load_libraries()
    from keras_transformer import pipelines
    from keras_transformer.training import average_checkpoints

    with quiet_start():
        pipeline = pipelines.load(options.path)
        average_checkpoints(pipeline.model, options.weights)
        pipeline.save(options.output)
    say(options.output)


@quiet_start()
def _export(options: argparse.Namespace) -> None:
    from keras_transformer_serving import bundle

    folders.check_pipelines("path", [options.path])
    if _TRANSFORMERS in (options.formats or ()):
        _export_to_transformers(options)
        return
    if _ARGOS in (options.formats or ()):
        _export_to_argos(options)
        return
    check(
        options.tokenizer is None, f"be None without the format {_TRANSFORMERS}", tokenizer=options.tokenizer
    )
    key = _signature_key(options)
    if not options.formats and options.version > 1 and bundle.has_part(options.folder, bundle.ONNX):
        raise FileExistsError(
            f"`{options.folder}/onnx` exists already and is not changed. Pass --formats saved_model to add only "
            "a version, or choose a different folder"
        )
    targets, texts = conversion.formats_of(options), conversion.texts_of(options)
    parts = [name for name in targets if name != "saved_model"]
    if "saved_model" in targets:
        name = checked_model_name(options.folder, options.name, options.version)
        parts.insert(0, bundle.new_version(options.folder, name, options.version))
    bundle.check_free(options.folder, parts)
    load_libraries()
    from keras_transformer import export

    pipeline = _exported(options)
    arguments: dict[str, Any] = {
        "targets": targets,
        "precisions": options.precisions,
        "texts": texts,
        "name": options.name,
        "version": options.version,
    }
    if options.vocabulary_shortlist:
        listed = pathlib.Path(options.vocabulary_shortlist)
        with renamed(texts="vocabulary_shortlist"):
            arguments["vocabulary_shortlist"] = export.vocabulary_shortlist(pipeline, listed)
    say_line = noting(options.names)
    written = export.bundle(pipeline, options.folder, signature_key=key, say=say_line, **arguments)
    say(str(written if len(parts) > 1 else written / parts[0]))


def _exported(options: argparse.Namespace) -> Any:
    """Load the pipeline to export, with the settings of the command line; its quality is that of its own settings."""
    from keras_transformer import pipelines
    from keras_transformer.recipes.runs import quality_of

    pipeline = pipelines.load(options.path)
    pipeline.quality = quality_of(options.path)
    return generation.with_fixed_settings(pipeline, options, options.max_new_tokens)


def _check_single_format(options: argparse.Namespace, expected: str, *unused: str) -> None:
    """Raise a ValueError unless a format is the only one, without options that it does not have."""
    check(options.formats == [expected], f"be {expected} alone, or others", formats=options.formats)
    for name in ("name", "vocabulary_shortlist", "signature_key_file", *unused):
        value = getattr(options, name)
        check(value is None, f"be None for the format {expected}", **{name: value})


def _export_to_argos(options: argparse.Namespace) -> None:
    """Write a translator as a package of Argos Translate, whose name has the languages."""
    settings = generation.given_settings(options)
    _check_single_format(options, _ARGOS, "tokenizer", "max_new_tokens", *settings)
    file, precisions = pathlib.Path(options.folder), options.precisions or ["int8"]
    pair = re.fullmatch(r"([a-z]{2,3})[-_]([a-z]{2,3})\.argosmodel", file.name)
    check(pair is not None, "be named by its languages, such as es_en.argosmodel", folder=options.folder)
    check(len(precisions) == 1, f"be one for the format {_ARGOS}", precisions=precisions)
    if file.exists():
        raise FileExistsError(f"`{file}` exists already and is not changed")
    texts = conversion.texts_of(options)
    load_libraries()
    from keras_transformer import export, pipelines

    assert pair is not None
    written = export.argos_package(
        pipelines.load(options.path),
        file,
        from_code=pair[1],
        to_code=pair[2],
        precision=precisions[0],
        texts=texts,
        say=noting(options.names),
    )
    say(str(written))


def _export_to_transformers(options: argparse.Namespace) -> None:
    """Write a pipeline as a folder of `transformers`."""
    _check_single_format(options, _TRANSFORMERS, "precisions", "texts")
    load_libraries()
    from keras_transformer import pipelines

    pipeline = _exported(options)
    say(str(pipelines.to_hugging_face(pipeline, options.folder, tokenizer_folder=options.tokenizer)))


@quiet_start()
def _verify(options: argparse.Namespace) -> None:
    folders.check_export("folder", options.folder)
    folders.check_pipelines("--pipeline", [options.pipeline])
    key = _signature_key(options)
    load_libraries()
    from keras_transformer import export, pipelines

    pipeline = pipelines.load(options.pipeline) if options.pipeline else None
    say(json.dumps(export.verify(options.folder, pipeline, signature_key=key), indent=2))


def _signature_key(options: argparse.Namespace) -> bytes | None:
    """Read the key from its file; a key on the command line would be visible to other users."""
    return pathlib.Path(options.signature_key_file).read_bytes() if options.signature_key_file else None


def _show_scores(scores: dict[str, Any], metrics: Sequence[str]) -> None:
    width = max(map(len, metrics))
    for name in metrics:
        say(f"{name:{width}} {scores[name]:6.2f}   {scores['signatures'][name]}")
    say(f"exact match {scores['exact_match']:.1%} of {scores['sentences']:,} sentences")


class _Version(argparse.Action):
    """Print the version and exit."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:

        say(f"{_DISTRIBUTION} {importlib.metadata.version(_DISTRIBUTION)}")
        parser.exit()


class _Completion(argparse.Action):
    """Print a script for the completion of a shell, and exit."""

    def __call__(self, running: argparse.ArgumentParser, _: Any, shell: Any, *__: Any) -> None:
        try:
            import shtab
        except ImportError:
            message = (
                "`--print-completion` needs the package shtab, of the extra `completion`: pip install shtab"
            )
            raise ImportError(message) from None
        program = parser()
        _complete_values(program, shtab.FILE)
        say(shtab.complete(program, shell))
        running.exit()


def _complete_values(program: argparse.ArgumentParser, files: Any) -> None:
    """Complete the arguments of a program and of its commands with known values, and paths with the names of files."""
    for action in program._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                _complete_values(command, files)
        elif hasattr(action, "known_values"):  # by `suggest`
            action.choices = action.known_values
        elif action.dest in _PATHS or _HAS_PATH.search(str(action.metavar)):
            action.complete = files  # type: ignore[attr-defined]


def parser(chosen: str | None = None, arguments: Sequence[str] = ()) -> argparse.ArgumentParser:
    """Return the parser of the command line.

    Args:
        chosen: the command to run; the options of `serve`, which need other packages, are added for it only. None adds
            the options of all commands.
        arguments: the arguments to parse, which may name a task of another package.
    """
    program = argparse.ArgumentParser(
        prog="keras-transformer", description="Train, export and run transformers."
    )
    program.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    program.add_argument(
        "--print-completion",
        action=_Completion,
        choices=_SHELLS,
        help="print a script that completes options in a shell, and exit; needs the extra `completion`",
    )
    commands = program.add_subparsers(required=True, metavar="command")

    def command(name: str, run: Callable[[argparse.Namespace], Any], text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text)
        added.set_defaults(run=run)
        if name not in ("train", "serve"):
            add_quiet(added)
        return added

    quickstart = command("quickstart", _quickstart, "train, evaluate, export and verify a small translator")
    quickstart.add_argument("--output", default="runs/quickstart", help="default: %(default)s")
    quickstart.add_argument(
        "--epochs", type=int, default=5, help="the number of training epochs; default: %(default)s"
    )
    train = command("train", training.train, "train a model on your files, and evaluate it")
    if chosen in ("train", None):
        training.add_tasks(train, arguments)
    prediction.add_command(command)
    evaluate = command("evaluate", _evaluate, "score the outputs of a pipeline on a test set")
    evaluate.add_argument("path", help="a pipeline, a training run, or an export")
    evaluate.add_argument("--dataset", choices=list(DIRECTIONS), default="phrasebook")
    direction = evaluate.add_argument("--direction", help="source-target; default: es-en, for multi30k en-de")
    suggest(direction, dict.fromkeys(itertools.chain(*DIRECTIONS.values())))
    evaluate.add_argument(
        "--data", nargs="+", metavar="FILE", help="files of sources and targets, instead of a public dataset"
    )
    evaluate.add_argument(
        "--columns",
        nargs="+",
        type=column,
        metavar="COLUMN",
        help="their columns, by default as for train summarize, or as for the task of the pipeline",
    )
    training.add_fields(evaluate, TableOptions, _FILES)
    evaluate.add_argument(
        "--label-separator",
        metavar="TEXT",
        help="what separates the labels of a text, for classifiers of several labels",
    )
    evaluate.add_argument(
        "--metrics",
        nargs="+",
        choices=list(METRICS),
        metavar="METRIC",
        help="%(choices)s; default: bleu chrf. Pipelines that do not generate have the metrics of their report",
    )
    prediction.add_resample(evaluate)
    prediction.add_long_texts(evaluate)
    generation.add_commands(command, chosen)
    synthetic.add_commands(command)
    average = command(
        "average", _average, "save a pipeline with the mean of several checkpoints of its model"
    )
    average.add_argument("path", help="a pipeline, or a training run")
    average.add_argument("weights", nargs="+", help="files written by save_weights or a checkpoint callback")
    average.add_argument("--output", required=True, metavar="FOLDER", help="a new folder for the pipeline")
    export = command("export", _export, "write a pipeline as SavedModel, ONNX or CTranslate2")
    export.add_argument("path", help="a pipeline, or a training run")
    export.add_argument("folder", help="the folder of the export")
    conversion.add_formats(
        export,
        {
            _TRANSFORMERS: "a folder of `transformers`",
            _ARGOS: "a package of Argos Translate such as es_en.argosmodel",
        },
    )
    export.add_argument(
        "--tokenizer",
        metavar="FOLDER",
        help=f"for {_TRANSFORMERS}: copy the tokenizer's files from this folder; default: write them",
    )
    conversion.add_precisions(export)
    conversion.add_texts(export)
    export.add_argument("--name", help="the model's name in TensorFlow Serving; default: the folder's name")
    export.add_argument(
        "--version", type=int, default=1, help="the version in TensorFlow Serving; default: %(default)s"
    )
    export.add_argument(
        "--vocabulary-shortlist",
        metavar="FILE",
        help="generate only tokens of the texts in this file, one a line; default: the whole vocabulary",
    )
    conversion.add_settings(export).add_argument(
        "--max-new-tokens",
        type=int,
        metavar="N",
        help="the maximum number of generated tokens; default: the pipeline's",
    )
    key_file = "--signature-key-file"
    export.add_argument(key_file, metavar="FILE", help="a file with the key to sign the manifest with")
    conversion.add_command(command)
    serve = command(
        "serve", conversion.serve, "serve exports and published models over HTTP with ONNX Runtime"
    )
    if chosen in ("serve", None):
        from keras_transformer_serving import command_line

        command_line.add_arguments(serve)
        conversion.add_serve_options(serve)
    verify = command("verify", _verify, "verify an export's files and outputs")
    verify.add_argument("folder", help="an export")
    verify.add_argument("--pipeline", help="compare with this pipeline instead of the stored outputs")
    verify.add_argument(
        key_file, metavar="FILE", help="a file with the key that the manifest must be signed with"
    )
    return program
