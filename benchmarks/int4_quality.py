"""The quality and size of language models in float32, int8 and int4: as ONNX graphs, and quantized by Keras.

A GPT on Tiny Shakespeare and a Llama on Don Quijote, each trained for some minutes, on the last tenth of the text,
which they have not seen: perplexity, the size of the files, and how many greedy ids of continuations are those of
float32, up to the first that differs in each. The graphs are those of an export; perplexity is that of a graph of
logits, which is converted in the same way. Keras' `quantize` has its defaults, in int8 with activations, in int4
without. `--hugging-face FOLDER` measures a published model on Tiny Shakespeare in place of the trained ones.

    KERAS_TRANSFORMER_DATA=… .venv/bin/python benchmarks/int4_quality.py     # writes results/int4_quality.json
"""

import argparse
import dataclasses
import os
import pathlib
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import measuring
import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

PRECISIONS = ("float32", "int8", "int4")
LENGTH, BATCH = 128, 16
PROMPT, CONTINUATION, PROMPTS = 24, 32, 48


@dataclasses.dataclass(frozen=True)
class Case:
    """A model and its text.

    Attributes:
        file: the text, in the folder of the data.
        family: the class of `models`.
        steps: the number of batches of training.
        shape: further arguments of the model.
    """

    file: str
    family: str
    steps: int
    shape: dict[str, Any]


CASES = {
    "GPT, Shakespeare": Case(
        "tinyshakespeare/input.txt", "GPT", 700, {"hidden_dim": 1024, "max_length": 2 * LENGTH}
    ),
    "Llama, Quijote": Case(
        "quijote/quijote.txt", "Llama", 350, {"hidden_dim": 704, "num_kv_heads": 4, "tied": True}
    ),
}


def read(file: pathlib.Path) -> tuple[str, str]:
    """Return the text to train on, and the last tenth."""
    text = file.read_text(encoding="utf-8")
    end = int(0.9 * len(text))
    return text[:end], text[end:]


def trained(case: Case, text: str) -> Any:
    """Return a pipeline with a model that was trained on a text."""
    import keras

    from keras_transformer import data, models, pipelines, training
    from keras_transformer.text import BytePairTokenizer

    keras.utils.set_random_seed(0)
    tokenizer = BytePairTokenizer.train([text], 4000)
    model = getattr(models, case.family)(
        tokenizer.vocabulary_size, num_layers=4, num_heads=8, model_dim=256, dropout=0.1,
        end_id=tokenizer.end_id, **case.shape,
    )  # fmt: skip
    rate = keras.optimizers.schedules.CosineDecay(
        0.0, case.steps - 50, 0.05, warmup_target=2e-3, warmup_steps=50
    )
    optimizer = keras.optimizers.AdamW(rate, weight_decay=0.1, global_clipnorm=1.0)
    model.compile(optimizer, training.LabelSmoothedCrossentropy(0.0), jit_compile="auto")
    rows = data.language_modeling([text], tokenizer, BATCH, length=LENGTH, seed=0)
    model.fit(rows.repeat(), steps_per_epoch=case.steps, shuffle=False, verbose=2)
    return pipelines.TextGeneration(model, tokenizer, max_new_tokens=CONTINUATION)


def perplexity(logits: Callable[[np.ndarray], Any], rows: np.ndarray) -> float:
    """Return the perplexity of rows (n, T) of ids, by a function from ids (B, T) to logits (B, T, V)."""
    total, count = 0.0, 0
    for start in range(0, len(rows), BATCH):
        ids = rows[start : start + BATCH]
        values = np.asarray(logits(ids[:, :-1]), "float64")
        values -= values.max(axis=-1, keepdims=True)
        chosen = np.take_along_axis(values, ids[:, 1:, None], axis=-1)[..., 0]
        total += float((np.log(np.exp(values).sum(axis=-1)) - chosen).sum())
        count += ids[:, 1:].size
    return float(np.exp(total / count))


def identical_ids(found: list[np.ndarray], expected: list[np.ndarray]) -> float:
    """Return the share of identical ids, of those up to the first that differs in each row."""
    from keras_transformer_serving import closeness

    counts = [
        closeness.identical_ids(row[None], reference[None], len(reference))
        for row, reference in zip(found, expected, strict=True)
    ]
    return closeness.share(*map(sum, zip(*counts, strict=True)))


def of_graphs(
    pipeline: Any, rows: np.ndarray, prompts: np.ndarray, folder: pathlib.Path, names: Sequence[str]
) -> dict[str, Any]:
    """Return the figures of the ONNX graphs in each precision, and the ids."""
    import onnxruntime
    import tensorflow as tf

    import keras_transformer as kt
    import keras_transformer_serving as serving
    from keras_transformer.export.to_onnx import conversion, precisions

    texts = [pipeline.tokenizer.detokenize(ids).numpy().decode() for ids in prompts[::6]]
    kt.export.onnx(pipeline, folder, precisions=names, texts=texts)
    spec = tf.TensorSpec([None, None], tf.int32, name="ids")
    axes = {"ids": ["batch_size", "sequence_length"]}
    model = conversion.convert(
        "logits", lambda ids: {"logits": pipeline.model(ids)}, [spec], axes, pipeline.model.weights
    )
    figures = {}
    for name in names:
        graph = precisions.CONVERTERS[name](model) if name in precisions.CONVERTERS else model
        session = onnxruntime.InferenceSession(graph.SerializeToString())
        path = folder / "onnx" / ("" if name == "float32" else name) / "generate_greedy.onnx"
        served = serving.load(folder, precision=name)
        figures[name] = {
            "perplexity": perplexity(
                lambda ids, session=session: session.run(["logits"], {"ids": ids})[0], rows
            ),
            "bytes": path.stat().st_size,
            "ids": [*np.asarray(served.generate(prompts.astype("int64"))["ids"])],
        }
    return figures


