"""The commands `distill` and `back-translate`, which generate pairs to train on."""

import argparse
import hashlib
import os
import pathlib
from collections.abc import Callable
from typing import Any

from keras_transformer_cli import folders, generation, languages, training
from keras_transformer_cli.output import note, say
from keras_transformer_cli.quiet import quiet_start
from keras_transformer_options.arguments import check_positive_integer, renamed
from keras_transformer_options.files import checked_paths
from keras_transformer_options.task_options import TableOptions, column
from keras_transformer_options.tasks import TASKS

# Options of the student's training that `distill` determines, or that are for the texts or the teacher.
_FILES = ("columns", *training.FILE_FORMAT, "on_error")
_LANGUAGES = ("source_language", "target_language")
_DETERMINED = ("data", *_FILES, "dataset", "direction", "reverse", "from_", "revision", *_LANGUAGES)
_NUM_BEAMS = 4


def add_commands(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the commands to a parser.

    Args:
        command: a function that creates a command from a name, a function of its options and a description.
    """
    distill = command("distill", _distill, "train a small translator on the outputs of a large one")
    _add_generation(distill, "teacher", "the texts for which the teacher generates the targets")
    training.add_options(distill, TASKS["translate"], without=_DETERMINED)
    distill.add_argument(
        "--output", metavar="FOLDER", required=True, help="a new folder, for pairs.tsv and the run `student`"
    )
    back = command("back-translate", _back_translate, "generate sources for texts of the target language")
    _add_generation(back, "path", "the texts, which are the targets")
    back.add_argument(
        "--sample",
        action="store_true",
        help="sample sources instead of beam search, which adds noise to them (Edunov et al. 2018)",
    )
    back.add_argument("--output", metavar="FILE", required=True, help="a new TSV file of sources and targets")
    back.add_argument("--backend", choices=training.BACKENDS, help="see train")


def _add_generation(parser: argparse.ArgumentParser, name: str, texts: str) -> None:
    parser.add_argument(name, help="a pipeline or a training run from text to text, or its export")
    parser.add_argument(
        "--data", nargs="+", metavar="FILE", required=True, help=f"{texts}: plain text, TSV, CSV or JSONL"
    )
    parser.add_argument(
        "--columns", nargs=1, type=column, metavar="COLUMN", help="their column; default: the first"
    )
    training.add_fields(parser, TableOptions, training.FILE_FORMAT)
    parser.add_argument(
        "--num-beams",
        type=int,
        help=f"the number of beams, for a pipeline or a run; default: {_NUM_BEAMS}. An export has its own sampler",
    )
    languages.add_options(parser)


def _distill(options: argparse.Namespace) -> int:
    training.set_backend(options.backend)
    folder = pathlib.Path(options.output)
    if folder.exists() and not options.resume:
        raise FileExistsError(
            f"`--output` must be new. Received: {folder}, which exists and is not changed; --resume continues an "
            "interrupted run"
        )
    pairs = folder / "pairs.tsv"
    values = {name: value for name, value in training.values_of(options).items() if name not in _DETERMINED}
    values |= {"data": [pairs], "header": False}
    if not values.keys() & {"tokenizer", "vocabulary_size", "normalization"}:
        teacher = pathlib.Path(options.teacher)
        for tokenizer in (teacher / "tokenizer", teacher / "pipeline" / "tokenizer"):
            if tokenizer.is_dir():
                values["tokenizer"] = tokenizer
    options.task(**values)
    _check(options, "teacher")
    with training.all_processes():
        if not pairs.exists():
            _generate(options, "teacher", pairs)
        return training.run(options, values, folder / "student")


def _back_translate(options: argparse.Namespace) -> None:
    training.set_backend(options.backend)
    folders.check_new_file("--output", options.output)
    _check(options, "path")
    with training.all_processes():
        say(str(_generate(options, "path", pathlib.Path(options.output), generated_first=True)))


def _check(options: argparse.Namespace, name: str) -> None:
    """Check the options before libraries are imported."""
    if options.num_beams is not None:
        check_positive_integer(num_beams=options.num_beams)
        if getattr(options, "sample", False):
            raise ValueError("`--num-beams` must not be combined with --sample. Received: both")
    folders.check_pipelines(name, [getattr(options, name)], exports=True)
    checked_paths(options.data, "data")


def _generate(
    options: argparse.Namespace, name: str, path: pathlib.Path, generated_first: bool = False
) -> pathlib.Path:
    """Write the pairs of the texts and the outputs of a pipeline or export."""
    from keras_transformer import data, recipes
    from keras_transformer.generation import Beam, Sample

    folder = getattr(options, name)
    with renamed(paths="data"):
        columns = options.columns or [0]
        file_format = training.given_fields(options, training.FILE_FORMAT)
        rows = data.read_examples(options.data, columns, **file_format, on_error="skip")
    with quiet_start():
        pipeline: Any = generation.load(folder)
    if not hasattr(pipeline, "split_texts"):
        raise ValueError(
            f"`{name}` must be a pipeline from text to text, or its export with ONNX graphs. Received: {folder}"
        )
    samples = getattr(options, "sample", False)
    sampler = Sample() if samples else Beam(options.num_beams or _NUM_BEAMS)
    if hasattr(pipeline, "with_settings"):
        pipeline = pipeline.with_settings(sampler)
    elif samples or options.num_beams is not None:
        raise ValueError(
            f"`{name}` must be a pipeline to choose the sampler; that of an export is fixed. Received: {folder}, "
            + ("--sample" if samples else f"--num-beams {options.num_beams}")
        )
    chosen = languages.from_options(pipeline, options)

    def generate(texts: list[str]) -> list[str]:
        answers: list[str] = pipeline(texts, long_texts="split", **chosen)
        return answers

    texts = (row[0] for row in rows)
    key = f"{_digest(pathlib.Path(folder))} {sampler} {chosen}"
    return recipes.generate_pairs(generate, texts, path, key=key, generated_first=generated_first, say=note)


def _digest(folder: pathlib.Path) -> str:
    """Return a hash of the files of a pipeline, a run or an export."""
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            digest.update(os.fsencode(path.relative_to(folder)))
            with open(path, "rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()
