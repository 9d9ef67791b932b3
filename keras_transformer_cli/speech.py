"""The options of `predict` for audio."""

import argparse
from collections.abc import Callable
from typing import Any

from keras_transformer_cli.output import flag_of, progress_of


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the options, apart from `--resample`, to a command."""
    command.add_argument(
        "--language",
        metavar="CODE",
        help="for a multilingual model of speech: the language of audio, such as es; default: the pipeline's, or it is "
        "detected",
    )
    command.add_argument(
        "--task",
        choices=["transcribe", "translate"],
        help="for a multilingual model of speech: write the spoken language, or English; default: the pipeline's",
    )
    command.add_argument(
        "--long-audio",
        choices=["refuse", "split", "sequential"],
        help="for a model of speech that generates: refuse audio that is too long (an error), split it into windows "
        "that overlap, or with timestamps read windows that follow each other; default: the pipeline's",
    )
    command.add_argument(
        "--prompt",
        metavar="TEXT",
        help="for a model of speech that was trained so: a text that would come before the audio, such as names",
    )
    command.add_argument(
        "--condition-on-previous-text",
        action="store_true",
        help="for a model of speech that was trained so: windows continue the text of those before",
    )


def from_options(
    answer: Callable[..., Any], reads: str, name: str, options: argparse.Namespace
) -> dict[str, Any]:
    """Return the options of the command line as arguments of calls.

    Args:
        answer: the pipeline, or the function of an export.
        reads: what it reads, "audio" or other inputs.
        name: the class of the pipeline.
        options: the options of the command line.
    """
    given = {"resample": options.resample or None}
    given |= {each: getattr(options, each) for each in ("language", "task", "long_audio", "prompt")}
    given["condition_on_previous_text"] = options.condition_on_previous_text or None
    given = {each: value for each, value in given.items() if value is not None}
    if reads != "audio":
        for each in given:
            raise ValueError(f"`{flag_of(each)}` must not be given for {reads}. Received: a {name}")
        return {}
    for each, known in (("language", "languages"), ("task", "tasks")):
        if each in given and not getattr(answer, known):
            raise ValueError(f"`{flag_of(each)}` needs a multilingual model. Received: {given[each]}")
    return {**given, "progress": progress_of("windows")}
