"""Texts per second of fine-tuning all-MiniLM-L6-v2 on a CPU: `fit` beside the trainers of its users, and KerasHub.

- "classifier": two classes, reviews of SST-2.
- "embedder": pairs of sentences with in-batch negatives.

A run trains on all texts once, in batches of 32 texts or pairs, with Adam in float32. All contenders read the same
texts, which are tokenized before; each makes its own batches. "by length" are batches of texts of similar lengths, as
this package makes them by default. The trainer of `transformers` is that of its class `Trainer`, with PyTorch and
batches by length, which its default lacks, and in "compiled" with `torch.compile`; that of sentence-transformers
derives from it. KerasHub's model has the same sizes and random weights, and gets the batches of this package, as it
makes none. With XLA, the first run of each contender compiles: `first_processor_seconds`.

    KERAS_TRANSFORMER_DATA=… .venv-bench/bin/python benchmarks/fine_tuning.py     # --help lists the options
"""

import functools
import itertools
import os
import pathlib
import sys
from typing import Any

import numpy as np
import runner
import train_step
from int8_recipes import sources

sys.path.append(str(pathlib.Path(__file__).parent / "parity"))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
import published_checkpoints

OURS = "ours"
BATCH_SIZE, LAYERS, SIZE, RATE = 32, 6, 384, 2e-5
CASES = {name: {"task": name, "texts": 256} for name in ("classifier", "embedder")}


def examples(case: dict[str, Any]) -> list[tuple[str, Any]]:
    """Return reviews with classes, or pairs of sentences that follow one another."""
    reviews, _, sentences = sources(pathlib.Path(os.environ["KERAS_TRANSFORMER_DATA"]))
    if case["task"] == "classifier":
        return [(text, index % 2) for index, text in enumerate(reviews[: case["texts"]])]
    chosen = sentences[5000::100][: case["texts"] + 1]
    return [*itertools.pairwise(chosen)]


def ours(case: dict[str, Any], context: runner.Context, jit: bool) -> runner.Run:
    """Prepare an epoch of `fit`."""
    keras = train_step.start_keras(context.threads)
    import keras_transformer as kt

    pipeline = kt.pipelines.from_hugging_face(published_checkpoints.minilm())
    encoder, tokenizer = pipeline.model.encoder, pipeline.tokenizer
    first, second = zip(*examples(case), strict=True)
    if case["task"] == "classifier":
        model = kt.models.SequenceClassifier(encoder, 2, "mean")
        loss: Any = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        dataset = kt.data.classification(first, np.array(second), tokenizer, BATCH_SIZE)
    else:
        model, loss = kt.models.SentenceEncoder(encoder), kt.training.InfoNCE()
        dataset = kt.data.sentence_pairs(zip(first, second, strict=True), tokenizer, BATCH_SIZE)
    model.compile(kt.training.Adam(RATE), loss, jit_compile=jit)

    def run() -> runner.Figures:
        model.fit(dataset, verbose=0, shuffle=False)
        return {"units": case["texts"]}

    return run


def keras_hub(case: dict[str, Any], context: runner.Context) -> runner.Run:
    """Prepare an epoch of `fit` of KerasHub's classifier, in the batches of this package."""
    keras = train_step.start_keras(context.threads)
    import keras_hub as hub

    import keras_transformer as kt

    backbone = hub.models.BertBackbone(
        vocabulary_size=30522, num_layers=LAYERS, num_heads=12, hidden_dim=SIZE, intermediate_dim=4 * SIZE
    )
    model = hub.models.BertTextClassifier(backbone, 2, preprocessor=None)
    model.compile(keras.optimizers.Adam(RATE), keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                  jit_compile=False)  # fmt: skip
    tokenizer = kt.pipelines.from_hugging_face(published_checkpoints.minilm()).tokenizer
    first, second = zip(*examples(case), strict=True)
    batches = kt.data.classification(first, np.array(second), tokenizer, BATCH_SIZE)
    dataset = batches.map(
        lambda inputs, labels: ({**inputs, "padding_mask": inputs["token_ids"] != tokenizer.pad_id}, labels)
    )

    def run() -> runner.Figures:
        model.fit(dataset, verbose=0, shuffle=False)
        return {"units": case["texts"]}

    return run


