"""Compare the speed of two checkouts: training, generation, pipelines, server, attention and data, in turns.

    python benchmarks/paired.py --before ../other --after .        # 15 rounds; a checkout beside itself gives the noise

Each checkout has one process, which compiles a case once. A ratio is the time before divided by the time after, in wall
and in processor time; above 1, the second checkout is faster. Only public functions that both versions have are called.
"""

import argparse
import functools
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

import measuring
import numpy as np
import runner
from local_server import LocalServer

VOCABULARY, LENGTH, BATCH = 2000, 32, 16
SIZES = {"num_layers": 2, "num_heads": 4, "model_dim": 128, "hidden_dim": 512}
NEW_TOKENS = 16
PAIRS = 2000
Options = Mapping[str, Any]


def ids(*shape: int) -> np.ndarray:
    """Return random ids without padding."""
    return np.random.default_rng(0).integers(4, VOCABULARY, shape, dtype="int32")


def models() -> dict[str, Callable[[], Any]]:
    """Return functions that create the models by name."""
    import keras_transformer as kt

    def bert() -> Any:
        return kt.models.SequenceClassifier(kt.models.BERT(VOCABULARY, **SIZES, max_length=64), 3)

    return {
        "GPT": lambda: kt.models.GPT(VOCABULARY, **SIZES, max_length=64),
        "Transformer": lambda: kt.models.Transformer(VOCABULARY, **SIZES),
        "BERT": bert,
    }


def training(case: Options, context: runner.Context) -> runner.Run:
    """Prepare steps of `fit` on one batch."""
    import keras
    import tensorflow as tf

    model = models()[case["model"]]()
    inputs, labels = ids(BATCH, LENGTH), ids(BATCH, LENGTH)
    if case["model"] == "Transformer":
        inputs = {"source_ids": inputs, "target_ids": ids(BATCH, LENGTH)}
    elif case["model"] == "BERT":
        labels = labels[:, 0] % 3
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss, jit_compile=context.options.xla)
    options = tf.data.Options()
    options.autotune.enabled = False  # TensorFlow would wait for its tuner at the end of `fit`
    dataset = tf.data.Dataset.from_tensors((inputs, labels)).repeat().with_options(options)

    def run() -> runner.Figures:
        model.fit(dataset, steps_per_epoch=case["steps"], verbose=0)
        return {"steps": case["steps"], "parameters": model.count_params()}

    return run


def generation(case: Options, context: runner.Context) -> runner.Run:
    """Prepare generation of the maximum number of tokens with a cache, compiled by XLA."""
    import keras_transformer as kt

    model = models()[case["model"]]()
    generator = kt.generation.Generator(model, case["sampler"], NEW_TOKENS, min_new_tokens=NEW_TOKENS)
    prompts = ids(4, LENGTH)
    return lambda: {"tokens": int(generator(prompts).lengths.sum()), "parameters": model.count_params()}


