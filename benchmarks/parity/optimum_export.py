"""Compare the ids and logits of exports loaded by Optimum with the pipelines.

    python benchmarks/parity/optimum_export.py            # --help lists the options

Optimum has no release for the version of `transformers` that the other benchmarks compare with, so this one needs an
environment of its own: `pip install -r benchmarks/requirements.txt`, then `pip install optimum-onnx==0.1.0
transformers==4.57.6`.

Pipelines with random weights are exported by `export.onnx`; `from_pretrained` of Optimum's `ORTModel…` classes reads
`onnx/optimum` and nothing else, and `generate` is called without any argument but the source.
"""

import functools
import os
import pathlib
import sys
import tempfile
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("TF2ONNX_CATCH_ERRORS", "FALSE")  # as in the Makefile: it converts faster

import numpy as np
import torch
from optimum import onnxruntime as optimum

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
import references

from keras_transformer import export, generation, models, pipelines, text
from keras_transformer.datasets import phrasebook

SIZES = {"num_layers": 2, "num_heads": 4, "model_dim": 32, "hidden_dim": 64}
NEW_TOKENS = 12
BEAM = generation.Beam(4, length_penalty=1.0, normalization="length", num_return=2)
TOLERANCE = 1e-4


def randomised(model: Any, seed: int) -> Any:
    """Set random weights for which different rows have different outputs."""
    random = np.random.default_rng(seed)
    for weight in model.trainable_weights:
        name = weight.path.split("/")[-1]
        if name not in ("gamma", "scale"):
            scale = 0.25 if name == "embeddings" or len(weight.shape) < 2 else 2 / np.sqrt(weight.shape[0])
            weight.assign(random.normal(size=weight.shape) * scale)
    return model


class Pipelines:
    """Pipelines of each class that Optimum runs, by name."""

    def __init__(self, sentences: list[str], seed: int) -> None:
        self._seed = seed
        self._sentence_piece = text.SentencePieceTokenizer.train(sentences, 200, byte_fallback=False)
        self._word_piece = text.WordPieceTokenizer.train(sentences, 200)

    def __call__(self) -> dict[str, Callable[[], Any]]:
        """Return functions that create them."""
        marian = {
            "normalization": "post",
            "position_layout": "halves",
            "output_bias": True,
            "epsilon": 1e-5,
            "activation": "silu",
        }
        translators: dict[str, tuple[Any, dict[str, Any]]] = {
            "Transformer": (models.Transformer, {}),
            "Transformer as Marian": (models.Transformer, marian),
            "T5": (models.T5, {"key_dim": 8}),
        }
        writers = {"GPT": {}, "GPT with rotary positions": {"position_encoding": "rotary", "norm": "rms"}}
        actual: dict[str, Callable[[], Any]] = {}
        for name, (model_class, options) in translators.items():
            actual[name] = functools.partial(self._translator, "greedy", (), model_class, **options)
        for name, options in writers.items():
            actual[name] = functools.partial(self._writer, "greedy", (), **options)
        constraints = [
            generation.MinNewTokens(3),
            generation.BannedWords([[5, 6], [9]]),
            generation.NoRepeatNGram(2),
        ]
        actual["Transformer as Marian, beam and constraints"] = functools.partial(
            self._translator, BEAM, constraints, models.Transformer, **marian
        )
        # Repetitions there include the prompt.
        actual["GPT, beam and constraints"] = functools.partial(self._writer, BEAM, constraints[:2])
        heads = {
            "TextClassification": lambda bert: models.SequenceClassifier(bert, 3),
            "TokenClassification": lambda bert: models.TokenClassifier(bert, 4),
            "QuestionAnswering": models.SpanClassifier,
            "FillMask": models.MaskedLanguageModel,
            "Embedding": lambda bert: bert,
        }
        for name, head in heads.items():
            actual[f"{name} of BERT"] = functools.partial(self._encoder, name, head)
        return actual

    def _translator(self, sampler: Any, constraints: Any, model_class: Any, **options: Any) -> Any:
        tokenizer = self._sentence_piece
        model = model_class(tokenizer.vocabulary_size, **SIZES, **self._ids(), **options)
        return self._generating(pipelines.TextToText, model, sampler, constraints)

    def _writer(self, sampler: Any, constraints: Any, **options: Any) -> Any:
        ids = {name: id_ for name, id_ in self._ids().items() if name != "start_id"}
        model = models.GPT(self._sentence_piece.vocabulary_size, **SIZES, **ids, max_length=64, **options)
        return self._generating(pipelines.TextGeneration, model, sampler, constraints)

    def _generating(self, pipeline: Any, model: Any, sampler: Any, constraints: Any) -> Any:
        settings = {"constraints": constraints, "max_new_tokens": NEW_TOKENS}
        return pipeline(randomised(model, self._seed), self._sentence_piece, sampler, **settings)

    def _ids(self) -> dict[str, int]:
        return {name: getattr(self._sentence_piece, name) for name in ("pad_id", "start_id", "end_id")}

    def _encoder(self, name: str, head: Any) -> Any:
        tokenizer = self._word_piece
        bert = models.BERT(tokenizer.vocabulary_size, **SIZES, max_length=64, pad_id=tokenizer.pad_id)
        return getattr(pipelines, name)(randomised(head(bert), self._seed), tokenizer)


