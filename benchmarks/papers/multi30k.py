"""Multi30k, English to German: BLEU of a Transformer with 4+4 layers, D 128, on the 1,000 captions of 2016.

The published recipe: lower-cased text, one vocabulary of sub-words for both languages, label smoothing, warm-up, the
mean of the last checkpoints, beam 5. `--minutes` trains for a fixed time (`training.TimeBudget`), `--epochs` for a
fixed number of epochs, as on a GPU: `KERAS_BACKEND=jax … --epochs 60 --batch-tokens 4096 --dropout 0.3`.
`--help` lists the options.
"""

import dataclasses
import importlib.util
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

sys.path.append(str(pathlib.Path(__file__).parents[1]))
import references

Pairs = list[tuple[str, str]]


@dataclasses.dataclass(frozen=True)
class Settings:
    """The model, its training and its search."""

    vocabulary_size: int = 4000
    num_layers: int = 4
    num_heads: int = 4
    model_dim: int = 128
    hidden_dim: int = 256
    dropout: float = 0.15
    activation: str = "relu"
    normalization: str = "pre"
    label_smoothing: float = 0.1
    batch_tokens: int = 1024
    max_length: int = 48
    peak_rate: float = 5e-3
    beta_2: float = 0.98
    warmup: float = 0.1
    minutes: float = 50.0
    epochs: int = 0
    averaged: int = 5
    beams: int = 5
    length_penalty: float = 1.0


def lower_cased(pairs: Pairs) -> Pairs:
    """Return the pairs in lower case, as in the published recipe."""
    return [(source.strip().lower(), target.strip().lower()) for source, target in pairs]


def build(tokenizer: Any, settings: Settings, learning_rate: Any) -> Any:
    """Return the compiled model."""
    import keras

    from keras_transformer import models, training

    names = ("num_layers", "num_heads", "model_dim", "hidden_dim", "dropout", "activation", "normalization")
    model = models.Transformer(
        tokenizer.vocabulary_size,
        **{name: getattr(settings, name) for name in names},
        **{name: getattr(tokenizer, name) for name in ("pad_id", "start_id", "end_id")},
    )
    model.compile(
        keras.optimizers.Adam(learning_rate, beta_2=settings.beta_2, epsilon=1e-9),
        training.LabelSmoothedCrossentropy(settings.label_smoothing, pad_id=tokenizer.pad_id),
        metrics=[training.Perplexity(pad_id=tokenizer.pad_id)],
        jit_compile="auto",
    )
    return model


def train(train: Pairs, validation: Pairs, settings: Settings, seed: int, folder: pathlib.Path) -> Any:
    """Return a trained pipeline and its training figures; write the weights of each epoch to `folder`."""
    import keras

    from keras_transformer import data, generation, pipelines, text, training

    keras.utils.set_random_seed(seed)
    tokenizer = text.SentencePieceTokenizer.train(
        [side for pair in train for side in pair], settings.vocabulary_size, "bpe", byte_fallback=False
    )
    options = {"batch_tokens": settings.batch_tokens, "max_length": settings.max_length, "length_buckets": 4}
    batches = data.translation_pairs(train, tokenizer, **options, seed=seed)
    held_out = data.translation_pairs(validation, tokenizer, **options, shuffle=False)
    callbacks = [
        keras.callbacks.ModelCheckpoint(str(folder / "{epoch:04d}.weights.h5"), save_weights_only=True)
    ]
    learning_rate: Any = settings.peak_rate
    if settings.epochs:
        steps = settings.epochs * int(batches.cardinality())
        warmup = max(1, round(settings.warmup * steps))
        learning_rate = keras.optimizers.schedules.CosineDecay(
            0.0, steps - warmup, warmup_target=settings.peak_rate, warmup_steps=warmup
        )
    else:
        callbacks.append(training.TimeBudget(settings.minutes, settings.peak_rate, settings.warmup))
    model = build(tokenizer, settings, learning_rate)
    start = time.perf_counter()
    history = model.fit(
        batches,
        validation_data=held_out,
        epochs=settings.epochs or 10_000,
        callbacks=callbacks,
        shuffle=False,
        verbose=2,
    ).history
    sampler = generation.Beam(settings.beams, settings.length_penalty, "length")
    return pipelines.TextToText(model, tokenizer, sampler, max_new_tokens=settings.max_length), {
        "vocabulary": tokenizer.vocabulary_size,
        "parameters": model.count_params(),
        "epochs": len(history["loss"]),
        "updates": int(model.optimizer.iterations),
        "training_seconds": time.perf_counter() - start,
        "history": {name: [float(value) for value in values] for name, values in history.items()},
    }


def bleu(answers: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
    """Return lower-cased SacreBLEU on its own tokens and, with sacremoses installed, on Moses' tokens, as published."""
    from sacrebleu.metrics import BLEU

    metric = BLEU(lowercase=True, tokenize="13a")
    score = metric.corpus_score(answers, [references])
    scores = {"bleu": score.score, "brevity_penalty": score.bp, "signature": str(metric.get_signature())}
    if importlib.util.find_spec("sacremoses"):
        from sacremoses import MosesTokenizer

        split = MosesTokenizer("de").tokenize
        tokenized = [
            [split(text, return_str=True, escape=False) for text in texts] for texts in (answers, references)
        ]
        metric = BLEU(lowercase=True, tokenize="none", force=True)
        scores["moses"] = {
            "bleu": metric.corpus_score(tokenized[0], [tokenized[1]]).score,
            "signature": str(metric.get_signature()),
        }
    return scores


def evaluate(pipeline: Any, pairs: Pairs) -> dict[str, Any]:
    """Return BLEU, and the first answers."""
    sources, references = zip(*pairs, strict=True)
    start = time.perf_counter()
    answers = pipeline(list(sources))
    results = {**bleu(answers, list(references)), "seconds": time.perf_counter() - start}
    print(f"BLEU {results['bleu']:.2f} of {len(pairs)}", file=sys.stderr, flush=True)
    results["examples"] = [
        {"source": source, "reference": reference, "answer": answer}
        for (source, reference), answer in zip(pairs[:3], answers, strict=False)
    ]
    return results


def compare(run: references.Run) -> references.Figures:
    """Train a model, choose checkpoints by BLEU on the validation captions, and test them."""
    from keras_transformer import training
    from keras_transformer.datasets import multi30k

    training_pairs, validation, test = map(lower_cased, multi30k.load_data("en", "de"))
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        pipeline, trained = train(training_pairs, validation, run.settings, run.seed, folder)
        files = sorted(folder.glob("*.weights.h5"))
        candidates = {"last": files[-1:], "averaged": files[-run.settings.averaged :]}
        results = {}
        for name, kept in candidates.items():
            training.average_checkpoints(pipeline.model, kept)
            results[name] = {"checkpoints": len(kept), **evaluate(pipeline, validation)}
        chosen = max(results, key=lambda name: results[name]["bleu"])
        training.average_checkpoints(pipeline.model, candidates[chosen])
    tested = evaluate(pipeline, test)
    backend = os.environ.get("KERAS_BACKEND", "tensorflow")
    facts = {"backend": backend, "validation": results, "chosen": chosen, "test": tested}
    return {**trained, **facts, "BLEU on test2016": tested["bleu"]}


REFERENCE = references.Reference(
    __file__,
    __doc__,
    {"en→de": None},
    compare,
    measures=("BLEU on test2016",),
    published=41.0,  # Wu et al., "Good for Misconceived Reasons" (2021), Transformer-Tiny, text alone
    settings=Settings,
)

if __name__ == "__main__":
    sys.exit(REFERENCE.main())
