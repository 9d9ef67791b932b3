"""Serving pipelines for texts equal the pipelines in prompts, pairs and ids; tests/laws has what all share."""

import numpy as np
import pytest
import tensorflow as tf

import keras_transformer_serving as serving
from keras_transformer import export, text
from keras_transformer.export.bundle_writer import config_of
from keras_transformer.pipelines import TextToText
from keras_transformer_serving.server import forward
from tests.laws.pipelines import (
    LINES,
    LONG,
    answer,
    byte_pairs,
    classify,
    classify_by_gpt,
    embed_with_prompts,
    fill_mask,
    rerank,
    result_of,
    roberta_tokenizer,
)
from tests.serving.in_tensorflow import served_in_tensorflow, signature_outputs, without_graphs


def test_prompts_equal_the_pipeline_prompts(assert_equal):
    pipeline = embed_with_prompts()
    served = served_in_tensorflow(pipeline)
    for prompt in (
        {},
        {"prompt_name": "query"},
        {"prompt_name": "none"},
        {"prompt": "z "},
        {"prompt": ""},
        {"prompt_name": "other"},
        {"prompt_name": ""},
        {"prompt_name": "query", "prompt": "a"},
        {"prompt": 5},
    ):
        found, expected = (result_of(each, ["a b", "", "c"], **prompt) for each in (served, pipeline))
        assert_equal(found, expected)
    signature = forward.signatures(served)["embed"]
    rows = {
        "text": ["a", "b", "c", "d", b"\xff"],
        "prompt_name": ["query", "none", "", "other", ""],
        "prompt": ["", "z", "", "", ""],
    }
    for columns in (rows, {"text": rows["text"][:3]}, {"text": rows["text"][:3], "prompt_name": ["none"]}):
        found = signature_outputs(served, signature, columns)
        graph = pipeline.signatures()["embed"]
        given = {name: tf.constant(values) for name, values in {**graph.defaults, **columns}.items()}
        expected = graph.function(*(given[tensor.name] for tensor in signature.inputs))
        np.testing.assert_allclose(found["embedding"], expected["embedding"], rtol=1e-4, atol=1e-4)
        assert found["error"].tolist() == [error.decode() for error in expected["error"].numpy()]


@pytest.mark.slow
def test_rankings_equal_the_pipeline(assert_equal):
    pipeline = rerank()
    served = served_in_tensorflow(pipeline)
    texts = ["a b", "a a a a", "", "x y z", "a c b c a"]  # their scores differ by more than rounding
    ranking = served.rank("a b", texts, batch_size=2)
    assert [index for index, _ in ranking] == [index for index, _ in pipeline.rank("a b", texts)]
    np.testing.assert_allclose(served.rank("a b", texts, 2), ranking[:2], rtol=1e-5)
    scores = served("a b", texts)
    np.testing.assert_allclose(scores, pipeline(["a b"] * 5, texts), rtol=1e-5)
    expected = sorted(enumerate(scores.tolist()), key=lambda each: -each[1])
    np.testing.assert_allclose(ranking, expected, rtol=1e-5)
    for arguments in ((["a"], texts), ("a", "b"), ("a", texts, 0), ("a", [LONG])):
        assert_equal(*(result_of(each.rank, *arguments) for each in (served, pipeline)))


def test_a_pair_for_a_model_without_segments_has_all_separators():
    pipeline = classify(roberta_tokenizer(), num_segments=1)
    tokenizer = pipeline.tokenizer
    one, other = (tokenizer.tokenize(each).numpy().tolist() for each in ("a b", "cc"))
    start, end = tokenizer.start_id, tokenizer.end_id
    inputs = pipeline.preprocess(tf.constant(["a b"]), tf.constant(["cc"])).inputs
    assert inputs.keys() == {"token_ids"}
    assert inputs["token_ids"].numpy().tolist() == [[start, *one, end, end, *other, end]]


