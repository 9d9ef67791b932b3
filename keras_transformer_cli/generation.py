"""The commands `generate`, `score` and `align` of the command line."""

import argparse
import dataclasses
import functools
import json
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

from keras_transformer_cli import folders, languages
from keras_transformer_cli.input_files import Texts, read_lines
from keras_transformer_cli.output import errors_at, flag_of, in_chunks, one_line, say
from keras_transformer_cli.prediction import generating_export, place_of
from keras_transformer_cli.quiet import load_libraries, quiet_start
from keras_transformer_options.arguments import check

# The settings of samplers: the type or the choices of each, and its description.
_SETTINGS: dict[str, tuple[Any, str]] = {
    "num_beams": (int, "beam: the number of hypotheses"),
    "length_penalty": (float, "beam: above 0 for longer outputs"),
    "normalization": (("gnmt", "length"), "beam: how the length penalty grows"),
    "diversity": (float, "beam: above 0 for more diverse hypotheses"),
    "early_stopping": (bool, "beam: stop when no better hypothesis is possible"),
    "top_k": (int, "sample, contrastive: the number of most probable tokens to choose from"),
    "top_p": (float, "sample: the probability mass of the most probable tokens to choose from"),
    "min_p": (float, "sample: the lowest probability of a token, relative to the most probable one"),
    "penalty_alpha": (float, "contrastive: the weight of dissimilarity, from 0 to 1"),
    "num_tokens": (int, "speculative: the number of tokens that the draft proposes at a time"),
    "num_return": (int, "beam, sample: the number of outputs for each text, one per line"),
}
_CONSTRAINTS: dict[str, tuple[Any, str]] = {
    "repetition_penalty": (float, "above 1 to penalise earlier tokens"),
    "no_repeat_ngram": (int, "forbid the repetition of sequences of this many tokens"),
}
_REPEATED = {
    "banned": ("TEXT", "a text that no output contains; may be repeated"),
    "forced": ("TEXT", "beam: a text that every output contains; may be repeated"),
    "end": ("TEXT", "an additional end token; may be repeated"),
    "ensemble": ("FOLDER", "a pipeline whose model is averaged with the model of path; may be repeated"),
}
_SHOWN = {
    "scores": "print the log-probability, a tab and the output",
    "json": "print an object for each output: text, scores, ids, the log-probability of each token",
    "stream": "print each output while it is generated",
}
_OF_MODELS = ("num_tokens", "ensemble")
_FIXED = ("sampler", "draft", *_SETTINGS, *_CONSTRAINTS, *_REPEATED)  # of an export


def add_commands(command: Callable[..., argparse.ArgumentParser], chosen: str | None = None) -> None:
    """Add the commands to a parser.

    Args:
        command: a function that creates a command from a name, a function of its options and a description.
        chosen: the command to run; the options of `generate`, which import NumPy, are added for it only. None adds
            those of all commands.
    """
    generate = command("generate", _generate, "print one line of output for each text")
    if chosen in ("generate", None):
        _add_generate(generate)
    score = command("score", _score, "print the log-probability of an output, a tab and the output")
    score.add_argument("path", help="a pipeline, or a training run")
    score.add_argument(
        "source", nargs="?", help="a text; by default lines of a text, a tab and its output on standard input"
    )
    score.add_argument("target", nargs="?", help="its output")
    languages.add_options(score)
    align = command(
        "align",
        _align,
        "print, for each piece of an output, the piece of its text with the largest attention weight",
    )
    align.add_argument("path", help="a pipeline of an encoder-decoder, or its training run")
    align.add_argument("source", help="a text")
    align.add_argument("target", nargs="?", help="an output; by default the pipeline's")
    languages.add_options(align)
    align.add_argument("--layer", type=int, default=-1, help="the decoder layer; default: the last")
    align.add_argument(
        "--head", type=int, action="append", help="a head; may be repeated; default: the mean of all"
    )
    align.add_argument("--output", metavar="FILE", help="plot all weights to a file, such as attention.png")


