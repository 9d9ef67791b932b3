"""Kernels of attention on translation: the loss after equal updates on Multi30k, English to German.

The kernels of Tsai et al., "Transformer Dissection" (2019), section 3.2: exponential (the scaled dot product), RBF,
polynomial of degree 2 and linear, with separate projections of queries and keys, or one for both in self-attention.
The paper's linear kernel, a dot product that may be negative, did not converge there; the one here is of positive
features. All Transformers have one size, data and learning rate. `--help` lists the options.
"""

import dataclasses
import functools
import pathlib
import sys
from typing import Any

sys.path.append(str(pathlib.Path(__file__).parents[1]))
import multi30k
import references

SCORES = {"exponential": "scaled_dot_product", "RBF": "rbf", "polynomial": "polynomial", "linear": "linear"}


@dataclasses.dataclass(frozen=True)
class Settings:
    """The kernel, the model and its training."""

    score: str = "scaled_dot_product"
    shared_query_key: bool = False
    vocabulary_size: int = 2000
    num_layers: int = 1
    num_heads: int = 4
    model_dim: int = 64
    hidden_dim: int = 128
    dropout: float = 0.1
    label_smoothing: float = 0.1
    batch_tokens: int = 2048
    max_length: int = 40
    peak_rate: float = 4e-3
    warmup: float = 0.2
    epochs: int = 1


@functools.cache
def load(vocabulary_size: int) -> tuple[Any, Any, Any]:
    """Return pairs for training and validation, and a tokenizer."""
    from keras_transformer import text
    from keras_transformer.datasets import multi30k as dataset

    train, validation, _ = map(multi30k.lower_cased, dataset.load_data("en", "de"))
    sides = [side for pair in train for side in pair]
    return (
        train,
        validation,
        text.SentencePieceTokenizer.train(sides, vocabulary_size, "bpe", byte_fallback=False),
    )


def compare(run: references.Run) -> references.Figures:
    """Train a model, and return its loss on the validation pairs."""
    import keras

    from keras_transformer import data, models, training

    settings = run.settings
    keras.backend.clear_session()
    pairs, held_out, tokenizer = load(settings.vocabulary_size)
    keras.utils.set_random_seed(run.seed)
    options = {"batch_tokens": settings.batch_tokens, "max_length": settings.max_length, "length_buckets": 3}
    batches = data.translation_pairs(pairs, tokenizer, **options, seed=run.seed)
    names = ("num_layers", "num_heads", "model_dim", "hidden_dim", "dropout", "score", "shared_query_key")
    model = models.Transformer(
        tokenizer.vocabulary_size,
        **{name: getattr(settings, name) for name in names},
        **{name: getattr(tokenizer, name) for name in ("pad_id", "start_id", "end_id")},
    )
    updates = settings.epochs * int(batches.cardinality())
    warmup = round(settings.warmup * updates)
    rate = keras.optimizers.schedules.CosineDecay(
        0.0, updates - warmup, warmup_target=settings.peak_rate, warmup_steps=warmup
    )
    model.compile(
        keras.optimizers.Adam(rate, beta_2=0.98, epsilon=1e-9),
        training.LabelSmoothedCrossentropy(settings.label_smoothing, pad_id=tokenizer.pad_id),
        jit_compile=False,
    )
    history = model.fit(batches, epochs=settings.epochs, shuffle=False, verbose=0).history
    model.compile(loss=training.LabelSmoothedCrossentropy(0.0, pad_id=tokenizer.pad_id), jit_compile=False)
    held_out = data.translation_pairs(held_out, tokenizer, **options, shuffle=False)
    return {
        "loss": model.evaluate(held_out, verbose=0),
        "training loss": history["loss"][-1],
        "updates": updates,
        "parameters": model.count_params(),
    }


REFERENCE = references.Reference(
    __file__,
    __doc__,
    {
        f"{name}, {'shared' if shared else 'separate'}": Settings(score, shared)
        for name, score in SCORES.items()
        for shared in (False, True)
    },
    compare,
    measures=("loss",),
    settings=Settings,
    seeds=(0, 1, 2),
)

if __name__ == "__main__":
    sys.exit(REFERENCE.main())
