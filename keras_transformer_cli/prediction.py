"""The command `predict`, which runs any pipeline or export."""

import argparse
import contextlib
import dataclasses
import functools
import inspect
import json
import logging
import pathlib
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

from keras_transformer_cli import folders, input_files, languages, speech, subtitles
from keras_transformer_cli.output import error_text, in_chunks, one_line, suggest
from keras_transformer_cli.quiet import load_libraries, quiet_start

_LOGGER = logging.getLogger("keras_transformer")
_PLACEHOLDERS = ("jinja", "icu", "python", "rails", "variables", "printf", "url")  # by default


@dataclasses.dataclass(frozen=True)
class Predictor:
    """A pipeline or an export as a function of lines.

    Attributes:
        name: the class of the pipeline.
        answer: a function from lists of texts, one for each column, or from an image, to answers.
        columns: the possible numbers of columns of a line.
        reads: what its inputs are: "texts", "images" or "audio".
        image_size: the size (height, width, channels) of the images that the model takes; None for texts.
        resizes: whether `answer` resizes images itself.
        text: a function from an answer to a line of text.
    """

    name: str
    answer: Callable[..., Any]
    columns: tuple[int, ...]
    reads: str = "texts"
    image_size: tuple[int, ...] | None = None
    resizes: bool = True
    text: Callable[[Any], str] = str

    def __call__(self, lines: Sequence[str]) -> list[Any]:
        """Answer lines: texts, texts separated by tabs, or paths of images or audio."""
        if self.image_size is not None:
            return [self.answer(self._image(line)) for line in lines]
        rows = [line.split("\t") if max(self.columns) > 1 else [line] for line in lines]
        for index, (row, line) in enumerate(zip(rows, lines, strict=True)):
            if len(row) not in self.columns or len(row) != len(rows[0]):
                counts = " or ".join(map(str, self.columns))
                raise ValueError(
                    f"Each line must have {counts} texts, separated by tabs, the same number as the first. "
                    f"Received: lines[{index}]={line!r}"
                )
        return list(self.answer(*map(list, zip(*rows, strict=True))))

    def _image(self, line: str) -> Any:
        from keras_transformer.recipes import images

        height, _, channels = self.image_size or ()
        size = None if self.resizes else height
        image = images.load_image(pathlib.Path(line), size)
        return image if channels == 3 else images.gray(image)