def _add_generate(generate: argparse.ArgumentParser) -> None:
    from keras_transformer_serving.row_options import of_calls

    generate.add_argument("path", help="a pipeline, a training run, or an export")
    generate.add_argument(
        "texts", nargs="*", action=Texts, help="by default, and for -, the lines of standard input"
    )
    add_settings(generate, with_models=True)
    for name, row_option in of_calls().items():
        generate.add_argument(
            flag_of(name),
            type=functools.partial(_numbers, float if row_option.is_real else int),
            metavar="X[,X...]" if row_option.is_real else "N[,N...]",
            help=f"{row_option.help}, or one for each text, such as 8 or 8,16,8",
        )
    generate.add_argument(
        "--prefix",
        action="append",
        metavar="TEXT",
        help="the prefix of outputs, once for all texts or once for each text",
    )
    languages.add_options(generate)
    generate.add_argument(
        "--chat",
        action="store_true",
        help="each text is the message of a user, or a conversation in JSON, for a model with a chat template",
    )
    for name, text in _SHOWN.items():
        generate.add_argument(flag_of(name), action="store_true", default=None, help=text)


def add_settings(parser: Any, with_models: bool = False) -> None:
    """Add the options for the settings of a pipeline that generates, which `with_settings` reads.

    Args:
        parser: a parser, or a group of its arguments.
        with_models: whether to add those that need another model, which no export has.
    """
    samplers = ["greedy", "beam", "sample", "contrastive", *(["speculative"] if with_models else [])]
    parser.add_argument("--sampler", choices=samplers, help="default: the pipeline's")
    if with_models:
        parser.add_argument("--draft", metavar="FOLDER", help="speculative: the pipeline of a smaller model")
    for name, (kind, text) in {**_SETTINGS, **_CONSTRAINTS}.items():
        if name in _OF_MODELS and not with_models:
            continue
        option: dict[str, Any] = {"type": kind}
        if kind is bool:
            option = {"action": argparse.BooleanOptionalAction}
        elif isinstance(kind, tuple):
            option = {"choices": kind}
        parser.add_argument(flag_of(name), help=text, **option)
    for name, (metavar, text) in _REPEATED.items():
        if name in _OF_MODELS and not with_models:
            continue
        parser.add_argument(flag_of(name), action="append", metavar=metavar, help=text)


def given_settings(options: argparse.Namespace) -> list[str]:
    """Return the names of the options of `add_settings` that are given."""
    return [name for name in _FIXED if getattr(options, name, None) is not None]


def _generate(options: argparse.Namespace) -> None:
    from keras_transformer_serving.row_options import of_calls

    fixed = given_settings(options)
    if options.stream and (options.scores or options.json):
        raise ValueError("`--stream` must not be combined with --scores or --json. Received: both")
    if (options.sampler == "speculative") != (options.draft is not None):
        raise ValueError(
            "`--draft` is required with --sampler speculative, and is only valid with it. "
            f"Received: --sampler {options.sampler}, --draft {options.draft}"
        )
    for name, others in (("--draft", [options.draft]), ("--ensemble", options.ensemble or [])):
        folders.check_pipelines(name, others)
    pipeline: Any = load(options.path)
    texts: list[Any] = options.texts or read_lines()
    if options.chat:
        if getattr(pipeline, "chat_template", None) is None:
            raise ValueError(
                "`--chat` must be for a pipeline with a chat template, or its ONNX graphs. "
                f"Received: {options.path}, which has none"
            )
        texts = [_conversation(text) for text in texts]
    translation = languages.from_options(pipeline, options)
    of_texts = {
        name: _for_each(name, given, len(texts))
        for name in (*of_calls(), "prefix")
        if (given := getattr(options, name)) is not None
    }
    shown = [name for name in _SHOWN if getattr(options, name)]
    if not (fixed or of_texts or shown):
        answers = in_chunks(languages.with_languages(pipeline, options), texts, place=place_of(options.texts))
        for answer in answers:
            say(one_line(answer))
        return
    if fixed and not hasattr(pipeline, "with_settings"):
        raise ValueError(
            "`path` must be a pipeline to change settings; the settings of an export are fixed. "
            f"Received: {', '.join(map(flag_of, fixed))}"
        )
    if not hasattr(pipeline, "answers"):
        raise ValueError(
            "`path` must be a pipeline, or an export with ONNX graphs, for options of texts. "
            f"Received: {', '.join(map(flag_of, (*of_texts, *shown)))}, and an export without them"
        )
    if hasattr(pipeline, "with_settings"):
        limits = of_texts.get("max_new_tokens")
        pipeline = with_settings(pipeline, options, max(limits) if limits else None)
    if options.stream:
        for row, text in enumerate(texts):
            given = {name: values[row] for name, values in of_texts.items()}
            for piece in pipeline.stream(text, given.pop("prefix", ""), **given, **translation):
                say(" ".join(piece.split("\n")), end="")
            say("")
        return
    prefixes = {"prefixes": of_texts.pop("prefix")} if "prefix" in of_texts else {}
    with errors_at(place_of(options.texts)):
        rows = pipeline.answers(texts, **prefixes, **of_texts, **translation)
    for row, answers in enumerate(rows):
        for answer in answers:
            if options.json:
                say(json.dumps({"row": row, **dataclasses.asdict(answer)}, ensure_ascii=False))
            else:
                say((_number(answer.score) if options.scores else "") + one_line(answer.text))


