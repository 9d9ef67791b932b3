"""Training pairs that a model generates: sequence-level distillation and back-translation."""

import contextlib
import hashlib
import itertools
import os
import pathlib
from collections.abc import Callable, Iterable, Sequence
from typing import TextIO

from keras_transformer import processes
from keras_transformer_options.arguments import check, check_positive_integer

_CHUNK = 512  # texts between two writes


def generate_pairs(
    generate: Callable[[list[str]], Sequence[str]],
    texts: Iterable[str],
    path: str | os.PathLike[str],
    *,
    key: str = "",
    generated_first: bool = False,
    chunk: int = _CHUNK,
    say: Callable[[str], None] = print,
) -> pathlib.Path:
    """Write texts and the outputs of a model to a TSV file, for `recipes.Translate` or `data.translation_pairs`.

    With the outputs as targets, a small model learns from a large one (sequence-level distillation). With
    `generated_first`, a model of the reverse direction makes sources for texts of the target language
    (back-translation).

    The work can be interrupted: the same call continues after the texts that are done, which are in a hidden file
    beside `path` until all are. In several processes of `training.initialize_distributed`, each generates a part, and
    process 0 writes the file, in a folder that all share.

    Args:
        generate: a function from a list of texts to a list of outputs, such as a pipeline with `generation.Beam(4)`.
        texts: the texts. Repeated texts are generated once, empty ones are left out; tabs and line ends become spaces.
        path: the new file.
        key: a name of everything else that the outputs depend on, such as a hash of the model: with another one, the
            work starts again.
        generated_first: whether an output is before its text.
        chunk: the number of texts that are generated between two writes.
        say: a function that prints a line of progress.

    Returns:
        The path of the file. A text whose output is empty is left out.

    Raises:
        FileExistsError: if the file exists.
        ValueError: if there are no texts, or `chunk` is not positive.

    References:
        Kim and Rush, "Sequence-Level Knowledge Distillation" (2016); Sennrich et al., "Improving Neural Machine
        Translation Models with Monolingual Data" (2016).

    Example:
        >>> teacher = pipelines.load("runs/base/pipeline").with_settings(generation.Beam(4))  # doctest: +SKIP
        >>> pairs = generate_pairs(teacher, sources, "runs/pairs.tsv")  # doctest: +SKIP
        >>> recipes.run(recipes.Translate(pairs, model_size="tiny"), "runs/student")  # doctest: +SKIP
    """
    check_positive_integer(chunk=chunk)
    path, process = pathlib.Path(path), processes.current()
    if path.exists():
        raise FileExistsError(f"`path` must be new. Received: {path}, which exists and is not changed")
    texts = list(dict.fromkeys(filter(None, map(_one_line, texts))))
    check(bool(texts), "have at least one text that is not empty", texts=texts)
    digest = hashlib.blake2b("\n".join([key, str(process.count), *texts]).encode(), digest_size=8).hexdigest()
    parts = [path.with_name(f".{path.name}.{digest}.{index}") for index in range(process.count)]
    own = texts[process.index :: process.count]
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(parts[process.index], "a+", encoding="utf-8", newline="\n") as file:
        done = _complete_lines(file)
        if done:
            say(f"Continuing after {done:,} of {len(own):,} texts")
        for start in range(done, len(own), chunk):
            file.writelines(f"{_one_line(output)}\n" for output in generate(own[start : start + chunk]))
            file.flush()
            say(f"Generated {min(start + chunk, len(own)):,} of {len(own):,} texts")
    processes.exchange("generated pairs", "", wait=True)
    if process.is_main:
        _join(texts, parts, path, generated_first)
    processes.exchange("written pairs", "", wait=True)
    return path


def _complete_lines(file: TextIO) -> int:
    """Remove an incomplete last line, and return the number of the others."""
    file.seek(0)
    count = length = 0
    for line in file:
        if line.endswith("\n"):
            count, length = count + 1, length + len(line.encode())
    file.truncate(length)
    return count


def _join(
    texts: Sequence[str], parts: Sequence[pathlib.Path], path: pathlib.Path, generated_first: bool
) -> None:
    """Write the pairs under a temporary name, rename the file, and remove the outputs of each process."""
    new = path.with_name(f".{path.name}.new")
    with contextlib.ExitStack() as stack:
        outputs = (stack.enter_context(open(part, encoding="utf-8", newline="\n")) for part in parts)
        rows = itertools.chain.from_iterable(itertools.zip_longest(*outputs))  # in the order of the texts
        file = stack.enter_context(open(new, "w", encoding="utf-8", newline="\n"))
        for text, line in zip(texts, rows, strict=False):
            if output := line.removesuffix("\n"):
                file.write("\t".join([output, text] if generated_first else [text, output]) + "\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)
    for part in parts:
        part.unlink()


def _one_line(text: str) -> str:
    """Return a text without tabs and line ends."""
    return " ".join(" ".join(text.splitlines()).split("\t")).strip()
