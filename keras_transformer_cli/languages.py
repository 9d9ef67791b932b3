"""The options for the languages of translation models."""

import argparse
import functools
from collections.abc import Callable
from typing import Any

from keras_transformer_cli.output import flag_of

_HELP = {
    "source_language": "the language of texts, for a translation model of many languages, such as eng_Latn",
    "target_language": "the language of outputs, likewise",
}


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the options to a command."""
    for name, text in _HELP.items():
        default = "; default: the pipeline's"
        command.add_argument(flag_of(name), metavar="CODE", help=text + default)


def from_options(pipeline: Any, options: argparse.Namespace) -> dict[str, str]:
    """Return the languages of the command line, as arguments of calls."""
    from keras_transformer_serving.pipelines import languages

    given = {name: getattr(options, name) for name in _HELP if getattr(options, name) is not None}
    reads_texts = getattr(pipeline, "reads", "texts") == "texts"
    known = getattr(pipeline, "languages", ()) if reads_texts else ()
    for name, language in given.items():
        if not known:
            raise ValueError(
                f"`{flag_of(name)}` needs a translation model of many languages. Received: {language}"
            )
        if language not in known:
            raise ValueError(languages.expectation(flag_of(name), known) + language)
    return given


def with_languages(answer: Callable[..., Any], options: argparse.Namespace) -> Callable[..., Any]:
    """Return a function of texts with the languages of the command line."""
    given = from_options(answer, options)
    return functools.partial(answer, **given) if given else answer