def _conversation(text: str) -> Any:
    """Return the conversation of a text: JSON, a list of messages or an object with them, or the message of a user."""
    from keras_transformer_serving.text.chat import is_conversation

    if not text.lstrip().startswith(("[", "{")):
        return [{"role": "user", "content": text}]
    try:
        conversation = json.loads(text)
    except json.JSONDecodeError:
        conversation = None
    if not is_conversation(conversation):
        raise ValueError(
            "`texts` with --chat must be the message of a user, or JSON such as "
            f'[{{"role": "user", "content": "Hello"}}]. Received: {text}'
        )
    return conversation


def _score(options: argparse.Namespace) -> None:
    if options.source is None:
        lines = enumerate(read_lines(), start=1)
        pairs = {number: line.split("\t") for number, line in lines if line.strip()}
    elif options.target is None:
        raise ValueError("`target` is required with `source`. Received: only the source")
    else:
        pairs = {1: [options.source, options.target]}
    for number, pair in pairs.items():
        if len(pair) != 2:
            raise ValueError(
                "Standard input must be lines of a text, one tab and an output. "
                f"Received: {len(pair) - 1} tabs in line {number}"
            )
    sources, targets = map(list, zip(*pairs.values(), strict=True)) if pairs else ([], [])
    pipeline = _load_pipeline("path", options.path)
    places = ["input 1"] if options.source is not None else [f"line {number}" for number in pairs]
    with errors_at(places.__getitem__):
        answers = pipeline.score(sources, targets, **languages.from_options(pipeline, options))
    for answer in answers:
        say(_number(answer.score) + one_line(answer.text))


def _align(options: argparse.Namespace) -> None:
    pipeline = _load_pipeline("path", options.path)
    choice = {"layer": options.layer, "head": options.head, **languages.from_options(pipeline, options)}
    alignment = pipeline.align(options.source, options.target, **choice)
    target_width = max(map(len, alignment.target), default=0)
    source_width = max(map(len, alignment.source), default=0)
    for piece, row in zip(alignment.target, alignment.weights, strict=True):
        source = alignment.source[row.argmax()]
        say(f"{piece:{target_width}}  {source:{source_width}}  {row.max():.2f}")
    if options.output is not None:
        from keras_transformer import inspection

        axes = inspection.plot_attention(alignment.weights, alignment.target, alignment.source)
        axes.figure.savefig(options.output)


def load(path: str) -> Callable[[Sequence[str]], Sequence[str]]:
    """Load a text generation pipeline, or its export, as a function from texts to texts."""
    import keras_transformer_serving as serving

    folders.check_pipelines("path", [path], exports=True)
    folder = pathlib.Path(path)
    if not serving.bundle.is_bundle(folder):
        pipeline: Callable[[Sequence[str]], Sequence[str]] = _load_pipeline("path", path)
        return pipeline
    export = serving.Bundle(folder)
    if "generation" not in export.config:
        name = export.config["pipeline"]
        raise ValueError(f"`path` must be a generating pipeline. Received: {folder}, the export of a {name}")
    return generating_export(export)


def _load_pipeline(name: str, folder: str | pathlib.Path) -> Any:
    """Load a text generation pipeline from a folder."""
    folders.check_pipelines(name, [str(folder)])
    load_libraries()
    with quiet_start():
        from keras_transformer import pipelines

        pipeline = pipelines.load(folder)
    if not pipeline.generates:
        raise ValueError(
            f"`{name}` must be a generating pipeline. Received: {folder}, a {type(pipeline).__name__}"
        )
    return pipeline


