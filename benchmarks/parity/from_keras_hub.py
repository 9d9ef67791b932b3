"""Compare the outputs, ids and texts of KerasHub's models and tokenizers before and after conversion.

For each model class that `interop.from_keras_hub` converts, with published sizes and random weights: the largest
difference of an output, and for GPT-2 the ids of greedy generation. For each tokenizer, with a vocabulary trained here:
the number of lines with equal ids, for real text and for hard lines of characters from all over Unicode, and for the
other lines a comparison with the `tokenizers` library, which tokenizes as the published models do.

    .venv-bench/bin/python benchmarks/parity/from_keras_hub.py    # --help
"""

import functools
import io
import os
import pathlib
import sys
from typing import Any

os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import sentencepiece
import tokenizers
from keras_hub import models as hub

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
import references
from tokenizers_parity import fuzzed_lines

from keras_transformer import generation, interop, text
from keras_transformer.datasets import phrasebook
from keras_transformer.pipelines.keras_hub import tokenizer_from_keras_hub

BASE = {"num_layers": 12, "num_heads": 12, "hidden_dim": 768, "intermediate_dim": 3072}
T5_SMALL = {
    "vocabulary_size": 32128,
    "num_layers": 6,
    "num_heads": 8,
    "hidden_dim": 512,
    "intermediate_dim": 2048,
    "key_value_dim": 64,
}
MODELS = {
    "BertMaskedLM": lambda: hub.BertMaskedLM(hub.BertBackbone(30522, **BASE)),
    "BertTextClassifier": lambda: hub.BertTextClassifier(hub.BertBackbone(30522, **BASE), 3),
    "RobertaMaskedLM": lambda: hub.RobertaMaskedLM(hub.RobertaBackbone(50265, **BASE)),
    "RobertaTextClassifier": lambda: hub.RobertaTextClassifier(hub.RobertaBackbone(50265, **BASE), 3),
    "GPT2CausalLM": lambda: hub.GPT2CausalLM(hub.GPT2Backbone(50257, **BASE)),
    "T5Seq2SeqLM": lambda: hub.T5Seq2SeqLM(hub.T5Backbone(**T5_SMALL, use_gated_activation=False)),
    "T5Seq2SeqLM, v1.1": lambda: hub.T5Seq2SeqLM(
        hub.T5Backbone(**T5_SMALL, activation="gelu", tie_embedding_weights=False)
    ),
    "ViTImageClassifier": lambda: hub.ViTImageClassifier(
        hub.ViTBackbone((224, 224, 3), 16, num_layers=12, num_heads=12, hidden_dim=768, mlp_dim=3072), 1000
    ),
}
TOKENIZERS = (
    "BertTokenizer, lowercase=False",
    "BertTokenizer, lowercase=True",
    "GPT2Tokenizer",
    "RobertaTokenizer",
    "T5Tokenizer",
)
PAD = 1
NEW_TOKENS = 24


def randomise(model: keras.Model) -> None:
    """Set all weights to random values that affect the outputs."""
    random = np.random.default_rng(0)
    for weight in model.weights:
        if "float" in weight.dtype:
            values = random.normal(size=weight.shape, scale=0.05)
            weight.assign(values + weight.path.endswith(("gamma", "/weight")))


def compare_model(name: str) -> dict[str, Any]:
    """Return the largest difference of an output."""
    theirs = MODELS[name]()
    randomise(theirs)
    kind = type(theirs).__name__
    fixed = {"pad_id": PAD} if kind.startswith(("Bert", "T5")) else {}
    ours = interop.from_keras_hub(theirs, **fixed, **({"start_id": PAD} if kind.startswith("T5") else {}))
    random = np.random.default_rng(1)
    ids = random.integers(2, theirs.backbone.vocabulary_size, (2, 20)) if "ViT" not in name else None
    mask = np.arange(20) < np.array([[20], [13]])
    if kind.startswith("ViT"):
        inputs = ours_inputs = random.uniform(-1, 1, (2, 224, 224, 3)).astype("float32")
    elif kind.startswith("T5"):
        source, target = np.where(mask, ids, PAD), np.roll(ids, 1, axis=1)
        target[:, 0] = PAD
        ours_inputs = {"source_ids": source, "target_ids": target}
        inputs = {"encoder_token_ids": source, "encoder_padding_mask": mask.astype("int32")}
        inputs |= {"decoder_token_ids": target, "decoder_padding_mask": np.ones_like(target)}
    else:
        inputs = {"token_ids": np.where(mask, ids, PAD), "padding_mask": mask}
        if kind.startswith("Bert"):
            inputs["segment_ids"] = np.where(mask, np.arange(20) > 5, 0).astype("int32")
        ours_inputs = dict(inputs)
        if kind.endswith("MaskedLM"):
            places = np.array([[1, 12], [3, 7]])
            inputs["mask_positions"] = ours_inputs["masked_positions"] = places
    expected, results = (
        keras.ops.convert_to_numpy(model(given)) for model, given in ((theirs, inputs), (ours, ours_inputs))
    )
    if kind.startswith("GPT2"):
        expected, results = expected[mask], results[mask]
    result = {
        "parameters": ours.count_params(),
        "outputs": float(np.abs(results - expected).max()),
        "outputs, largest": float(np.abs(expected).max()),
    }
    return result | (compare_generation(theirs, ours, ids) if kind.startswith("GPT2") else {})