def attention(case: Options, context: runner.Context) -> runner.Run:
    """Prepare attention, or its gradients, as a `tf.function` without XLA."""
    import tensorflow as tf

    import keras_transformer as kt

    random = np.random.default_rng(0)
    shape = (1, case["length"], 4, 64)
    tensors = [tf.constant(random.standard_normal(shape, dtype="float32")) for _ in range(3)]
    window = case["window"]
    relation = kt.relations.SlidingWindow(window) if window else "causal"

    @tf.function(autograph=False)
    def forward(*tensors: Any) -> Any:
        return kt.ops.attention(*tensors, relation)

    @tf.function(autograph=False)
    def gradients(*tensors: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            total = tf.reduce_sum(tf.square(kt.ops.attention(*tensors, relation)))
        return tape.gradient(total, tensors)[0]

    function = gradients if case["gradient"] else forward
    return lambda: function(*tensors)[0, 0, 0, 0].numpy()  # waits for it, and copies one number


def data(case: Options, context: runner.Context) -> runner.Run:
    """Prepare an epoch of batches."""
    import keras_transformer as kt

    pairs = phrases()
    lines = [text for pair in pairs for text in pair]
    if case["batches"] == "masked_language_modeling":
        tokenizer = kt.text.WordPieceTokenizer.train(lines, 600)
        dataset = kt.data.masked_language_modeling(lines, tokenizer, BATCH, max_length=LENGTH)
    else:
        tokenizer = kt.text.SentencePieceTokenizer.train(lines, 600)
        dataset = kt.data.translation_pairs(pairs, tokenizer, BATCH, max_length=LENGTH)
    return lambda: {"units": sum(1 for _ in dataset)}


def phrases() -> list[tuple[str, str]]:
    """Return pairs of sentences."""
    import keras_transformer as kt

    return kt.datasets.phrasebook.load_data()[0][:PAIRS]


def pipelines() -> dict[str, Callable[[], Any]]:
    """Return functions that create pipelines by name, on random weights."""
    import keras_transformer as kt

    pairs = phrases()
    tokenizer = functools.partial(kt.text.SentencePieceTokenizer.train, vocabulary_size=600)
    sources = [source for source, _ in pairs]

    def classifier() -> Any:
        pieces = kt.text.WordPieceTokenizer.train(sources, 600)
        encoder = kt.models.BERT(pieces.vocabulary_size, **SIZES, max_length=64)
        return kt.pipelines.TextClassification(
            kt.models.SequenceClassifier(encoder, 3), pieces, labels=["a", "b", "c"]
        )

    def translator() -> Any:
        pieces = tokenizer([text for pair in pairs for text in pair])
        model = kt.models.Transformer(pieces.vocabulary_size, **SIZES)
        return kt.pipelines.TextToText(model, pieces, max_new_tokens=NEW_TOKENS)

    def language_model() -> Any:
        pieces = tokenizer(sources)
        model = kt.models.GPT(pieces.vocabulary_size, **SIZES, max_length=64)
        return kt.pipelines.TextGeneration(model, pieces, max_new_tokens=NEW_TOKENS)

    return {"classification": classifier, "translation": translator, "language model": language_model}


def calls(case: Options, context: runner.Context) -> runner.Run:
    """Prepare calls of a pipeline."""
    pipeline = pipelines()[case["pipeline"]]()
    texts = [source for source, _ in phrases()[: case["texts"]]]
    return lambda: {"texts": len(pipeline(texts))}


def exported(case: Options) -> tuple[str, list[str]]:
    """Return the folder of an export, and texts, which another process writes: a server has no TensorFlow."""
    folder = pathlib.Path(tempfile.mkdtemp())
    program = (
        "import json, sys, paired, keras_transformer as kt\n"
        "kt.export.onnx(paired.pipelines()[sys.argv[1]](), 'export', precisions=('float32',))\n"
        "json.dump([source for source, _ in paired.phrases()], open('texts.json', 'w'))"
    )
    paths = [str(pathlib.Path(__file__).resolve().parent), os.environ["PYTHONPATH"]]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-c", program, case["pipeline"]]
    subprocess.run(command, check=True, cwd=folder, env=environment)
    return str(folder / "export"), json.loads((folder / "texts.json").read_text())[: case["texts"]]


def serving(case: Options, context: runner.Context) -> runner.Run:
    """Prepare calls of the serving library."""
    import keras_transformer_serving

    folder, texts = exported(case)
    served = keras_transformer_serving.load(folder)
    return lambda: {"texts": len(served(texts))}


def server(case: Options, context: runner.Context) -> runner.Run:
    """Prepare requests to a server in this process, one after another."""
    folder, texts = exported(case)
    server = LocalServer.of_export(folder)

    def run() -> runner.Figures:
        for text in texts:
            server.post("/v1/models/model:predict", {"instances": [text]})
        return {"requests": len(texts)}

    return run


PREPARES = {
    "calls": calls,
    "serving": serving,
    "server": server,
    "training": training,
    "generation": generation,
    "attention": attention,
    "data": data,
}
UNITS = {"training": BATCH * LENGTH, "generation": 4 * NEW_TOKENS}  # tokens; else calls, or batches
CASES: dict[str, dict[str, Any]] = {
    **{
        f"training, {model}": {"kind": "training", "model": model, "steps": 8}
        for model in ("GPT", "Transformer", "BERT")
    },
    **{
        f"generation, {model}, {sampler}": {"kind": "generation", "model": model, "sampler": sampler}
        for model in ("GPT", "Transformer")
        for sampler in ("greedy", "beam")
    },
    **{
        f"{kind}, {pipeline}": {"kind": kind, "pipeline": pipeline, "texts": texts}
        for kind, texts in (("calls", 256), ("serving", 256), ("server", 32))
        for pipeline in ("classification", "translation", "language model")
    },
    **{
        f"attention, {name}": {"kind": "attention", "length": length, "window": window, "gradient": gradient}
        for name, length, window, gradient in (
            ("forward", 512, 0, False),
            ("gradients", 512, 0, True),
            ("window, forward", 4096, 128, False),
            ("window, gradients", 4096, 128, True),
        )
    },
    **{
        f"data, {batches}": {"kind": "data", "batches": batches}
        for batches in ("translation_pairs", "masked_language_modeling")
    },
}


def checkout(options: argparse.Namespace, contender: str) -> pathlib.Path:
    """Return the folder of a contender."""
    return getattr(options, contender).resolve()


def prepare(contender: str) -> runner.Prepare:
    """Return a function that prepares the cases with one checkout."""

    def prepared(case: Options, context: runner.Context) -> runner.Run:
        if case["kind"] in ("serving", "server"):
            import keras_transformer_serving as used
        else:
            import tensorflow as tf

            if not tf.config.threading.get_intra_op_parallelism_threads():
                tf.config.threading.set_intra_op_parallelism_threads(context.threads)
                tf.config.threading.set_inter_op_parallelism_threads(context.threads)
            import keras

            import keras_transformer as used

            keras.backend.clear_session()
            keras.utils.set_random_seed(0)
        folder, file = checkout(context.options, contender), pathlib.Path(used.__file__).resolve()
        if not file.is_relative_to(folder):
            raise ImportError(f"{used.__name__} must be in {folder}. Received: {file}")
        return PREPARES[case["kind"]](case, context)

    return prepared


def environment(contender: str, options: argparse.Namespace) -> dict[str, str]:
    """Return the environment in which a worker imports its checkout, with settings for comparable times."""
    folder = checkout(options, contender)
    return {
        "PYTHONPATH": f"{folder}:{folder / 'export' / 'serving'}",
        "KERAS_BACKEND": "tensorflow",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "-1",
    }


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the two checkouts."""
    parser.add_argument("--before", type=pathlib.Path, required=True, help="a checkout")
    parser.add_argument(
        "--after", type=pathlib.Path, required=True, help="another, or the same for the noise"
    )
    parser.add_argument("--xla", action="store_true", help="compile training with XLA")


BENCHMARK = runner.Benchmark(
    __file__, __doc__, "units", CASES, {"after": prepare("after"), "before": prepare("before")},
    units=lambda case: UNITS.get(case["kind"], 1), rounds=15, tries=1, environment=environment, add_options=add_options,
)  # fmt: skip


def table(result: dict[str, Any]) -> str:
    """Return the times and ratios of all cases as Markdown."""
    rows = []
    for name, case in result["cases"].items():
        row, figures = {"": name}, case["contenders"]
        for clock, label in (("seconds", ""), ("processor_seconds", ", processor")):
            for contender in ("before", "after"):
                milliseconds = 1000 * figures[contender][clock] if contender in figures else math.nan
                row[f"{contender}{label}, ms"] = f"{milliseconds:.2f}"
        ratios = figures.get("before", {}).get("ratios", {})
        for clock in ("wall", "processor"):
            row[f"ratio, {clock}"] = runner.interval(ratios[clock]) if ratios else "–"
        rows.append({**row, "rounds": str(result["settings"]["rounds"])})
    return measuring.table(rows)


if __name__ == "__main__":
    result = BENCHMARK.main()
    if result and result["cases"]:
        print(table(result))
