"""The quickstart: train, evaluate, export and verify a small translator."""

import contextlib
import os
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from keras_transformer import pipelines
from keras_transformer.recipes.translate import Translate
from keras_transformer_options.files import check_quickstart
from keras_transformer_serving import files

PHRASEBOOK: dict[str, Any] = {
    "dataset": "phrasebook",
    "vocabulary_size": 2000,
    "learning_rate": 2e-3,
    "batch_tokens": 1024,
    "max_length": 64,
    "max_new_tokens": 32,
    "jit_compile": False,
}


def quickstart(
    folder: str | os.PathLike[str],
    epochs: int = 5,
    say: Callable[[str], None] = print,
    verbose: int | str = "auto",
) -> dict[str, Any]:
    """Train, evaluate, export and verify a Spanish to English translator on the embedded phrasebook.

    Args:
        folder: the folder for `pipeline/`, `export/` and `report.json`; an earlier quickstart in it is replaced when
            the new one is complete.
        epochs: the number of training epochs.
        say: a function that prints a line of progress.
        verbose: see `keras.Model.fit`.

    Returns:
        The content of `report.json`: "exact_match" and "bleu" on the held-out split, "parity" of the exports with the
        model on 1,000 held-out sentences, and "seconds", the duration of each stage.

    Raises:
        FileExistsError: if `folder` has any other content.
    """
    folder = pathlib.Path(folder)
    check_quickstart(folder)
    with files.new_folder(folder, overwrite=True) as new:
        return _quickstart(new, epochs, say, verbose)


def _quickstart(
    folder: pathlib.Path, epochs: int, say: Callable[[str], None], verbose: int | str
) -> dict[str, Any]:
    from keras_transformer import export  # needs the extra "onnx", which training does not

    seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def stage(name: str, title: str) -> Iterator[None]:
        say(f"\n[{len(seconds) + 1}/4] {title}")
        began = time.monotonic()
        yield
        seconds[name] = round(time.monotonic() - began, 1)
        say(f"      {seconds[name]:.1f} s")

    recipe = Translate(**PHRASEBOOK, epochs=epochs)
    train, _, test = recipe.splits
    with stage("train", f"Training on {len(train):,} phrasebook sentences for {epochs} epochs"):
        pipeline, _ = recipe.train(verbose=verbose)
        pipeline.save(folder / "pipeline")
    with stage("evaluate", f"Translating {len(test):,} held-out sentences"):
        scores = pipelines.evaluate(pipeline, test)
        say(f"      exact match {scores['exact_match']:.1%}, BLEU {scores['bleu']:.1f}")
    with stage("export", "Exporting to SavedModel and ONNX"):
        export.bundle(
            pipeline,
            folder / "export",
            name="es-en",
            say=lambda line: say(f"      {line}"),
        )
    sources = [source for source, _ in test[:1000]]
    with stage("verify", f"Comparing both exports with the model on {len(sources):,} held-out sentences"):
        parity = export.verify(folder / "export", pipeline, sources)
        for part in parity.values():
            for graph, counts in part["graphs"].items():
                say(f"      {graph}: {counts['identical']:,} identical, {counts['near_ties']} near ties")
            for precision, counts in part.get("precisions", {}).items():
                say(f"      {precision}: {counts['identical']:,} identical, {counts['different']} different")
    report = {
        "exact_match": scores["exact_match"],
        "bleu": scores["bleu"],
        "parity": parity,
        "seconds": seconds,
    }
    files.write_json(folder / "report.json", report)
    say("")
    for source, answer in zip(sources[:12], pipeline(sources[:12]), strict=True):
        say(f"  {source}  →  {answer}")
    return report
