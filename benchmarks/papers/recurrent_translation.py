"""Translation by an RNN with Bahdanau attention beside a Transformer: BLEU and tokens/s on Multi30k, English to German.

The RNN (Bahdanau et al. 2015): a bidirectional GRU as encoder, and a GRU as decoder, whose state before each token
attends to the encoder's states by an additive score. Both have the same vocabulary and embeddings, about as many
parameters, the same batches and the same processor time, and decode by greedy search. `--help` lists the options.
"""

import dataclasses
import pathlib
import sys
import time
from typing import Any

import keras
import numpy as np
from keras import ops

sys.path.append(str(pathlib.Path(__file__).parents[1]))
import multi30k
import references

from keras_transformer import data, generation, layers, models, text, training


@dataclasses.dataclass(frozen=True)
class Settings:
    """The model and its training; `minutes` are of processor time."""

    model: str = "Transformer"
    vocabulary_size: int = 2000
    model_dim: int = 64
    num_layers: int = 2
    num_heads: int = 4
    hidden_dim: int = 128
    encoder_units: int = 64
    decoder_units: int = 96
    dropout: float = 0.1
    label_smoothing: float = 0.1
    batch_tokens: int = 1024
    max_length: int = 48
    peak_rate: float = 5e-3
    warmup: float = 0.1
    minutes: float = 2.0
    test_pairs: int = 1000


class AttentionCell(keras.layers.Layer):
    """A GRU cell whose state attends to a source before each token.

    Its output is the token with the new state and the context, (B, D + units + 2E).
    """

    def __init__(self, units: int, size: int, source_size: int) -> None:
        super().__init__()
        self.state_size = units
        self.source_size = source_size
        self.cell = keras.layers.GRUCell(units)
        self.query = keras.layers.Dense(size, use_bias=False)
        self.key = keras.layers.Dense(size)
        self.score = keras.layers.Dense(1, use_bias=False)
        self.source: dict[str, Any] = {}  # {"states": (B, S, 2E), "keys": (B, S, A), "padding_mask": (B, S)}

    def build(self, input_shape: Any) -> None:
        """Create the weights for tokens of size D."""
        self.cell.build((None, input_shape[-1] + self.source_size))
        self.query.build((None, self.state_size))
        self.key.build((None, None, self.source_size))
        self.score.build((None, None, self.key.units))

    def call(self, token: Any, states: Any) -> tuple[Any, list[Any]]:
        """Return the output of a token (B, D), and the new state."""
        hidden = ops.tanh(self.source["keys"] + self.query(states[0])[:, None])
        scores = ops.where(self.source["padding_mask"], self.score(hidden)[:, :, 0], -1e9)
        context = ops.einsum("bs,bsd->bd", ops.softmax(scores), self.source["states"])
        _, states = self.cell(ops.concatenate([token, context], axis=-1), states)
        return ops.concatenate([token, states[0], context], axis=-1), states


