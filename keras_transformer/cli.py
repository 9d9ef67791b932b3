"""The command line: `keras-transformer quickstart | train | evaluate | generate | export | verify`."""

import argparse
import dataclasses
import json
import os
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

_SERVE = """
Translate with ONNX Runtime, without TensorFlow:
  {program} generate {folder}/export "¿Dónde está la estación?"

Serve with TensorFlow Serving, text to text:
  docker run --rm -p 8501:8501 -e MODEL_NAME=es-en \\
    -v "{absolute}/export/saved_model/es-en:/models/es-en" tensorflow/serving
  curl -d '{{"instances": ["¿Dónde está la estación?"]}}' localhost:8501/v1/models/es-en:predict
"""

_SETTINGS: dict[str, tuple[Any, str]] = {
    "num_beams": (int, "of a beam: hypotheses side by side"),
    "length_penalty": (float, "of a beam: above 0 for longer answers"),
    "normalization": (str, "of a beam: gnmt or length"),
    "diversity": (float, "of a beam"),
    "temperature": (float, "of sampling"),
    "top_k": (int, "of sampling and contrastive search"),
    "top_p": (float, "of sampling"),
    "min_p": (float, "of sampling"),
    "seed": (int, "of sampling"),
    "penalty_alpha": (float, "of contrastive search"),
    "num_return": (int, "of a beam or sampling: answers for each text, a line each"),
}
_OTHERS: dict[str, tuple[Any, str]] = {
    "sampler": (None, ""),
    "max_new_tokens": (int, "the longest answer"),
    "min_new_tokens": (int, "the shortest, without the end token"),
    "repetition_penalty": (float, "above 1 against tokens that came before"),
    "no_repeat_ngram": (int, "no sequence of so many tokens twice"),
    "banned": (None, ""),
    "forced": (None, ""),
    "scores": (bool, "the log-probability, a tab and the answer"),
    "json": (bool, "an object for each answer: text, scores, ids, the log-probability of each token"),
    "stream": (bool, "print each answer as it comes"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        arguments: of the command line, by default the process's.

    Returns:
        The exit status: 0, or 2 after an error, which is one line on standard error.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    options = _parser().parse_args(arguments)
    try:
        options.run(options)
    except (ImportError, OSError, TypeError, ValueError) as error:
        print(f"keras-transformer: error: {error}", file=sys.stderr)
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
    from keras_transformer import files, pipelines, recipes

    output = pathlib.Path(options.output or f"runs/{pathlib.Path(options.dataset).stem}-{options.direction}")
    # What would be in the way after the training is found before it.
    if output.exists():
        raise FileExistsError(
            f"`--output` must be new. Received: {output}, which exists and is left as it is"
        )
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
    _show_scores(pipelines.evaluate(_load(options.path), test))


def _generate(options: argparse.Namespace) -> None:
    texts = options.texts or [line.rstrip("\n") for line in sys.stdin]
    chosen = [
        name
        for name in (*_SETTINGS, *_OTHERS)
        if getattr(options, name) is not None and getattr(options, name) is not False
    ]
    pipeline = _load(options.path)
    if not chosen:
        for answer in pipeline(texts):
            _say(_line(answer))
        return
    if not hasattr(pipeline, "with_settings"):
        raise ValueError(
            "`path` must be a pipeline where settings are given; an export has its own. "
            f"Received: {', '.join(map(_flag, chosen))}"
        )
    pipeline = _with_settings(pipeline, options)
    if options.stream:
        for text in texts:
            for piece in pipeline.stream(text):
                print(" ".join(piece.split("\n")), end="", flush=True)
            _say("")
        return
    for row, answers in enumerate(pipeline.answers(texts)):
        for answer in answers:
            if options.json:
                _say(json.dumps({"row": row, **dataclasses.asdict(answer)}, ensure_ascii=False))
            else:
                _say((f"{answer.score:.4f}\t" if options.scores else "") + _line(answer.text))


def _with_settings(pipeline: Any, options: argparse.Namespace) -> Any:
    """The pipeline with what the command line says of sampler and constraints in place of its own."""
    from keras_transformer import generation
    from keras_transformer.generation import samplers

    config = samplers.serialize(
        pipeline.sampler if options.sampler is None else samplers.get(options.sampler)
    )
    for name in _SETTINGS:
        if (value := getattr(options, name)) is None:
            continue
        if name not in config:
            raise ValueError(
                f"`{_flag(name)}` must be a setting of the sampler. Received: {config['sampler']}"
            )
        config[name] = value
    given = [
        (options.min_new_tokens, generation.MinNewTokens),
        (options.repetition_penalty, generation.RepetitionPenalty),
        (options.no_repeat_ngram, generation.NoRepeatNGram),
        (_words(pipeline, options.banned), generation.BannedWords),
        (_words(pipeline, options.forced), generation.ForcedWords),
    ]
    more = [constraint(value) for value, constraint in given if value is not None]
    kept = [one for one in pipeline.constraints if type(one) not in {type(new) for new in more}]
    return pipeline.with_settings(config, constraints=[*kept, *more], max_new_tokens=options.max_new_tokens)


def _words(pipeline: Any, texts: Sequence[str] | None) -> list[list[int]] | None:
    """The ids of each text, for constraints."""
    return None if texts is None else [pipeline.tokenizer.tokenize([text]).to_list()[0] for text in texts]


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _line(text: str) -> str:
    return " ".join(text.splitlines())


def _export(options: argparse.Namespace) -> None:
    from keras_transformer import export, pipelines

    pipeline = pipelines.load(options.path)
    if not options.formats and options.version > 1 and (pathlib.Path(options.folder) / "onnx").exists():
        raise FileExistsError(
            f"`{options.folder}/onnx` exists already and is left as it is. Pass --formats saved_model to add a "
            "version alone, or choose another folder"
        )
    formats = options.formats or ["saved_model", "onnx"]
    if "saved_model" in formats:
        _say(str(export.saved_model(pipeline, options.folder, name=options.name, version=options.version)))
    if "onnx" in formats:
        _say(str(export.onnx(pipeline, options.folder)))


def _verify(options: argparse.Namespace) -> None:
    from keras_transformer import export, pipelines

    pipeline = pipelines.load(options.pipeline) if options.pipeline else None
    _say(json.dumps(export.verify(options.folder, pipeline), indent=2))


def _load(path: str) -> Callable[[Sequence[str]], list[str]]:
    """A pipeline, or an export, as a function from texts to texts."""
    folder = pathlib.Path(path)
    if (folder / "manifest.json").is_file():
        from keras_transformer import serving

        config = serving.Bundle(folder).config
        if "generation" not in config:
            raise ValueError(
                "`path` must be of a pipeline that generates. "
                f"Received: {folder}, the export of a {config['pipeline']}"
            )
        versions = [path for path in (folder / "saved_model").glob("*/*") if path.name.isdigit()]
        if not versions or ((folder / "onnx").is_dir() and serving.reads_text(config)):
            return serving.load(folder)
        from keras_transformer.export import parity

        saved_model = parity.SavedModel(max(versions, key=lambda version: int(version.name)), config)
        return lambda texts: _first(saved_model(texts)[parity.SAVED_MODEL][1]) if texts else []
    from keras_transformer import pipelines

    return pipelines.load(folder)


def _first(answers: Sequence[Any]) -> list[str]:
    """Of several hypotheses for a text the first."""
    return [answer if isinstance(answer, str) else answer[0] for answer in answers]


def _pairs(dataset: str, direction: str) -> tuple[Any, Any, Any]:
    """Train, validation and test pairs of a public set."""
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
    return tuple([(english, spanish) for spanish, english in split] for split in splits)


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
    quickstart.add_argument("--epochs", type=int, default=5, help="of training; default: %(default)s")
    train = command("train", _train, "train a translator for a given time, and evaluate it")
    dataset(train, "es-en")
    train.add_argument("--minutes", type=float, default=30.0, help="of training; default: %(default)s")
    train.add_argument("--output", help="a new folder; default: runs/DATASET-DIRECTION")
    evaluate = command("evaluate", _evaluate, "translate a test set and score the answers")
    evaluate.add_argument("path", help="a pipeline or an export")
    dataset(evaluate, "es-en")
    generate = command("generate", _generate, "one line of output for each text")
    generate.add_argument("path", help="a pipeline or an export")
    generate.add_argument("texts", nargs="*", help="by default the lines of standard input")
    generate.add_argument("--sampler", help="greedy, beam, sample or contrastive; default: the pipeline's")
    for name, (kind, text) in {**_SETTINGS, **_OTHERS}.items():
        if kind is bool:
            generate.add_argument(_flag(name), action="store_true", help=text)
        elif kind is not None:
            generate.add_argument(_flag(name), type=kind, help=text)
    for name in ("banned", "forced"):
        generate.add_argument(
            _flag(name), action="append", metavar="TEXT", help=f"{name} in every answer; may be repeated"
        )
    export = command("export", _export, "write a pipeline as SavedModel and ONNX")
    export.add_argument("path", help="a pipeline")
    export.add_argument("folder", help="of the export")
    export.add_argument("--formats", nargs="+", choices=["saved_model", "onnx"], help="default: both")
    export.add_argument("--name", help="in TensorFlow Serving; default: the folder's")
    export.add_argument("--version", type=int, default=1, help="in TensorFlow Serving; default: %(default)s")
    verify = command("verify", _verify, "check an export's files and answers")
    verify.add_argument("folder", help="an export")
    verify.add_argument("--pipeline", help="compare with this pipeline instead of the stored answers")
    return parser


if __name__ == "__main__":
    sys.exit(main())
