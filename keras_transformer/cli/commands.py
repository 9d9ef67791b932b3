"""The command line `keras-transformer COMMAND`; `keras-transformer --help` lists the commands."""

import argparse
import json
import os
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

from keras_transformer.cli import generation
from keras_transformer_serving import command_line

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
        arguments: the arguments of the command line, by default those of the process.

    Returns:
        The exit status: 0, or 2 after an error, which is printed as one line on standard error.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    options = _parser().parse_args(arguments)
    try:
        options.run(options)
    except (ImportError, OSError, TypeError, ValueError) as error:
        print(f"keras-transformer: error: {' '.join(str(error).splitlines())}", file=sys.stderr)
        return 2
    return 0


def _quickstart(options: argparse.Namespace) -> None:
    from keras_transformer import recipes

    folder = pathlib.Path(options.output)
    recipes.quickstart(folder, options.epochs, _say)
    program = pathlib.Path(sys.argv[0])
    shown = program.relative_to(pathlib.Path.cwd()) if program.is_relative_to(pathlib.Path.cwd()) else program
    _say(_SERVE.format(program=shown, folder=folder, absolute=folder.absolute()))


def _train(options: argparse.Namespace) -> None:
    from keras_transformer import pipelines, recipes
    from keras_transformer_serving import files

    output = pathlib.Path(options.output or f"runs/{pathlib.Path(options.dataset).stem}-{options.direction}")
    # Check the output and requirements before training, not after it.
    if output.exists():
        raise FileExistsError(f"`--output` must be new. Received: {output}, which exists and is not changed")
    files.nearest_folder(output)
    pipelines.scorers()
    train, validation, test = _pairs(options.dataset, options.direction)
    recipe = recipes.PHRASEBOOK if options.dataset == "phrasebook" else recipes.TranslatorRecipe()
    _say(f"Training on {len(train):,} pairs for {options.minutes:g} minutes")
    pipeline, history = recipe.train(train, validation, minutes=options.minutes)
    pipeline.save(output / "pipeline")
    _say(f"Saved {output}/pipeline. Translating {len(test):,} held-out pairs")
    scores = pipelines.evaluate(pipeline, test)
    files.write_json(
        output / "report.json", {**scores, "epochs": history.history, "minutes": options.minutes}
    )
    _show_scores(scores)


def _evaluate(options: argparse.Namespace) -> None:
    from keras_transformer import pipelines

    _, _, test = _pairs(options.dataset, options.direction)
    _show_scores(pipelines.evaluate(generation.load(options.path), test))


def _average(options: argparse.Namespace) -> None:
    from keras_transformer import pipelines, training

    if pathlib.Path(options.output).exists():
        raise FileExistsError(
            f"`--output` must be new. Received: {options.output}, which exists and is not changed"
        )
    pipeline = pipelines.load(options.path)
    training.average_checkpoints(pipeline.model, options.weights)
    pipeline.save(options.output)
    _say(options.output)


def _export(options: argparse.Namespace) -> None:
    from keras_transformer import export, pipelines
    from keras_transformer_serving import bundle

    key = _signature_key(options)
    pipeline = pipelines.load(options.path)
    if not options.formats and options.version > 1 and bundle.has_part(options.folder, bundle.ONNX):
        raise FileExistsError(
            f"`{options.folder}/onnx` exists already and is not changed. Pass --formats saved_model to add only a "
            "version, or choose a different folder"
        )
    formats = set(options.formats or ("saved_model", "onnx"))
    if options.precisions and "onnx" not in formats:
        raise ValueError(
            "`--precisions` must be given only with the format onnx. "
            f"Received: --precisions {' '.join(options.precisions)}, --formats {' '.join(formats)}"
        )
    given: dict[str, Any] = {"signature_key": key}
    if "onnx" in formats:
        given["precisions"] = options.precisions or ["float32"]
    if "saved_model" in formats:
        given |= {"name": options.name, "version": options.version}
    write = export.bundle if len(formats) == 2 else getattr(export, *formats)
    _say(str(write(pipeline, options.folder, **given)))


def _verify(options: argparse.Namespace) -> None:
    from keras_transformer import export, pipelines

    key = _signature_key(options)
    pipeline = pipelines.load(options.pipeline) if options.pipeline else None
    _say(json.dumps(export.verify(options.folder, pipeline, signature_key=key), indent=2))