def compare_generation(theirs: Any, ours: Any, ids: np.ndarray) -> dict[str, Any]:
    """Return whether greedy generation gives the same ids."""
    theirs.compile(sampler="greedy")
    prompts = ids[:, :8]
    padded = np.pad(prompts, [(0, 0), (0, NEW_TOKENS)])
    mask = np.pad(np.ones_like(prompts), [(0, 0), (0, NEW_TOKENS)])
    expected = theirs.generate({"token_ids": padded, "padding_mask": mask}, stop_token_ids=None)["token_ids"]
    results = generation.generate(ours, prompts, "greedy", max_new_tokens=NEW_TOKENS)
    rows = keras.ops.convert_to_numpy(results.ids)[:, 0]
    lengths = keras.ops.convert_to_numpy(results.lengths)[:, 0]
    same = [
        np.array_equal(row[:length], np.asarray(other)[8 : 8 + length])
        for row, length, other in zip(rows, lengths, expected, strict=True)
    ]
    return {
        "tokens generated": int(lengths.sum()),
        "rows with equal greedy ids": [sum(same), len(same)],
    }


@functools.cache
def samples() -> tuple[list[str], list[str]]:
    """Return lines of the phrasebook, and hard lines."""
    train, _, _ = phrasebook.load_data(3000, num_validation=50, num_test=50)
    return [side for pair in train for side in pair], fuzzed_lines(500)


@functools.cache
def tokenizers_of() -> dict[str, tuple[Any, Any, Any]]:
    """Return KerasHub's tokenizer, the converted one and, except for SentencePiece, that of `tokenizers`, by name."""
    results: dict[str, tuple[Any, Any, Any]] = {}
    real, hard = samples()
    lines = real + hard[:250]
    for lowercase in (False, True):
        pieces = list(text.WordPieceTokenizer.train(lines, 3000, lowercase=lowercase).vocabulary)
        theirs = hub.BertTokenizer(vocabulary=pieces, lowercase=lowercase, strip_accents=lowercase)
        reference = tokenizers.Tokenizer(
            tokenizers.models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]")
        )
        reference.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=lowercase)
        reference.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
        results[f"BertTokenizer, lowercase={lowercase}"] = (
            theirs,
            tokenizer_from_keras_hub(theirs),
            reference,
        )
    for name, specials in (
        ("GPT2Tokenizer", ["<|endoftext|>"]),
        ("RobertaTokenizer", ["<s>", "<pad>", "</s>", "<mask>"]),
    ):
        tokens = {"end": specials[0], **{each: each for each in specials}}
        trained = text.BytePairTokenizer.train(lines, 3000, special_tokens=tokens)
        vocabulary = {piece: i for i, piece in enumerate(trained.vocabulary)}
        theirs = getattr(hub, name)(vocabulary=vocabulary, merges=[" ".join(pair) for pair in trained.merges])
        reference = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, list(trained.merges)))
        reference.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        reference.add_special_tokens(specials)
        results[name] = (theirs, tokenizer_from_keras_hub(theirs), reference)
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(real),
        model_writer=model,
        vocab_size=3000,
        hard_vocab_limit=False,
        minloglevel=2,
        bos_id=-1,
        pad_id=0,
        eos_id=1,
        unk_id=2,
    )
    theirs = hub.T5Tokenizer(proto=model.getvalue())
    results["T5Tokenizer"] = (theirs, tokenizer_from_keras_hub(theirs), None)
    return results


def compare_tokenizer(theirs: Any, ours: Any, reference: Any, lines: list[str]) -> dict[str, Any]:
    """Return the number of lines with equal ids, and for the other lines the comparison with `tokenizers`."""
    expected = [np.asarray(theirs(line)).tolist() for line in lines]
    results = ours.tokenize(lines).to_list()
    differing = [(line, a, b) for line, a, b in zip(lines, results, expected, strict=True) if a != b]
    result: dict[str, Any] = {"lines": len(lines), "equal ids": len(lines) - len(differing)}
    if reference is not None and differing:
        right = [reference.encode(line).ids for line, _, _ in differing]
        result["differing, ours as `tokenizers`"] = sum(
            a == c for (_, a, _), c in zip(differing, right, strict=True)
        )
        result["differing, KerasHub's as `tokenizers`"] = sum(
            b == c for (_, _, b), c in zip(differing, right, strict=True)
        )
    ids = [row for row in results if row]
    ours_texts = [each.decode() for each in ours.detokenize(ids).numpy()]
    theirs_texts = [str(theirs.detokenize(row)) for row in ids]
    result["equal texts of ids"] = sum(a == b for a, b in zip(ours_texts, theirs_texts, strict=True))
    return result


def compare(run: references.Run) -> references.Figures:
    """Compare a model, or a tokenizer on real lines, whose ids must be equal, and on hard lines."""
    if run.name in MODELS:
        results = compare_model(run.name)
        keras.backend.clear_session()
        return results
    real, hard = samples()
    of_one = tokenizers_of()[run.name]
    results = {
        "real lines": compare_tokenizer(*of_one, real[:500]),
        "hard lines": compare_tokenizer(*of_one, hard),
    }
    return {
        **results,
        "equal ids of real lines": [results["real lines"]["equal ids"], results["real lines"]["lines"]],
    }


REFERENCE = references.Reference(
    __file__,
    __doc__,
    dict.fromkeys((*TOKENIZERS, *MODELS)),
    compare,
    limits={"outputs": 1e-4},
    equal=("rows with equal greedy ids", "equal ids of real lines"),
    name="parity_keras_hub",
)

if __name__ == "__main__":
    sys.exit(REFERENCE.main())