def token_ids(case: dict[str, Any]) -> tuple[list[list[int]], np.ndarray]:
    """Return the ids of the first texts, and their classes."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(published_checkpoints.minilm())
    first, second = zip(*examples(case), strict=True)
    return tokenizer([*first], truncation=True, max_length=256)["input_ids"], np.array(second)


def arguments(context: runner.Context, **options: Any) -> dict[str, Any]:
    """Return the options of a trainer that computes and does nothing else."""
    return {
        "output_dir": str(context.folder / "trainer"), "num_train_epochs": 1, "learning_rate": RATE,
        "per_device_train_batch_size": BATCH_SIZE, "use_cpu": True, "report_to": [], "save_strategy": "no",
        "logging_strategy": "no", "disable_tqdm": True, **options,
    }  # fmt: skip


def transformers_trainer(case: dict[str, Any], context: runner.Context, **options: Any) -> runner.Run:
    """Prepare an epoch of `transformers.Trainer`."""
    import torch
    import transformers

    torch.set_num_threads(context.threads)
    folder = published_checkpoints.minilm()
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder, num_labels=2)
    rows, labels = token_ids(case)
    trainer = transformers.Trainer(
        model,
        transformers.TrainingArguments(**arguments(context, **options)),
        transformers.DataCollatorWithPadding(transformers.AutoTokenizer.from_pretrained(folder)),
        [{"input_ids": row, "labels": int(label)} for row, label in zip(rows, labels, strict=True)],
    )

    def run() -> runner.Figures:
        trainer.train()
        return {"units": case["texts"]}

    return run


def sentence_transformers_trainer(
    case: dict[str, Any], context: runner.Context, **options: Any
) -> runner.Run:
    """Prepare an epoch of `SentenceTransformerTrainer`."""
    import datasets
    import sentence_transformers
    import torch
    from sentence_transformers.sentence_transformer import losses

    torch.set_num_threads(context.threads)
    model = sentence_transformers.SentenceTransformer(str(published_checkpoints.minilm()), device="cpu")
    first, second = zip(*examples(case), strict=True)
    trainer = sentence_transformers.SentenceTransformerTrainer(
        model,
        sentence_transformers.SentenceTransformerTrainingArguments(**arguments(context, **options)),
        datasets.Dataset.from_dict({"anchor": first, "positive": second}),
        loss=losses.MultipleNegativesRankingLoss(model),
    )

    def run() -> runner.Figures:
        trainer.train()
        return {"units": case["texts"]}

    return run


def prepare_limit(case: dict[str, Any], context: runner.Context, library: str) -> runner.Run:
    """Prepare only the multiplications by weights, forward and for both gradients, of all texts without padding."""
    tokens = sum(map(len, token_ids(case)[0]))
    if case["task"] == "embedder":
        tokens *= 2  # the second text of a pair is the first one of the next
    batches = case["texts"] // BATCH_SIZE
    rows = round(tokens / batches)
    sizes = {(rows, SIZE, SIZE): 4, (rows, SIZE, 4 * SIZE): 1, (rows, 4 * SIZE, SIZE): 1}
    measure = train_step.matmul_seconds(library, context.threads, sizes, repeats=3)

    def run() -> runner.Figures:
        times = measure()
        seconds = batches * LAYERS * sum(times[size] * count for size, count in sizes.items())
        return {"units": case["texts"], "seconds": seconds}

    return run


BY_LENGTH = {"train_sampling_strategy": "group_by_length"}
CONTENDERS = {
    "classifier": {
        OURS: functools.partial(ours, jit=False),
        f"{OURS}, XLA": functools.partial(ours, jit=True),
        "transformers, by length": functools.partial(transformers_trainer, **BY_LENGTH),
        "transformers, by length, compiled": functools.partial(
            transformers_trainer, torch_compile=True, **BY_LENGTH
        ),
        "KerasHub": keras_hub,
    },
    "embedder": {
        OURS: functools.partial(ours, jit=False),
        f"{OURS}, XLA": functools.partial(ours, jit=True),
        "sentence-transformers": sentence_transformers_trainer,
    },
}
BENCHMARK = runner.Benchmark(
    __file__,
    __doc__,
    "texts",
    CASES,
    {name: prepare for contenders in CONTENDERS.values() for name, prepare in contenders.items()},
    limits={
        f"the matrix multiplications, by {name}": functools.partial(prepare_limit, library=library)
        for name, library in (("TensorFlow", "tensorflow"), ("PyTorch", "torch"))
    },
    applies=lambda case, contender: contender.startswith("the ") or contender in CONTENDERS[case["task"]],
    threads=(1, 2),
    environment=lambda contender, options: train_step.MEMORY_KEPT,
    columns={"first_processor_seconds": ".0f"},
)

if __name__ == "__main__":
    BENCHMARK.main()