def _signature_key(options: argparse.Namespace) -> bytes | None:
    """Return the content of the key's file; the command line itself would show a key to other users."""
    return pathlib.Path(options.signature_key_file).read_bytes() if options.signature_key_file else None


def _pairs(dataset: str, direction: str) -> tuple[Any, Any, Any]:
    """Return the train, validation and test pairs of a public data set."""
    from keras_transformer.datasets import multi30k, phrasebook, spa_eng

    if dataset == "spa_eng":
        return spa_eng.load_data(direction)
    source, _, target = direction.partition("-")
    if dataset == "multi30k":
        return multi30k.load_data(source, target)
    if direction not in ("es-en", "en-es"):
        raise ValueError(f"`--direction` must be es-en or en-es. Received: {direction}")
    splits = phrasebook.load_data()
    if direction == "es-en":
        return splits
    train, validation, test = ([(english, spanish) for spanish, english in split] for split in splits)
    return train, validation, test


def _show_scores(scores: dict[str, Any]) -> None:
    for name in ("bleu", "chrf"):
        _say(f"{name:4} {scores[name]:6.2f}   {scores['signatures'][name]}")
    _say(f"exact match {scores['exact_match']:.1%} of {scores['sentences']:,} sentences")


def _say(line: str) -> None:
    print(line, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="keras-transformer", description="Train, export and run transformers."
    )
    commands = parser.add_subparsers(required=True, metavar="command")

    def command(name: str, run: Callable[[argparse.Namespace], None], text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text)
        added.set_defaults(run=run)
        return added

    def dataset(added: argparse.ArgumentParser, default: str) -> None:
        added.add_argument("--dataset", choices=["phrasebook", "spa_eng", "multi30k"], default="phrasebook")
        added.add_argument("--direction", default=default, help="source-target, such as %(default)s")

    quickstart = command("quickstart", _quickstart, "train, evaluate, export and verify a small translator")
    quickstart.add_argument("--output", default="runs/quickstart", help="default: %(default)s")
    quickstart.add_argument(
        "--epochs", type=int, default=5, help="the number of training epochs; default: %(default)s"
    )
    train = command("train", _train, "train a translator for a given time and evaluate it")
    dataset(train, "es-en")
    train.add_argument("--minutes", type=float, default=30.0, help="the training time; default: %(default)s")
    train.add_argument("--output", help="a new folder; default: runs/DATASET-DIRECTION")
    evaluate = command("evaluate", _evaluate, "translate a test set and score the outputs")
    evaluate.add_argument("path", help="a pipeline or an export")
    dataset(evaluate, "es-en")
    generation.add_commands(command)
    average = command(
        "average", _average, "save a pipeline with the mean of several checkpoints of its model"
    )
    average.add_argument("path", help="a pipeline")
    average.add_argument("weights", nargs="+", help="files written by save_weights or a checkpoint callback")
    average.add_argument("--output", required=True, metavar="FOLDER", help="a new folder for the pipeline")
    export = command("export", _export, "write a pipeline as SavedModel and ONNX")
    export.add_argument("path", help="a pipeline")
    export.add_argument("folder", help="the folder of the export")
    export.add_argument("--formats", nargs="+", choices=["saved_model", "onnx"], help="default: both")
    export.add_argument(
        "--precisions",
        nargs="+",
        choices=["float32", "float16", "int8"],
        help="of ONNX graphs: float32, and float16 for GPUs, int8 for CPUs; default: float32",
    )
    export.add_argument("--name", help="the model's name in TensorFlow Serving; default: the folder's")
    export.add_argument(
        "--version", type=int, default=1, help="the version in TensorFlow Serving; default: %(default)s"
    )
    key_file = "--signature-key-file"
    export.add_argument(key_file, metavar="FILE", help="a file with the key to sign the manifest with")
    serve = command("serve", command_line.run, command_line.DESCRIPTION)
    command_line.add_arguments(serve)
    verify = command("verify", _verify, "verify an export's files and outputs")
    verify.add_argument("folder", help="an export")
    verify.add_argument("--pipeline", help="compare with this pipeline instead of the stored outputs")
    verify.add_argument(
        key_file, metavar="FILE", help="a file with the key that the manifest must be signed with"
    )
    return parser
