"""Tokens before each source, as BART's, and the limit of sources of models with learned positions."""

import numpy as np
import pytest

from keras_transformer import pipelines, text
from keras_transformer.models import Transformer
from keras_transformer_serving.text import tokenizer_of

ROLES = {"start": "</s>", "pad": "<pad>", "end": "</s>", "unknown": "<unk>", "row": "<s>"}
TEXTS = ["la casa azul", "", "  ", "¿dónde está?"]


@pytest.fixture(scope="module")
def tokenizer():
    trained = text.BytePairTokenizer.train(TEXTS, 300, special_tokens=ROLES)
    return text.BytePairTokenizer(
        trained.vocabulary, trained.merges, special_tokens=ROLES, source_prefix=["<s>"]
    )


@pytest.fixture(scope="module")
def model(tokenizer):
    sizes = {"num_layers": 1, "num_heads": 2, "model_dim": 8, "hidden_dim": 16}
    ids = {"pad_id": tokenizer.pad_id, "start_id": tokenizer.start_id, "end_id": tokenizer.end_id}
    return Transformer(
        tokenizer.vocabulary_size,
        **sizes,
        **ids,
        position_encoding="learned",
        max_length=20,
        embedding_norm=True,
    )


def test_sources_start_with_the_prefix_unless_they_are_empty(model, tokenizer):
    pipeline = pipelines.TextToText(model, tokenizer, max_new_tokens=4)
    start, end = tokenizer.piece_to_id("<s>"), tokenizer.end_id
    first, *others = pipeline.encode(TEXTS).numpy().tolist()
    ids = tokenizer.tokenize(TEXTS[0]).numpy().tolist()
    assert first[: len(ids) + 2] == [start, *ids, end]
    assert not {start, end} & {*others[0], *others[1]}


def test_truncated_sources_keep_the_prefix_and_the_end(model, tokenizer):
    pipeline = pipelines.TextToText(model, tokenizer, max_new_tokens=4, max_source_tokens=4)
    (ids,) = pipeline.preprocess(np.array(["la casa azul " * 9]), truncate=True).inputs["source_ids"].numpy()
    assert (ids[0], ids[-1], len(ids)) == (tokenizer.piece_to_id("<s>"), tokenizer.end_id, 4)
    left = pipelines.TextToText(model, tokenizer, max_source_tokens=4, truncation_side="left")
    text = "la casa azul " * 9
    whole = tokenizer.tokenize(text).numpy().tolist()
    expected = [tokenizer.piece_to_id("<s>"), *whole[-2:], tokenizer.end_id]
    assert left.preprocess(np.array([text]), truncate=True).inputs["source_ids"].numpy().tolist() == [
        expected
    ]
    assert left.encode([text], truncate=True).numpy().tolist() == [expected]


def test_decoded_texts_are_without_the_prefix(tokenizer):
    ids = [tokenizer.piece_to_id("<s>"), *tokenizer.tokenize("la casa").numpy(), tokenizer.end_id]
    served = tokenizer_of(tokenizer.model_bytes, {"tokenizer_class": "BytePairTokenizer"})
    assert tokenizer.detokenize([ids]).numpy()[0].decode() == served.detokenize(ids) == "la casa"
    assert list(served.source_prefix_ids) == list(tokenizer.source_prefix_ids) == ids[:1]


def test_a_tokenizer_with_a_prefix_is_equal_after_loading(tokenizer, tmp_path):
    tokenizer.save(tmp_path)
    again = text.load(tmp_path)
    assert again.source_prefix_ids == tokenizer.source_prefix_ids
    assert again.sha256 == tokenizer.sha256


def test_sources_are_at_most_as_long_as_the_model(model, tokenizer):
    assert pipelines.TextToText(model, tokenizer, max_new_tokens=4).max_source_tokens == 20
    with pytest.raises(ValueError, match=r"`max_source_tokens` must be at most max_length=20"):
        pipelines.TextToText(model, tokenizer, max_new_tokens=4, max_source_tokens=21)


def test_an_unknown_prefix_is_an_error(tokenizer):
    with pytest.raises(ValueError, match=r"`source_prefix` must be in the vocabulary. Received: \['<x>'\]"):
        text.BytePairTokenizer(tokenizer.vocabulary, [], special_tokens=ROLES, source_prefix=["<x>"])


@pytest.mark.slow
def test_an_export_has_the_ids_of_the_pipeline(model, tokenizer, tmp_path):
    from keras_transformer import export

    pipeline = pipelines.TextToText(model, tokenizer, max_new_tokens=4)
    export.bundle(pipeline, tmp_path / "export", texts=TEXTS)
    export.verify(tmp_path / "export")