def of_keras(
    load: Callable[[], Any], rows: np.ndarray, prompts: np.ndarray, names: Sequence[str]
) -> dict[str, Any]:
    """Return the figures of a model quantized by Keras, and the ids."""
    from keras_transformer import generation

    figures = {}
    for name in names:
        model = load()
        if name != "float32":
            model.quantize(name)
        figures[name] = {
            "perplexity": perplexity(lambda ids, model=model: model(ids), rows),
            "bytes": sum(np.asarray(weight).nbytes for weight in model.weights),
            "ids": [*np.asarray(generation.generate_ids(model, prompts, CONTINUATION)["ids"])],
        }
    return figures


def measured(case: Case, options: argparse.Namespace, folder: pathlib.Path) -> dict[str, Any]:
    """Return the figures of a model, which is trained unless it is in the folder of models."""
    from keras_transformer import pipelines

    text, held_out = read(options.data / case.file)
    saved = (options.models or folder) / case.family
    if not saved.exists():
        trained(case, text).save(saved)
    return figures_of(lambda: pipelines.load(saved), held_out, options, folder)


def published(options: argparse.Namespace, folder: pathlib.Path) -> dict[str, Any]:
    """Return the figures of a published model on the last tenth of Tiny Shakespeare."""
    from keras_transformer import pipelines

    _, held_out = read(options.data / CASES["GPT, Shakespeare"].file)
    return figures_of(
        lambda: pipelines.from_hugging_face(
            options.hugging_face, generation="greedy", max_new_tokens=CONTINUATION
        ),
        held_out,
        options,
        folder,
    )


def figures_of(
    load: Callable[[], Any], held_out: str, options: argparse.Namespace, folder: pathlib.Path
) -> dict[str, Any]:
    """Return the figures of the pipeline that a function loads, on a text."""
    pipeline = load()
    ids = np.asarray(pipeline.tokenizer.tokenize(held_out), "int32")
    rows = ids[: len(ids) // (LENGTH + 1) * (LENGTH + 1)].reshape(-1, LENGTH + 1)[: options.rows]
    prompts = rows[:: max(len(rows) // PROMPTS, 1), :PROMPT][:PROMPTS]
    figures: dict[str, Any] = {"parameters": pipeline.model.count_params(), "tokens": int(rows.size)}
    figures["ONNX"] = of_graphs(pipeline, rows, prompts, folder / "export", options.precisions)
    figures["Keras"] = of_keras(lambda: load().model, rows, prompts, options.precisions)
    for kind in ("ONNX", "Keras"):
        expected = figures[kind]["float32"]["ids"]
        shares = {name: identical_ids(row["ids"], expected) for name, row in figures[kind].items()}
        for name, row in figures[kind].items():
            row["identical_ids"] = shares[name]
            del row["ids"]
    return figures


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark."""
    parser = measuring.parser(__doc__, "int4_quality")
    data = pathlib.Path(os.environ.get("KERAS_TRANSFORMER_DATA", "."))
    parser.add_argument("--data", type=pathlib.Path, default=data, help="folder of the texts")
    parser.add_argument("--models", type=pathlib.Path, help="folder of trained models, which are added to it")
    parser.add_argument(
        "--precisions", nargs="+", choices=PRECISIONS, default=PRECISIONS, help="float32 and others"
    )
    parser.add_argument("--rows", type=int, help=f"number of rows of {LENGTH} tokens, by default all")
    parser.add_argument(
        "--hugging-face",
        type=pathlib.Path,
        help="folder of `transformers` to measure in place of the trained models",
    )
    parser.add_argument("--only", help="part of the name of a case")
    options = parser.parse_args(arguments)
    figures = {}
    if options.hugging_face:
        with tempfile.TemporaryDirectory() as folder:
            figures[options.hugging_face.name] = published(options, pathlib.Path(folder))
    for name, case in ({} if options.hugging_face else CASES).items():
        if not options.only or options.only in name:
            with tempfile.TemporaryDirectory() as folder:
                figures[name] = measured(case, options, pathlib.Path(folder))
    rows = [
        {"": name, "by": kind, "precision": precision, **row}
        for name, forms in figures.items()
        for kind in ("ONNX", "Keras")
        for precision, row in forms[kind].items()
    ]
    print(measuring.table(rows))
    result = {"machine": measuring.machine(), "models": figures}
    print(measuring.write_result(options.name, result, options.output))
    return 0


if __name__ == "__main__":
    sys.exit(main())