def with_settings(pipeline: Any, options: argparse.Namespace, max_new_tokens: int | None) -> Any:
    """Return the pipeline with the models, sampler, constraints and limit of the command line.

    Args:
        pipeline: a pipeline that generates.
        options: those of `add_settings`.
        max_new_tokens: the limit; None for the pipeline's.
    """
    from keras_transformer import generation

    values = [
        (options.repetition_penalty, generation.RepetitionPenalty),
        (options.no_repeat_ngram, generation.NoRepeatNGram),
        (_ids(pipeline, options.banned), generation.BannedWords),
        (_ids(pipeline, options.forced), generation.ForcedWords),
        (_end_ids(pipeline, options.end), generation.EndTokens),
    ]
    new = [constraint(value) for value, constraint in values if value is not None]
    kept = [constraint for constraint in pipeline.constraints if type(constraint) not in set(map(type, new))]
    model = None
    if getattr(options, "ensemble", None):
        others = [_same_vocabulary("ensemble", folder, pipeline).model for folder in options.ensemble]
        model = generation.Ensemble([pipeline.model, *others])
    return pipeline.with_settings(
        _sampler(pipeline, options),
        model=model,
        constraints=[*kept, *new],
        max_new_tokens=max_new_tokens,
    )


def with_fixed_settings(pipeline: Any, options: argparse.Namespace, max_new_tokens: int | None = None) -> Any:
    """Return a pipeline of any task with the settings of the command line, for its export."""
    given = {name: getattr(options, name) for name in given_settings(options)}
    given |= {} if max_new_tokens is None else {"max_new_tokens": max_new_tokens}
    for name, value in given.items():
        has_settings = hasattr(pipeline, "with_settings")
        check(has_settings, f"be None for a {type(pipeline).__name__}", **{name: value})
    return with_settings(pipeline, options, max_new_tokens) if given else pipeline


def _sampler(pipeline: Any, options: argparse.Namespace) -> Any:
    """Return the sampler of the command line, by default the pipeline's, with the settings of the command line."""
    from keras_transformer.generation import samplers

    if getattr(options, "draft", None) is not None:
        sampler: Any = samplers.Speculative(_same_vocabulary("draft", options.draft, pipeline).model)
    else:
        sampler = pipeline.sampler if options.sampler is None else samplers.get(options.sampler)
    settings = {name: getattr(options, name) for name in given_settings(options) if name in _SETTINGS}
    fields = {field.name for field in dataclasses.fields(sampler)}
    for name in settings:
        if name not in fields:
            raise ValueError(
                f"`{flag_of(name)}` must be a setting of the sampler. Received: {type(sampler).__name__.lower()}"
            )
    return dataclasses.replace(sampler, **settings)


def _same_vocabulary(name: str, folder: str, pipeline: Any) -> Any:
    """Load another pipeline with the same tokenizer."""
    other = _load_pipeline(flag_of(name), folder)
    if other.tokenizer.sha256 != pipeline.tokenizer.sha256:
        raise ValueError(
            f"`{flag_of(name)}` must be a pipeline with the tokenizer of `path`. "
            f"Received: {folder}, with another tokenizer"
        )
    return other


def _ids(pipeline: Any, texts: Sequence[str] | None) -> list[list[int]] | None:
    """Return the ids of each text, for constraints."""
    return None if texts is None else pipeline.tokenizer.tokenize(texts).to_list()


def _end_ids(pipeline: Any, texts: Sequence[str] | None) -> list[int] | None:
    """Return the ids of texts that are one token, either as a piece within a word or as a complete text."""
    if texts is None:
        return None
    tokenizer, end_ids = pipeline.tokenizer, []
    for text, ids in zip(texts, tokenizer.tokenize(texts).to_list(), strict=True):
        piece = tokenizer.piece_to_id(text)
        candidates = {*([] if piece == tokenizer.unknown_id else [piece]), *(ids if len(ids) == 1 else [])}
        if not candidates - {tokenizer.unknown_id}:
            raise ValueError(f"`--end` must be one token. Received: {text!r}, which is {len(ids)} tokens")
        end_ids += sorted(candidates)
    return end_ids


def _for_each(name: str, values: Sequence[Any], count: int) -> list[Any]:
    """Repeat a single value for all texts, or return one value for each of `count` texts."""
    if len(values) not in (1, count):
        raise ValueError(
            f"`{flag_of(name)}` must occur once, or once for each of {count} texts. Received: {len(values)}"
        )
    return list(values) * (count if len(values) == 1 else 1)


def _numbers(kind: type, text: str) -> list[Any]:
    try:
        return [kind(number) for number in text.split(",")]
    except ValueError:
        numbers = "integers such as 8 or 8,16,8" if kind is int else "numbers such as 0.7 or 0.7,1"
        raise argparse.ArgumentTypeError(f"must be {numbers}. Received: {text}") from None


def _number(score: float) -> str:
    return f"{score:.4f}\t"
