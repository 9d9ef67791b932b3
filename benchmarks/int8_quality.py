"""The quality of exports in float32, float16 and int8 on held-out data, of trained models.

- `embeddings`: all-MiniLM-L6-v2 as published, on 600 texts of SST-2, Multi30k and spa-eng that the choice of the recipe
  (`int8_recipes.py`) did not use, one by one and in batches: the cosine to float32, and the rank correlation of the
  similarities of all pairs.
- `translation`: BLEU of pipelines, given as FOLDER=DATASET, on the test split of "phrasebook", or the sentences of that
  of "spa_eng" with at most 8 words in Spanish and 7 in English.
- `images`, `nodes`, `speech`: a ViT on MNIST, the GAT of the paper on Cora, and words spoken by espeak-ng to a CTC
  model, with the settings of `papers/`, but fewer steps: how many outputs are right, and how many are those of float32.

    .venv-bench/bin/python benchmarks/int8_quality.py embeddings     # writes results/int8_quality.json
"""

import argparse
import itertools
import json
import operator
import os
import pathlib
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import measuring
import numpy as np
from int8_recipes import sources

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path += [str(pathlib.Path(__file__).parent / name) for name in ("papers", "parity")]

BATCHES = (1, 8, 32)
TEXTS_OF_EACH = 200


def held_out_texts(data: pathlib.Path) -> list[str]:
    """Return texts of three kinds, none of those of `int8_recipes.texts`."""
    reviews, captions, sentences = sources(data)
    chosen = (
        reviews[900 : 900 + TEXTS_OF_EACH],
        captions[700 : 700 + TEXTS_OF_EACH],
        sentences[5801::480][:TEXTS_OF_EACH],
    )
    return [*itertools.chain(*chosen)]


def exported(pipeline: Any, folder: pathlib.Path) -> dict[str, Any]:
    """Return the served export of a pipeline in each precision."""
    import keras_transformer as kt
    import keras_transformer_serving as serving

    kt.export.onnx(pipeline, folder, precisions=("float32", "float16", "int8"))
    return {name: serving.load(folder, precision=name) for name in ("float32", "float16", "int8")}


def embeddings(options: argparse.Namespace, folder: pathlib.Path) -> dict[str, Any]:
    """Return how close the embeddings of each precision and batch size are to those of float32, one by one."""
    import published_checkpoints

    import keras_transformer as kt

    texts = held_out_texts(options.data)
    embed = exported(kt.pipelines.from_hugging_face(published_checkpoints.minilm()), folder)
    expected = np.asarray(embed["float32"](texts, batch_size=1))
    figures: dict[str, Any] = {"texts": len(texts)}
    for name, batch_size in itertools.product(embed, BATCHES):
        found = np.asarray(embed[name](texts, batch_size=batch_size))
        cosines = published_checkpoints.cosines(found, expected)
        figures[f"{name}, batches of {batch_size}"] = {
            "mean_cosine": float(cosines.mean()),
            "smallest_cosine": float(cosines.min()),
            "below_0.98": int((cosines < 0.98).sum()),
            "rank_correlation": published_checkpoints.rank_correlation(found, expected),
        }
    return figures


def translation(options: argparse.Namespace, folder: pathlib.Path) -> dict[str, Any]:
    """Return the BLEU of each pipeline in each precision."""
    import sacrebleu

    from keras_transformer import pipelines

    figures = {}
    for number, translator in enumerate(options.translators):
        path, _, dataset = translator.rpartition("=")
        sources, references = test_split(dataset)
        columns = [
            [row[column] if column < len(row) else "" for row in references]
            for column in range(max(map(len, references)))
        ]
        results: dict[str, Any] = {}
        for name, translate in exported(pipelines.load(path), folder / str(number)).items():
            outputs = translate(sources)
            results[name] = {"bleu": sacrebleu.corpus_bleu(outputs, columns).score, "outputs": outputs}
        figures[dataset] = {"sentences": len(sources), **_compared(results)}
    return figures


def test_split(dataset: str) -> tuple[list[str], list[list[str]]]:
    """Return the sources and references of a test split."""
    from keras_transformer.datasets import phrasebook, spa_eng

    if dataset == "phrasebook":
        pairs = phrasebook.load_data()[2]
        return [source for source, _ in pairs], [[target] for _, target in pairs]
    short = [
        pair for pair in spa_eng.load_data()[2] if len(pair[1].split()) <= 7 and len(pair[0].split()) <= 8
    ]
    references = spa_eng.references(short)
    return [*references], [*references.values()]


def images(options: argparse.Namespace, folder: pathlib.Path) -> dict[str, Any]:
    """Train a ViT for one epoch of MNIST, and return the accuracies on the test images."""
    import keras
    import mnist as paper

    from keras_transformer import models, pipelines
    from keras_transformer.data import image_batches
    from keras_transformer.datasets import mnist

    settings = paper.Settings()
    keras.utils.set_random_seed(0)
    train, (pictures, labels) = mnist.load_data(options.data / "mnist")
    names = ("patch_size", "num_layers", "num_heads", "model_dim", "hidden_dim", "positions", "pooling")
    model = models.ViT(
        28, num_classes=10, num_channels=1, **{name: getattr(settings, name) for name in names}
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.AdamW(1e-3, weight_decay=0.05, clipnorm=1.0), loss, jit_compile=False)
    model.fit(image_batches(*train, settings.batch_size, seed=0), epochs=1, verbose=2)
    served = exported(pipelines.ImageClassification(model), folder)
    outputs = {name: [*map(int, classify(pictures))] for name, classify in served.items()}
    return _accuracies(outputs, labels.tolist())