class RecurrentTranslator(keras.Model):
    """The encoder–decoder of Bahdanau et al. (2015), with tied embeddings, for `fit` and `generation.generate`."""

    is_encoder_decoder = True

    def __init__(self, tokenizer: Any, settings: Settings) -> None:
        super().__init__()
        self.vocabulary_size = tokenizer.vocabulary_size
        self.pad_id, self.start_id, self.end_id = tokenizer.pad_id, tokenizer.start_id, tokenizer.end_id
        size, units = settings.model_dim, settings.decoder_units
        self.embedding = layers.TokenEmbedding(self.vocabulary_size, size, pad_id=None)
        self.drop = keras.layers.Dropout(settings.dropout)
        self.encoder = keras.layers.Bidirectional(
            keras.layers.GRU(settings.encoder_units, return_sequences=True)
        )
        self.start = keras.layers.Dense(units, "tanh")
        self.cell = AttentionCell(units, size, 2 * settings.encoder_units)
        self.cell.build((None, size))
        self.decoder = keras.layers.RNN(self.cell, return_sequences=True)
        self.output_layer = keras.layers.Dense(size)

    def encode(self, source_ids: Any, training: bool = False) -> dict[str, Any]:
        """Return the encoder's states, their keys and their mask."""
        padding_mask = ops.not_equal(source_ids, self.pad_id)
        embedded = self.drop(self.embedding(source_ids), training=training)
        states = self.encoder(embedded, mask=padding_mask)
        return {"states": states, "keys": self.cell.key(states), "padding_mask": padding_mask}

    def call(self, inputs: dict[str, Any], training: bool | None = None) -> Any:
        """Return the logits of every target position."""
        source = self.encode(inputs["source_ids"], training)
        self.cell.source = source
        embedded = self.drop(self.embedding(inputs["target_ids"]), training=training)
        outputs = self.decoder(embedded, initial_state=self.first_state(source), training=training)
        return self.logits(self.drop(outputs, training=training))

    def first_state(self, source: dict[str, Any]) -> Any:
        """Return the decoder's first state, from the backward state of the first source token."""
        return self.start(source["states"][:, 0, source["states"].shape[-1] // 2 :])

    def logits(self, outputs: Any) -> Any:
        """Return the logits of outputs of the cell."""
        return self.embedding.logits(self.output_layer(outputs))

    def empty_cache(self, batch_size: Any, length: Any, hypotheses: int = 1, kv_cache: Any = None) -> Any:
        """Return an empty state; the first step starts from the source."""
        return {"hidden": ops.zeros((batch_size, self.cell.state_size))}

    def step(
        self, ids: Any, cache: Any, context: Any, *, cache_index: Any, positions: Any, **_: Any
    ) -> tuple[Any, Any]:
        """Return the logits of one new token (B, 1), and the new state."""
        self.cell.source = context
        is_first = ops.equal(cache_index, 0)
        state = ops.where(is_first, self.first_state(context), cache["hidden"])
        output, (state,) = self.cell(self.embedding(ids)[:, 0], [state])
        return self.logits(output[:, None]), {"hidden": state}


def build(tokenizer: Any, settings: Settings) -> Any:
    """Return the compiled model."""
    if settings.model == "RNN":
        model: Any = RecurrentTranslator(tokenizer, settings)
        ids = np.full((1, 2), tokenizer.end_id)
        model({"source_ids": ids, "target_ids": ids})
    else:
        model = models.Transformer(
            tokenizer.vocabulary_size,
            **{
                name: getattr(settings, name)
                for name in ("num_layers", "num_heads", "model_dim", "hidden_dim", "dropout")
            },
            **{name: getattr(tokenizer, name) for name in ("pad_id", "start_id", "end_id")},
        )
    loss = training.LabelSmoothedCrossentropy(settings.label_smoothing, pad_id=tokenizer.pad_id)
    model.compile(
        keras.optimizers.Adam(settings.peak_rate, beta_2=0.98, clipnorm=1.0), loss, jit_compile=False
    )
    return model


def translate(model: Any, tokenizer: Any, pairs: multi30k.Pairs, settings: Settings) -> references.Figures:
    """Return BLEU, and the tokens per second of wall and of processor time."""
    sources, expected = zip(*pairs, strict=True)
    answers, tokens, size = [], 0, 100
    generate = generation.Generator(model, "greedy", max_new_tokens=settings.max_length)
    wall = processor = 0.0
    for start in range(-size, len(sources), size):  # the first batch twice, once to compile
        first = max(start, 0)
        source_ids = tokenizer.encode(list(sources[first : first + size]), add_end=True)
        begin = time.perf_counter(), time.process_time()
        output = generate(source_ids)
        if start >= 0:
            wall += time.perf_counter() - begin[0]
            processor += time.process_time() - begin[1]
            answers += [text.decode() for text in tokenizer.detokenize(output.best).numpy()]
            tokens += int(np.sum(ops.convert_to_numpy(output.lengths)))
    return {
        **multi30k.bleu(answers, list(expected)),
        "generated tokens/s": tokens / wall,
        "generated tokens per processor second": tokens / processor,
        "examples": list(zip(sources[:3], answers[:3], strict=False)),
    }


def compare(run: references.Run) -> references.Figures:
    """Train a model for a fixed time, and translate the test captions."""
    from keras_transformer.datasets import multi30k as captions

    settings = run.settings
    keras.utils.set_random_seed(run.seed)
    train, _, test = map(multi30k.lower_cased, captions.load_data("en", "de"))
    tokenizer = text.SentencePieceTokenizer.train(
        [side for pair in train for side in pair], settings.vocabulary_size, "bpe", byte_fallback=False
    )
    batches = data.translation_pairs(
        train,
        tokenizer,
        batch_tokens=settings.batch_tokens,
        max_length=settings.max_length,
        length_buckets=4,
        seed=run.seed,
    )
    model = build(tokenizer, settings)
    budget = training.TimeBudget(
        settings.minutes, settings.peak_rate, settings.warmup, clock=time.process_time
    )
    history = model.fit(batches, epochs=10_000, callbacks=[budget], shuffle=False, verbose=2).history
    updates = int(model.optimizer.iterations)
    tested = translate(model, tokenizer, test[: settings.test_pairs], settings)
    tokens = sum(int(np.count_nonzero(inputs["target_ids"])) for inputs, _ in batches.take(50)) / min(
        50, int(batches.cardinality())
    )
    return {
        "parameters": model.count_params(),
        "updates": updates,
        "training tokens per processor second": updates * tokens / (60 * settings.minutes),
        "training loss": history["loss"][-1],
        "BLEU": tested.pop("bleu"),
        **tested,
    }


REFERENCE = references.Reference(
    __file__,
    __doc__,
    {name: Settings(name) for name in ("Transformer", "RNN")},
    compare,
    measures=("BLEU", "training tokens per processor second", "generated tokens per processor second"),
    settings=Settings,
    seeds=(0, 1, 2),
)

if __name__ == "__main__":
    sys.exit(REFERENCE.main())