@pytest.mark.slow
def test_an_answer_begins_after_all_separators():
    pipeline, words = answer(roberta_tokenizer(), 1, max_answer_tokens=1), "abcdef"
    model, tokenizer = pipeline.model, pipeline.tokenizer
    for question in ("a", "b c", "ab"):
        batch = pipeline.preprocess(tf.constant([question]), tf.constant([" ".join(words)]))
        ids = batch.inputs["token_ids"].numpy()[0]
        assert len(ids) == len(tokenizer.tokenize(question)) + 3 + len(words) + 1
        logits = model(ids[None]).numpy()[0].sum(axis=0)[-len(words) - 1 : -1]
        assert pipeline(question, " ".join(words)).text == words[logits.argmax()]


def test_a_mask_includes_the_preceding_space_if_the_tokenizer_requires_it():
    pipeline = fill_mask(roberta_tokenizer())
    assert pipeline.mask == "<mask>"
    texts = tf.constant(["a<mask> b", "a <mask> b", "a \u3000\t<mask> b"])
    first, *others = pipeline.preprocess(texts).inputs["token_ids"].numpy().tolist()
    assert others == [first, first]


@pytest.mark.slow
def test_a_classifier_of_text_pairs_requires_both_texts(assert_equal):
    pipeline = classify_by_gpt(symmetric=True)
    served = served_in_tensorflow(pipeline)
    assert result_of(served, ["a"])[0] is ValueError
    for given in (["a"], ["a", "b"]):
        assert_equal(result_of(served, given), result_of(pipeline, given))
        assert_equal(result_of(served, given, "ab"), result_of(pipeline, given, "ab"))


def translator(tokenizer, random_transformer):
    names = ("vocabulary_size", "pad_id", "start_id", "end_id")
    model = random_transformer(20, 1.5, **{name: getattr(tokenizer, name) for name in names})
    return TextToText(model, tokenizer, max_new_tokens=6, max_source_tokens=60)


def marian():
    trained = text.SentencePieceTokenizer.train(LINES, 80, byte_fallback=False)
    pieces = [trained.id_to_piece(id_) for id_ in range(4, trained.vocabulary_size)]
    pieces = ["<pad>", "</s>", "<unk>", *pieces[::-1], ">>fra<<"]
    return text.MarianT5Tokenizer(
        trained.model_bytes, pieces, tokens_in_text=[">>fra<<"], place_in_text="start"
    )


SOURCES = [*LINES, "", "  ", "☃", "</s>", "<pad> </s>", ">>fra<<the cat", "UNO\tdos\n", "x" * 59]


@pytest.mark.parametrize("make", [lambda: text.ByteTokenizer(special_tokens_in_text=True), marian])
def test_source_ids_and_errors_equal_the_pipeline(make, random_transformer, assert_equal):
    pipeline = translator(make(), random_transformer)
    config = config_of(pipeline)
    tokenizer = serving.tokenizer_of(pipeline.tokenizer.model_bytes, config)
    served = serving.TextToText(without_graphs(config), config, tokenizer)
    inputs = pipeline.preprocess(tf.constant(SOURCES)).inputs
    expected = tf.ragged.boolean_mask(inputs["source_ids"], inputs["padding_mask"]).to_list()
    assert served.encode(SOURCES) == expected
    assert served.encode(["  "]) == [[]]
    for texts in (["a", "the cat " * 99], ["a", 5], ["\ud800"]):
        found, expected = result_of(served.encode, texts), result_of(pipeline, texts)
        assert_equal(found, expected)


@pytest.mark.slow
@pytest.mark.parametrize("make", [text.ByteTokenizer, byte_pairs, marian])
def test_an_export_translates_without_tensorflow(
    make, random_transformer, served_without_tensorflow, tmp_path
):
    pipeline = translator(make(), random_transformer)
    export.onnx(pipeline, tmp_path / "it", texts=LINES)
    assert served_without_tensorflow(tmp_path / "it", SOURCES) == pipeline(SOURCES)
    examples = tmp_path / "it" / "tokenizer" / "examples.json"
    examples.write_text(examples.read_text().replace("[", "[ ", 1))
    with pytest.raises(ValueError, match=r"examples\.json.*damaged"):
        serving.load(tmp_path / "it")