def add_command(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the command to a parser.

    Args:
        command: a function that creates a command from a name, a function of its options and a description.
    """
    predict = command("predict", _predict, "print the answers of any pipeline or export, one per line")
    predict.add_argument("folder", help="a pipeline, a training run, or an export")
    predict.add_argument(
        "inputs",
        nargs="*",
        action=input_files.Texts,
        help="texts, texts of a pair separated by a tab, or image files; by default, and for -, the lines of standard "
        "input",
    )
    predict.add_argument(
        "--input", metavar="FILE", type=input_files.path_or_none, help="a file of lines, instead of `inputs`"
    )
    predict.add_argument("--output", metavar="FILE", help="a file for the answers; default: standard output")
    predict.add_argument("--format", choices=["text", "jsonl"], default="text", help="default: %(default)s")
    predict.add_argument(
        "--on-error",
        choices=["raise", "skip", "return"],
        default="raise",
        help="for an invalid line: end with its error, write no answer, or the error in place of the answer; "
        "default: %(default)s",
    )
    add_resample(predict)
    speech.add_options(predict)
    add_long_texts(predict)
    predict.add_argument(
        "--tag-handling",
        choices=["html", "placeholders"],
        help="for an encoder-decoder: keep HTML and XML tags and placeholders around the words that translate "
        "theirs, or placeholders such as {name} and %%s only; with html, `predict` reads a file or standard input as "
        "one text",
    )
    placeholders = predict.add_argument(
        "--placeholders",
        nargs="+",
        metavar="KIND",
        help=f"for an encoder-decoder: keep these kinds of placeholders: {' '.join(_PLACEHOLDERS)}, by default all of "
        "these, colon (:name) and at (@name)",
    )
    suggest(placeholders, (*_PLACEHOLDERS, "colon", "at"))
    predict.add_argument(
        "--placeholder-pattern",
        action="append",
        metavar="REGEX",
        help="a regular expression for other placeholders, in addition to --placeholders; may be repeated",
    )
    predict.add_argument(
        "--glossary",
        metavar="FILE",
        help="for an encoder-decoder: a file with a term and its translation in each line, separated by a tab",
    )
    predict.add_argument(
        "--glossary-mode",
        choices=["hard", "soft"],
        help="soft: keep other translations of a term that are much more probable; default: hard",
    )
    languages.add_options(predict)


def add_resample(command: argparse.ArgumentParser) -> None:
    """Add the option for audio of other sample rates to a command."""
    command.add_argument(
        "--resample",
        action="store_true",
        help="for speech: resample WAV files of other sample rates than the model's; needs SciPy",
    )


def add_long_texts(command: argparse.ArgumentParser) -> None:
    """Add the option for long texts to a command."""
    command.add_argument(
        "--long-texts",
        choices=["refuse", "split", "truncate"],
        help="for texts that are too long: refuse them (an error), split them into sentences (an encoder-decoder), or "
        "truncate them; with split, `predict` reads a file or standard input as one text whose paragraphs are kept; "
        "default: the pipeline's setting",
    )


def of_long_texts(setting: str | None) -> dict[str, Any]:
    """Return the argument of a call for the option `--long-texts`."""
    if setting is None:
        return {}
    return {"truncate": True} if setting == "truncate" else {"long_texts": setting}


def _predict(options: argparse.Namespace) -> None:
    if options.inputs and options.input:
        raise ValueError("`inputs` must not be combined with --input. Received: both")
    folders.check_new_file("--output", options.output)
    is_subtitles = subtitles.suffix_of(options.input) is not None
    if not is_subtitles:
        input_files.check_suffix(options.input, options.tag_handling)
    if is_subtitles and options.format != "text":
        raise ValueError(f"`--format` must be text for subtitles. Received: {options.format}")
    if is_subtitles and options.tag_handling is not None:
        raise ValueError(
            "`--tag-handling` must not be given for subtitles, whose tags are kept. "
            f"Received: {options.tag_handling}"
        )
    if is_subtitles and options.long_texts == "truncate":
        raise ValueError("`--long-texts` must be refuse or split for subtitles. Received: truncate")
    if options.long_texts == "truncate" and (
        options.tag_handling is not None or options.glossary is not None
    ):
        raise ValueError(
            "`--long-texts` must be refuse or split with --tag-handling and --glossary. Received: truncate"
        )
    is_document = options.long_texts == "split" or options.tag_handling == "html"
    if is_subtitles or (is_document and options.format == "text" and not options.inputs):
        if options.on_error != "raise":
            raise ValueError(
                f"`--on-error` must be raise for a file that is one document. Received: {options.on_error}"
            )
        _translate_file(options)
        return
    lines = options.inputs or input_files.read_lines(options.input)
    arguments = _of_documents(options)
    predictor = load(options.folder)
    answer = predictor.answer
    if options.long_texts == "truncate" and not arguments:
        answer = _truncating(predictor, options)
    elif options.long_texts is not None or arguments:
        answer = _translator(predictor, options)
    arguments |= languages.from_options(predictor.answer, options)
    arguments |= speech.from_options(predictor.answer, predictor.reads, predictor.name, options)
    predictor = dataclasses.replace(predictor, answer=functools.partial(answer, **arguments))
    unit = "input" if options.inputs else "line"
    errors = []
    answers = in_chunks(
        predictor, lines, place=place_of(options.inputs), returns_errors=options.on_error != "raise"
    )
    with output_file(options.output) as write:
        for line, answer in zip(lines, answers, strict=True):
            error = error_text(answer, options.names) if isinstance(answer, Exception) else None
            if error is not None:
                errors.append(answer)
                if options.on_error == "skip":
                    continue
            if options.format == "jsonl":
                row = {"answer": as_json(answer)} if error is None else {"error": error}
                shown = json.dumps({"input": line, **row}, ensure_ascii=False)
            else:
                shown = one_line(predictor.text(answer) if error is None else f"error: {error}")
            write(shown + "\n")
        if len(errors) == len(lines) > 1 and len({*map(str, errors)}) == 1:
            raise errors[0]  # of the options, not of a line
    if errors:
        done = "skips" if options.on_error == "skip" else "returns errors for"
        _LOGGER.warning(
            "predict %s %d of %d %ss (%.1f %%). The first: %s",
            done,
            len(errors),
            len(lines),
            unit,
            100 * len(errors) / len(lines),
            error_text(errors[0], options.names),
        )


def place_of(inputs: Sequence[str]) -> Callable[[int], str]:
    """Return the function that names rows in errors: inputs, or without them lines of a file."""
    unit = "input" if inputs else "line"
    return lambda row: f"{unit} {row + 1}"


def _translate_file(options: argparse.Namespace) -> None:
    """Translate subtitles, or a file or standard input as one text."""
    content = input_files.read(options.input)
    arguments = _of_documents(options)
    predictor = load(options.folder)
    arguments |= languages.from_options(predictor.answer, options)
    pipeline = functools.partial(_translator(predictor, options), **arguments)
    if options.tag_handling == "html":
        translation = input_files.translate_document(content, pipeline)
    elif subtitles.suffix_of(options.input) is not None:
        translation = subtitles.translate(content, pipeline, options.input)
    else:
        translation = input_files.translate_text(content, predictor.answer, **arguments)
    with output_file(options.output) as write:
        write(translation)


def _translator(predictor: Predictor, options: argparse.Namespace) -> Callable[..., Any]:
    """Return a translator with the option for long texts, as a function of texts."""
    if not hasattr(predictor.answer, "split_texts"):
        raise ValueError(
            "`folder` must be a TextToText, or its export with ONNX graphs, for --long-texts, --tag-handling, "
            f"--glossary and subtitles. Received: {options.folder}, a {predictor.name}"
        )
    return functools.partial(predictor.answer, **of_long_texts(options.long_texts))


def _truncating(predictor: Predictor, options: argparse.Namespace) -> Callable[..., Any]:
    """Return a function that truncates long texts."""
    if "truncate" not in inspect.signature(predictor.answer).parameters:
        raise ValueError(
            "`folder` must be a pipeline of texts, or its export with ONNX graphs, for --long-texts truncate. "
            f"Received: {options.folder}, a {predictor.name}"
        )
    return functools.partial(predictor.answer, truncate=True)


def _of_documents(options: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of a call for the options for tags and glossaries."""
    arguments = {"tag_handling": options.tag_handling, "glossary_mode": options.glossary_mode}
    if options.placeholders is not None or options.placeholder_pattern is not None:
        arguments["placeholders"] = _placeholders(options)
    if options.glossary is not None:
        arguments["glossary"] = input_files.read_glossary(options.glossary)
    return {name: value for name, value in arguments.items() if value is not None}


def _placeholders(options: argparse.Namespace) -> list[Any]:
    """Return the kinds of placeholders, names and patterns."""
    from keras_transformer_serving.text import markup

    placeholders: list[Any] = [*(options.placeholders or markup.DEFAULT_PLACEHOLDERS)]
    for pattern in options.placeholder_pattern or ():
        try:
            placeholders.append(re.compile(pattern))
        except re.error as error:
            raise ValueError(
                f"`--placeholder-pattern` must be a regular expression. Received: {pattern} ({error})"
            ) from None
    markup.patterns_of(placeholders)
    return placeholders


@contextlib.contextmanager
def output_file(path: str | None) -> Iterator[Callable[[str], Any]]:
    """Give a function that writes to standard output, or to a file that has its name when it is complete."""
    if path is None:
        yield sys.stdout.write
        sys.stdout.flush()
        return
    from keras_transformer_serving import files

    with _terminable(), files.new_file(path) as file:
        yield lambda text: file.write(text.encode())


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise a SystemExit, so that incomplete files are removed."""

    def end(number: int, frame: Any) -> NoReturn:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    numbers = [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]  # as with `nohup`
    before = {number: signal.signal(number, end) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def load(folder: str) -> Predictor:
    """Load a pipeline, a training run's pipeline, or an export; ONNX graphs of texts do not need TensorFlow."""
    from keras_transformer_serving import bundle

    path = pathlib.Path(folder)
    if bundle.is_bundle(path):
        return _of_export(path)
    folders.check_pipelines("folder", [folder], exports=True)
    load_libraries()
    with quiet_start():
        from keras_transformer import pipelines

        pipeline = pipelines.load(path)
    name = type(pipeline).__name__
    if not pipeline.reads:
        raise ValueError(f"`folder` must be a pipeline of texts, images or audio. Received: a {name}")
    if pipeline.reads == "images":
        model = pipeline.model
        size = (*model.image_size, model.num_channels)
        return Predictor(name, pipeline, (1,), pipeline.reads, size, pipeline.resize, pipeline.text)
    return Predictor(name, pipeline, _counts(pipeline, pipeline.config), pipeline.reads, text=pipeline.text)


def _of_export(path: pathlib.Path) -> Predictor:
    import keras_transformer_serving as serving
    from keras_transformer_serving.tasks import ExportedPipeline, Task

    export = serving.Bundle(path)
    config = export.config
    name = config["pipeline"]
    task = ExportedPipeline.named(name) or Task
    if "generation" in config:
        return Predictor(name, generating_export(export), (1,), text=task.text)
    if not task.reads:
        raise ValueError(
            f"`folder` must be an export of texts, images or audio. Received: an export of a {name}"
        )
    model = serving.load(path)
    if task.reads == "images":
        size = (*config["image_size"], config["num_channels"])
        return Predictor(name, model, (1,), task.reads, size, resizes=False, text=task.text)
    return Predictor(name, model, _counts(task, config), task.reads, text=task.text)


@dataclasses.dataclass(frozen=True)
class _SavedModelTexts:
    """The texts that a SavedModel generates.

    Attributes:
        run: a function from texts and languages to the answers.
        languages: the model's languages; none for most models.
    """

    run: Callable[..., list[str]]
    languages: Sequence[str]

    def __call__(self, texts: Sequence[str], **row_languages: str) -> list[str]:
        """Return the first output of each text."""
        return self.run(texts, **row_languages) if texts else []


def generating_export(export: Any) -> Callable[..., list[str]]:
    """Return the part of a generating export that runs without TensorFlow, or its newest SavedModel, as a function."""
    import keras_transformer_serving as serving

    folder, config = export.folder, export.config
    parts = [part for part in export.parity if (folder / part).is_dir()]
    versions = [folder / part for part in parts if part.startswith("saved_model/")]
    if not versions or (any(map(serving.ServedTarget.named, parts)) and serving.reads_text(config)):
        generate: Callable[..., list[str]] = serving.load(folder)
        return generate
    load_libraries()
    from keras_transformer.export.parity import generation

    saved_model = generation.GeneratingSavedModel(
        max(versions, key=lambda version: int(version.name)), config
    )

    def run(texts: Sequence[str], **row_languages: str) -> list[str]:
        return first_answers(saved_model(texts, **row_languages)[generation.SAVED_MODEL][1])

    return _SavedModelTexts(run, config.get("languages", ()))


def first_answers(answers: Sequence[Any]) -> list[str]:
    """Return the first of several hypotheses for each text."""
    return [answer if isinstance(answer, str) else answer[0] for answer in answers]


def as_json(answer: Any) -> Any:
    """Convert an answer to JSON: named tuples to objects, arrays to lists."""
    if hasattr(answer, "_asdict"):
        return {name: as_json(value) for name, value in answer._asdict().items()}
    if isinstance(answer, list | tuple):
        return [as_json(item) for item in answer]
    return answer.tolist() if hasattr(answer, "tolist") else answer


def _counts(task: Any, config: dict[str, Any]) -> tuple[int, ...]:
    """Return the possible numbers of inputs in a line: the required ones of each signature, but lists of strings."""

    def is_in_line(tensor: Any) -> bool:
        return tensor.required and not (tensor.dtype == "string" and tensor.shape)

    return tuple(sorted({sum(map(is_in_line, tensors)) for tensors in task.columns(config).values()}))