def generated(pipeline: Any, folder: pathlib.Path, sentences: list[str]) -> tuple[int, int]:
    """Return the number of outputs, and the number of identical ones."""
    inputs = pipeline.preprocess(sentences).arrays()
    ids, mask = inputs["source_ids"].astype("int64"), inputs["padding_mask"].astype("int64")
    has_encoder = hasattr(pipeline.model, "decoder_blocks")
    if has_encoder:
        model = optimum.ORTModelForSeq2SeqLM.from_pretrained(folder)
        prompt = 1
    else:
        order = np.argsort(mask, axis=1, kind="stable")  # padding first
        ids, mask = (np.take_along_axis(each, order, axis=1) for each in (ids, mask))
        model = optimum.ORTModelForCausalLM.from_pretrained(folder)
        prompt = ids.shape[1]
    actual = model.generate(input_ids=torch.tensor(ids), attention_mask=torch.tensor(mask)).numpy()[
        :, prompt:
    ]
    expected = pipeline.generate(sentences).ids
    expected = expected[:, : pipeline.sampler.num_return].reshape(len(actual), -1)
    ends = np.cumsum(actual == pipeline.model.end_id, axis=1) - (actual == pipeline.model.end_id)
    actual = np.where(
        ends, pipeline.model.pad_id, actual
    )  # beams there end with end tokens if the padding id is 0
    actual = np.pad(
        actual, [(0, 0), (0, expected.shape[1] - actual.shape[1])], constant_values=pipeline.model.pad_id
    )
    return len(actual), int((actual == expected).all(axis=1).sum())


CLASSES = {
    "TextClassification": "ORTModelForSequenceClassification",
    "TokenClassification": "ORTModelForTokenClassification",
    "QuestionAnswering": "ORTModelForQuestionAnswering",
    "FillMask": "ORTModelForMaskedLM",
    "Embedding": "ORTModelForFeatureExtraction",
}


def computed(pipeline: Any, folder: pathlib.Path, sentences: list[str]) -> tuple[int, int]:
    """Return the number of rows, and the number of rows whose outputs are equal up to rounding."""
    model = getattr(optimum, CLASSES[type(pipeline).__name__]).from_pretrained(folder)
    tokens = pipeline.tokenizer.tokenize(sentences).to_list()
    ids = np.zeros((len(tokens), 24), "int64") + pipeline.tokenizer.pad_id
    for row, one in enumerate(tokens):
        ids[row, : min(24, len(one))] = one[:24]
    mask = (ids != pipeline.tokenizer.pad_id).astype("int64")
    inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": 0 * ids}
    actual = model(**{name: torch.tensor(values) for name, values in inputs.items()})
    graph = pipeline.forward_graph()
    expected = graph.function(*(inputs[spec.name] for spec in graph.inputs))
    names = [name for name in expected if name in actual]
    equal = np.ones(len(ids), bool)
    for name in names:
        error = np.abs(actual[name].numpy() - expected[name].numpy())
        if error.shape[:2] == mask.shape:  # outputs of padding are not defined
            error[mask == 0] = 0
        equal &= error.reshape(len(ids), -1).max(axis=1) <= TOLERANCE
    return len(ids), int(equal.sum()) if names else 0


@functools.cache
def sentences() -> list[str]:
    """Return the sources of the phrasebook."""
    return [source for source, _ in phrasebook.load_data()[0]]


@functools.cache
def pipelines_of(seed: int) -> dict[str, Callable[[], Any]]:
    """Return functions that create the pipelines."""
    return Pipelines(sentences()[:2000], seed)()


def compare(run: references.Run) -> references.Figures:
    """Count the outputs that are identical."""
    pipeline = pipelines_of(run.seed)[run.name]()
    with tempfile.TemporaryDirectory() as folder:
        exported = export.onnx(pipeline, pathlib.Path(folder) / "it") / "optimum"
        count, same = (generated if pipeline.generates else computed)(
            pipeline, exported, sentences()[-run.options.rows :]
        )
    return {"identical": [same, count]}


GENERATING = ("Transformer", "Transformer as Marian", "T5", "GPT", "GPT with rotary positions")
SEARCHES = tuple(f"{name}, beam and constraints" for name in ("Transformer as Marian", "GPT"))
REFERENCE = references.Reference(
    __file__,
    __doc__,
    dict.fromkeys((*GENERATING, *SEARCHES, *(f"{name} of BERT" for name in CLASSES))),
    compare,
    equal=("identical",),
    seeds=(3,),
    packages=("optimum-onnx",),
    name="parity_optimum",
    add_options=lambda parser: parser.add_argument("--rows", type=int, default=20),
)

if __name__ == "__main__":
    sys.exit(REFERENCE.main())
