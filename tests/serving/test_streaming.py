"""Streams of the server are the texts of its generation loop, with sampling and constraints too."""

import pytest

import keras_transformer as kt
import keras_transformer_serving as serving
from keras_transformer.generation import (
    BannedWords,
    ForcedPrefix,
    MinNewTokens,
    NoRepeatNGram,
    RepetitionPenalty,
    Sample,
)
from keras_transformer_serving.server import generating
from tests.random_weights import randomise

PROMPTS = ["to be", "or not", "that is the question", "a"]
CONSTRAINTS = (
    NoRepeatNGram(2),
    RepetitionPenalty(1.3),
    MinNewTokens(3),
    ForcedPrefix((9, 12)),
    BannedWords(((17,), (18, 19))),
)


@pytest.mark.slow
def test_streams_are_the_texts_of_the_loop(tmp_path):
    sampler = Sample(0.9, top_k=20, top_p=0.9, min_p=0.01, seed=3)
    tokenizer = kt.text.ByteTokenizer()
    model = kt.models.GPT(
        tokenizer.vocabulary_size, num_layers=1, num_heads=2, model_dim=16, max_length=64, end_id=tokenizer.end_id,
        pad_id=tokenizer.pad_id,
    )  # fmt: skip
    randomise(model, scale=1.0, seed=1)
    writer = kt.pipelines.TextGeneration(
        model, tokenizer, sampler, constraints=CONSTRAINTS, max_new_tokens=12, max_source_tokens=30
    )
    kt.export.onnx(writer, tmp_path / "writer")
    served = serving.load(tmp_path / "writer")
    assert generating.streams(served) == ""
    expected = served(PROMPTS)
    assert len(set(expected)) == len(PROMPTS)
    for index, (prompt, text) in enumerate(zip(PROMPTS, expected, strict=True)):
        assert "".join(generating.pieces(served, {"text": prompt, "rows": index})) == text
    limits = {"max_new_tokens": 4, "min_new_tokens": 4, "temperature": 2.0}
    expected = served(PROMPTS[:1], **limits)
    assert ["".join(generating.pieces(served, {"text": PROMPTS[0], **limits}))] == expected