def nodes(options: argparse.Namespace, folder: pathlib.Path) -> dict[str, Any]:
    """Train the GAT of the paper on Cora, and return the accuracies on the test nodes."""
    import cora as paper
    import keras

    from keras_transformer import pipelines
    from keras_transformer.datasets import planetoid

    keras.utils.set_random_seed(0)
    graph = planetoid.load_data(options.data / "planetoid")
    settings = paper.Settings()
    model = paper.build(graph, settings)
    paper.train(model, graph, settings)
    features = graph.nodes / np.maximum(graph.nodes.sum(1, keepdims=True), 1)
    inputs = {"nodes": features[None].astype("float32"), "edges": graph.edges[None].astype("int64")}
    outputs = {
        name: classifier.run(**inputs)["logits"][0, graph.test].argmax(-1).tolist()
        for name, classifier in exported(pipelines.NodeClassification(model), folder).items()
    }
    return _accuracies(outputs, graph.labels[graph.test].tolist())


def speech(options: argparse.Namespace, folder: pathlib.Path) -> dict[str, Any]:
    """Train a CTC model on spoken words, and return the word error rates of voices that it has not heard."""
    import keras
    import speech as paper

    from keras_transformer import models, pipelines, text
    from keras_transformer.recipes import scores

    settings = paper.Settings(steps=options.steps)
    keras.utils.set_random_seed(0)
    spoken = paper.utterances(settings.utterances, "train", 0, settings.sizes)
    test = paper.utterances(settings.test_utterances, "test", 2)
    tokenizer = text.WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *paper.WORDS])
    dim = settings.model_dim
    encoder = models.SpeechEncoder(
        settings.num_layers, settings.num_heads, dim, 4 * dim, strides=settings.strides
    )
    model = models.CTC(encoder, tokenizer.vocabulary_size)
    rate = keras.optimizers.schedules.CosineDecay(
        0.0,
        settings.steps - settings.warmup,
        0.01,
        warmup_target=settings.learning_rate,
        warmup_steps=settings.warmup,
    )
    model.compile(keras.optimizers.AdamW(rate, global_clipnorm=1.0), keras.losses.CTC(), jit_compile=False)
    stream = paper.batches(spoken, tokenizer, settings.batch_size, settings.clean, 0)
    for inputs, labels in itertools.islice(stream, settings.steps):
        model.train_on_batch(inputs, labels)
    random = np.random.default_rng(2)
    audio = [paper.with_noise(each.audio, 20.0, random) for each in test]
    texts = [each.text for each in test]
    results = {
        name: {"word_error_rate": 100 * scores.word_error_rate(texts, outputs), "outputs": outputs}
        for name, recognize in exported(pipelines.SpeechToText(model, tokenizer), folder).items()
        for outputs in [recognize(audio)]
    }
    return {"steps": options.steps, "utterances": len(texts), **_compared(results)}


def _accuracies(outputs: dict[str, list[int]], labels: Sequence[int]) -> dict[str, Any]:
    results = {
        name: {"accuracy": 100 * float(np.mean(np.equal(found, labels))), "outputs": found}
        for name, found in outputs.items()
    }
    return {"examples": len(labels), **_compared(results)}


def _compared(results: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return results by precision, with the number of outputs that are those of float32 in place of the outputs."""
    expected = results["float32"]["outputs"]
    for figures in results.values():
        figures["same"] = sum(map(operator.eq, figures.pop("outputs"), expected))
    return results


MEASURES: dict[str, Callable[[argparse.Namespace, pathlib.Path], dict[str, Any]]] = {
    "embeddings": embeddings,
    "translation": translation,
    "images": images,
    "nodes": nodes,
    "speech": speech,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the given models, print and write the results beside those of others."""
    parser = measuring.parser((__doc__ or "").split("\n")[0], "int8_quality")
    parser.add_argument("measures", nargs="+", choices=MEASURES, help="what to measure")
    parser.add_argument("--data", type=pathlib.Path, help="the folder of all data sets")
    parser.add_argument("--translators", nargs="*", default=(), help="FOLDER=DATASET of each pipeline")
    parser.add_argument("--steps", type=int, default=1000, help="of the CTC model (default: 1000)")
    options = parser.parse_args(arguments)
    options.data = options.data or pathlib.Path(os.environ["KERAS_TRANSFORMER_DATA"])
    path = options.output / f"{options.name}.json"
    result = json.loads(path.read_text()) if path.is_file() else {}
    for name in options.measures:
        with tempfile.TemporaryDirectory() as folder:
            result[name] = MEASURES[name](options, pathlib.Path(folder) / "export")
        print(name, json.dumps(result[name], indent=1), flush=True)
        measuring.write_result(options.name, {**result, "machine": measuring.machine()}, options.output)


if __name__ == "__main__":
    main()
