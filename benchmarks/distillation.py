"""Sequence-level distillation on Spanish–English pairs of Tatoeba: quality and speed of teacher, student, and int8.

A teacher is trained on part of the training pairs. It translates all of their Spanish sentences with four beams, and a
student is trained on its translations; a control, as large as the student, is trained on the pairs for as many updates.
BLEU and chrF are those of 1,000 test sentences with all of their references. Speed is that of the exports in ONNX
Runtime, greedy, sentences in batches of 32 and one by one, median of interleaved rounds. The shortlist has the tokens
that occur at least `--rare` times in the English training sentences. `--help` lists the options.
"""

import argparse
import dataclasses
import pathlib
import statistics
import sys
import tempfile
import time
from typing import Any

import measuring
import references

BATCH, ONE_BY_ONE = 32, 100  # sentences


@dataclasses.dataclass(frozen=True)
class Settings:
    """The data, the models and their training.

    Attributes:
        pairs: the number of training pairs.
        rare: the number of occurrences from which a token is in the shortlist.
    """

    pairs: int = 40000
    teacher_size: str = "small"
    teacher_epochs: int = 8
    student_size: str = "tiny"
    student_epochs: int = 12
    max_length: int = 32
    rare: int = 3
    tested: int = 1000
    rounds: int = 5


def distil(run: references.Run) -> references.Figures:
    """Train teacher, student and control, export them, and measure them."""
    import keras
    import numpy as np

    import keras_transformer_serving as serving
    from keras_transformer import export, generation, pipelines, recipes
    from keras_transformer.datasets import spa_eng

    settings: Settings = run.settings
    train, validation, test = spa_eng.load_data()
    order = np.random.default_rng(run.seed).permutation(len(train))[: settings.pairs]
    train = [train[i] for i in order]

    def trained(folder: pathlib.Path, pairs: Any, size: str, epochs: int, tokenizer: Any = None) -> Any:
        if folder.exists():
            return pipelines.load(folder)
        keras.utils.set_random_seed(run.seed)
        options: dict[str, Any] = {
            "model_size": size,
            "epochs": epochs,
            "max_length": settings.max_length,
            "seed": run.seed,
        }
        options |= {"normalization": "identity"} if tokenizer is None else {"tokenizer": tokenizer}
        recipe = recipes.Translate(pairs, validation=validation[:1000], jit_compile=True, **options)
        pipeline = recipe.train()[0]
        pipeline.save(folder)
        return pipeline

    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        kept = folder if run.options.models is None else run.options.models / f"seed_{run.seed}"
        kept.mkdir(parents=True, exist_ok=True)
        teacher = trained(kept / "teacher.model", train, settings.teacher_size, settings.teacher_epochs)
        teacher.tokenizer.save(folder / "tokenizer")
        measuring.progress("teacher trained")
        sources = list(dict.fromkeys(source for source, _ in train))
        beam = teacher.with_settings(generation.Beam(4))
        pairs = kept / "pairs.tsv"
        if not pairs.exists():
            recipes.generate_pairs(beam, sources, pairs, say=measuring.progress)
        sizes = settings.student_size, settings.student_epochs
        models = {
            "teacher": teacher,
            "student": trained(kept / "student.model", pairs, *sizes, tokenizer=folder / "tokenizer"),
            "control": trained(kept / "control.model", train, *sizes, tokenizer=folder / "tokenizer"),
        }
        counts = np.bincount(teacher.tokenizer.tokenize([target for _, target in train]).flat_values.numpy())
        shortlist = [*np.flatnonzero(counts >= settings.rare).tolist(), teacher.tokenizer.end_id]
        figures: dict[str, Any] = {"shortlist": len(shortlist), "vocabulary": teacher.model.vocabulary_size}
        texts = [source for source, _ in validation[:200]]
        exports = {}
        for name, pipeline in models.items():
            figures[f"{name}, parameters"] = pipeline.model.count_params()
            options = {"precisions": ("float32", "int8"), "texts": texts}
            export.onnx(pipeline, folder / name, **options)
            exports[name] = serving.load(folder / name, threads=run.options.threads)
            exports[f"{name} int8"] = serving.load(
                folder / name, precision="int8", threads=run.options.threads
            )
        export.onnx(
            models["student"],
            folder / "short",
            precisions=("float32", "int8"),
            texts=texts,
            vocabulary_shortlist=shortlist,
        )
        name = "student int8, shortlist"
        exports[name] = serving.load(folder / "short", precision="int8", threads=run.options.threads)
        tested = dict([*spa_eng.references(test).items()][: settings.tested])
        pairs_of_test = [(source, target) for source, targets in tested.items() for target in targets]
        for name, translate in exports.items():
            scores = pipelines.evaluate(translate, pairs_of_test, metrics=["bleu", "chrf"])
            label = name.replace(", ", " + ")
            figures[f"{label}, BLEU"], figures[f"{label}, chrF"] = scores["bleu"], scores["chrf"]
            measuring.progress(f"{label}: {scores}")
        sentences = [*tested]
        seconds: dict[str, list[float]] = {}
        for _ in range(settings.rounds):
            for name, translate in exports.items():
                for label, count, size in (
                    ("sentences/s in batches", len(sentences), BATCH),
                    ("sentences/s one at a time", ONE_BY_ONE, 1),
                ):
                    began = time.perf_counter()
                    for start in range(0, count, size):
                        translate(sentences[start : start + size])
                    key = f"{name.replace(', ', ' + ')}, {label}"
                    seconds.setdefault(key, []).append(count / (time.perf_counter() - began))
        figures |= {name: statistics.median(rates) for name, rates in seconds.items()}
    return figures


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the number of threads, and a folder that keeps the trained models."""
    parser.add_argument("--threads", type=int, help="of ONNX Runtime (default: one for each core)")
    parser.add_argument(
        "--models", type=pathlib.Path, help="a folder to keep the trained models in, and to continue from"
    )


CONTENDERS = ("teacher", "teacher int8", "control", "student", "student int8", "student int8 + shortlist")
COLUMNS = ("BLEU", "chrF", "sentences/s in batches", "sentences/s one at a time")
REFERENCE = references.Reference(
    __file__,
    __doc__,
    {"spa-eng": None},
    distil,
    measures=[f"{name}, {column}" for name in CONTENDERS for column in COLUMNS],
    settings=Settings,
    seeds=(0,),
    packages=("onnxruntime", "sacrebleu"),
    add_options=add_options,
)

if __name__ == "__main__":
    sys.exit(REFERENCE.main())
