"""Serving pipelines for texts give the outputs and errors of the pipelines."""

import types

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_transformer_serving as serving
from keras_transformer import export, text
from keras_transformer.export.bundle_writer import config_of
from keras_transformer.models import (
    BERT,
    GPT,
    EncoderDecoderClassifier,
    GPTClassifier,
    MaskedLanguageModel,
    SentenceEncoder,
    SequenceClassifier,
    SpanClassifier,
    TokenClassifier,
    Transformer,
)
from keras_transformer.pipelines import (
    Embedding,
    FillMask,
    QuestionAnswering,
    Reranking,
    TextClassification,
    TextToText,
    TokenClassification,
)
from keras_transformer_serving.server import forward
from keras_transformer_serving.server.batching import compute
from keras_transformer_serving.server.signatures import Job

SMALL = {"num_layers": 1, "num_heads": 2, "model_dim": 8, "hidden_dim": 16}
SEVERAL = "multi_label_classification"
LONG = "abcdefghijklmnopqrstuvwxyz" * 2  # too long for every setting except "window"
TEXTS = ["a b", " ñ\u3000☃\n b\u00a0", "", "x", "ab cd ef", "é\u0301 中文 👍🏽", "don't", "a\tb\x1cc"]
LINES = ["the cat sat on the mat", "a dog, an owl: who's there?", "ñandú ☃ 1,000 中文", "naïve café"]


def word_pieces():
    return text.WordPieceTokenizer.train(LINES, 120)


def byte_pairs():
    return text.BytePairTokenizer.train(LINES, 280)


def randomised(model):
    random = np.random.default_rng(2)
    for weight in model.trainable_weights:
        weight.assign(random.normal(size=weight.shape))
    return model


def bert(tokenizer, head=lambda encoder: encoder, **options):
    encoder = BERT(tokenizer.vocabulary_size, **SMALL, max_length=40, pad_id=tokenizer.pad_id, **options)
    return randomised(head(encoder))


def classify(tokenizer, num_classes=3, long_texts="refuse", labels=None, **options):
    model = bert(tokenizer, lambda encoder: SequenceClassifier(encoder, num_classes, **options))
    return TextClassification(model, tokenizer, labels, long_texts, 0.4)


def classify_by_gpt(tokenizer, symmetric=False, problem_type=None, long_texts="refuse"):
    decoder = GPT(
        tokenizer.vocabulary_size, **SMALL, max_length=40, pad_id=tokenizer.pad_id, end_id=tokenizer.end_id
    )
    decoder = decoder.resize_token_embeddings(decoder.vocabulary_size + 3)
    model = GPTClassifier(decoder, 3, symmetric=symmetric, problem_type=problem_type)
    return TextClassification(randomised(model), tokenizer, ["x", "y", "z"], long_texts)


def roberta_tokenizer():
    roles = {"start": "<s>", "pad": "<pad>", "end": "</s>", "unknown": "<unk>", "mask": "<mask>"}
    trained = text.BytePairTokenizer.train(TEXTS, 300, special_tokens=roles)
    return text.BytePairTokenizer(
        trained.vocabulary, trained.merges, special_tokens=roles, pair_separators=2, lstrip_mask=True
    )


def roberta(make, num_segments=1):
    tokenizer = roberta_tokenizer()
    return bert(tokenizer, make, num_segments=num_segments), tokenizer


def classify_by_roberta():
    return TextClassification(*roberta(lambda encoder: SequenceClassifier(encoder, 3)))


def classify_by_bart():
    tokenizer = roberta_tokenizer()
    ids = {"pad_id": tokenizer.pad_id, "start_id": tokenizer.end_id, "end_id": tokenizer.end_id}
    sizes = {**SMALL, "position_encoding": "learned", "max_length": 40}
    model = EncoderDecoderClassifier(Transformer(tokenizer.vocabulary_size, **sizes, **ids), 3)
    return TextClassification(randomised(model), tokenizer)


def one_class(encoder):
    return SequenceClassifier(encoder, 1)


def rerank(long_texts="window"):
    return Reranking(bert(text.ByteTokenizer(), one_class), text.ByteTokenizer(), long_texts=long_texts)


def pairs_of(texts):
    return [texts, texts[::-1]]


def of_tokens(tokenizer, long_texts="refuse"):
    model = bert(tokenizer, lambda encoder: TokenClassifier(encoder, 3))
    return TokenClassification(model, tokenizer, ["x", "y", "z"], long_texts)


def fill_mask(tokenizer, **options):
    return FillMask(bert(tokenizer, MaskedLanguageModel), tokenizer, **options)


QUESTIONS = [["a", "", "ab c", "é"], ["b c", " ñ \u2003☃", "x", "a\u3000b"]]
MASKED = [["a [MASK] b", "[MASK][MASK]x☃", "c [MASK] d [MASK] ."]]
LONGER = [*TEXTS, LONG, "a b cc d e ff g h i j k l mmmmm n o p", LONG * 3]
# Each pipeline and its columns of texts.
QUICK = {
    "text": (lambda: classify(text.ByteTokenizer(), labels=["x", 1, "z"], long_texts="window"), [LONGER]),
}
SLOW = {
    "span": (
        lambda: QuestionAnswering(bert(text.ByteTokenizer(), SpanClassifier), text.ByteTokenizer(), 2),
        QUESTIONS,
    ),
    "token": (lambda: of_tokens(text.ByteTokenizer(), "window"), [LONGER]),
    "embedding": (lambda: Embedding(bert(text.ByteTokenizer()), text.ByteTokenizer()), [TEXTS[:5]]),
    "fill": (lambda: fill_mask(word_pieces(), top=3), MASKED),
    "fill, RoBERTa": (
        lambda: FillMask(*roberta(MaskedLanguageModel, num_segments=0)),
        [["a <mask> b", "<mask>  <mask>x☃", "c\u2003 <mask> d<mask> ."]],
    ),
    "text, RoBERTa, pairs": (classify_by_roberta, pairs_of(TEXTS[:5])),
    "text, BART, pairs": (classify_by_bart, pairs_of(TEXTS[:5])),
    "span, RoBERTa": (lambda: QuestionAnswering(*roberta(SpanClassifier), 2), QUESTIONS),
    "text, pairs": (lambda: classify(word_pieces()), pairs_of(TEXTS[:5])),
    "text, pairs, window": (lambda: classify(byte_pairs(), long_texts="window"), pairs_of(LINES)),
    "text, several labels": (lambda: classify(word_pieces(), problem_type=SEVERAL), [[*TEXTS, *LINES]]),
    "text, number": (lambda: classify(word_pieces(), 1, "window"), [[*LONGER, *LINES]]),
    "text, GPT": (lambda: classify_by_gpt(byte_pairs(), long_texts="window"), [[*LONGER, *LINES]]),
    "text, GPT, pairs": (lambda: classify_by_gpt(text.ByteTokenizer(), True), pairs_of(TEXTS[:3])),
    "text, GPT, numbers": (
        lambda: classify_by_gpt(text.ByteTokenizer(), False, "regression"),
        [TEXTS[:5]],
    ),
    "text, GPT, several labels": (
        lambda: classify_by_gpt(text.ByteTokenizer(), False, SEVERAL),
        [TEXTS[:5]],
    ),
    "token, WordPiece": (lambda: of_tokens(word_pieces()), [[*TEXTS[:3], *LINES]]),
    "span, window": (
        lambda: QuestionAnswering(
            bert(text.ByteTokenizer(), SpanClassifier), text.ByteTokenizer(), long_texts="window"
        ),
        [["a", "b", "ab"], [LONGER[-2], LONG, f"{LONG} {LONG} x"]],
    ),
    "embedding, window": (
        lambda: Embedding(bert(text.ByteTokenizer()), text.ByteTokenizer(), long_texts="window"),
        [LONGER],
    ),
    "embedding, first, window": (
        lambda: Embedding(
            bert(text.ByteTokenizer()), text.ByteTokenizer(), "first", normalize=False, long_texts="window"
        ),
        [LONGER],
    ),
    "embedding, truncate": (
        lambda: Embedding(
            bert(text.ByteTokenizer()),
            text.ByteTokenizer(),
            ("max", "last"),
            long_texts="truncate",
            max_length=9,
        ),
        [[*LONGER, "x" * 7]],
    ),
    "rerank": (lambda: rerank(), pairs_of([*TEXTS[:5], "abc " * 6])),
    "rerank, RoBERTa, truncate": (
        lambda: Reranking(*roberta(one_class), "linear", "truncate", max_length=20),
        pairs_of([*TEXTS, *LINES]),
    ),
    "embedding, prompts": (lambda: embed_with_prompts(), [TEXTS[:5]]),
    "embedding, pooler": (lambda: Embedding(bert(byte_pairs()), byte_pairs(), "pooler"), [LINES[2:]]),
    "fill, BPE": (
        lambda: fill_mask(
            text.BytePairTokenizer.train(
                LINES,
                280,
                special_tokens={**byte_pair_roles(), "mask": "<mask>"},
                special_tokens_in_text=True,
            ),
            mask="<mask>",
        ),
        [["a <mask> b", "<mask>"]],
    ),
}


def embed_with_prompts():
    head = [keras.layers.Dense(3, "tanh", kernel_initializer="normal")]
    model = bert(text.ByteTokenizer(), lambda encoder: SentenceEncoder(encoder, "mean", head))
    prompts = {"prompts": {"query": "é: ", "none": ""}, "default_prompt_name": "query"}
    return Embedding(model, text.ByteTokenizer(), **prompts)


def byte_pair_roles():
    return {"pad": "<pad>", "unknown": "<unk>", "start": "<s>", "end": "</s>"}


def result_of(function, *arguments, **options):
    """Return the value of a call, or the type and message of its error."""
    try:
        found = function(*arguments, **options)
    except (TypeError, ValueError) as error:
        return comparable(error)
    return [comparable(each) for each in found] if options.get("errors") == "return" else found


def comparable(value):
    if not isinstance(value, Exception):
        return value
    message = str(value)
    # Serving does not accept string tensors.
    return type(value), message.replace("a str, a list of str or a string tensor", "strings").split(" (of")[0]


INVALID = [
    ["a", LONG * 9, "b"],
    ["a", 5],
    ["b\ud800", "b"],
    ["a", "\u3000", "b"],
    [LONG, "a b", LONG + "x"],
    ["[MASK]", "a"],
]


def check_outputs_and_errors(served, pipeline, columns, assert_equal):
    for batch_size in (32, 2):
        assert_equal(served(*columns, batch_size=batch_size), pipeline(*columns, batch_size=batch_size))
    first, none = [column[0] for column in columns], [[] for _ in columns]
    assert_equal(served(*first), pipeline(*first))
    assert_equal(served(*none), pipeline(*none))
    for name in ("scores", "probabilities"):
        if hasattr(pipeline, name):
            calls = (getattr(each, name) for each in (served, pipeline))
            assert_equal(*(result_of(call, *columns) for call in calls))
    for rows in INVALID:
        for others in (rows, ["a"] * len(rows), ["a"] * 9)[: 2 * len(columns) - 1]:
            invalid = [rows, others][: len(columns)]
            assert_equal(
                result_of(served, *invalid, batch_size=2), result_of(pipeline, *invalid, batch_size=2)
            )
    assert_equal(result_of(served, *columns, batch_size=0), result_of(pipeline, *columns, batch_size=0))
    bad = [LONG * 9, 5, "b\ud800", "\u3000", "a b [MASK]"]
    rows = [[*columns[0], *bad, *bad], [*columns[-1], *["a b"] * len(bad), *bad]][: len(columns)]
    for options in ({}, {"truncate": True}):
        results = (result_of(each, *rows, errors="return", **options) for each in (served, pipeline))
        assert_equal(*results)
    for scores in ("scores", "probabilities"):
        if hasattr(pipeline, scores):
            calls = (getattr(each, scores) for each in (served, pipeline))
            assert_equal(*(result_of(call, *rows, errors="return", truncate=True) for call in calls))


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_outputs_and_errors_equal_the_pipeline(name, served_in_tensorflow, assert_equal):
    make, columns = {**QUICK, **SLOW}[name]
    pipeline = make()
    check_outputs_and_errors(served_in_tensorflow(pipeline), pipeline, columns, assert_equal)


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_server_and_saved_model_signatures_give_equal_outputs(name, served_in_tensorflow):
    make, columns = {**QUICK, **SLOW}[name]
    columns = [[*column, other] for column, other in zip(columns, (LONG * 9, "x"), strict=False)]
    pipeline = make()
    signatures = forward.signatures(served_in_tensorflow(pipeline), 4)
    assert set(signatures) == set(pipeline.signatures())
    for signature, graph in pipeline.signatures().items():
        inputs = [spec.name for spec in graph.inputs]
        assert [tensor.name for tensor in signatures[signature].inputs] == inputs
        if signature == "forward" or len(inputs) != len(columns):
            continue
        expected = graph.function(*map(tf.constant, columns))
        served = signatures[signature]
        rows = served.rows(dict(zip(inputs, columns, strict=True)), "{}[{}]".format)
        found = served.stack(
            [compute([job])[0] if isinstance(job, Job) else job for job in served.jobs(rows)]
        )
        assert set(found) == set(expected)
        for tensor in served.outputs:
            values = expected[tensor.name].numpy()
            assert tensor.dtype == expected[tensor.name].dtype.name
            if tensor.dtype == "float32":
                np.testing.assert_allclose(found[tensor.name], values, rtol=1e-4, atol=1e-4)
            else:
                strings = np.vectorize(lambda value: value.decode(), otypes=[object])
                np.testing.assert_array_equal(
                    found[tensor.name], strings(values) if tensor.dtype == "string" else values
                )


def test_prompts_equal_the_pipeline_prompts(served_in_tensorflow, assert_equal):
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
    signature = forward.signatures(served, 4)["embed"]
    rows = {
        "text": ["a", "b", "c", "d", b"\xff"],
        "prompt_name": ["query", "none", "", "other", ""],
        "prompt": ["", "z", "", "", ""],
    }
    for columns in (rows, {"text": rows["text"][:3]}, {"text": rows["text"][:3], "prompt_name": ["none"]}):
        jobs = signature.jobs(signature.rows(columns, "{}[{}]".format))
        found = signature.stack([compute([job])[0] if isinstance(job, Job) else job for job in jobs])
        graph = pipeline.signatures()["embed"]
        given = {name: tf.constant(values) for name, values in {**graph.defaults, **columns}.items()}
        expected = graph.function(*(given[tensor.name] for tensor in signature.inputs))
        np.testing.assert_allclose(found["embedding"], expected["embedding"], rtol=1e-4, atol=1e-4)
        assert found["error"].tolist() == [error.decode() for error in expected["error"].numpy()]


@pytest.mark.slow
def test_rankings_equal_the_pipeline(served_in_tensorflow, assert_equal):
    pipeline = rerank("refuse")
    served = served_in_tensorflow(pipeline)
    texts = ["b", "a b", "b", "", "c c"]
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
    pipeline = classify_by_roberta()
    tokenizer = pipeline.tokenizer
    one, other = (tokenizer.tokenize(each).numpy().tolist() for each in ("a b", "cc"))
    start, end = tokenizer.start_id, tokenizer.end_id
    inputs = pipeline.preprocess(tf.constant(["a b"]), tf.constant(["cc"])).inputs
    assert inputs.keys() == {"token_ids"}
    assert inputs["token_ids"].numpy().tolist() == [[start, *one, end, end, *other, end]]


def test_an_answer_begins_after_all_separators():
    model, tokenizer = roberta(SpanClassifier)
    pipeline, words = QuestionAnswering(model, tokenizer, 1), "abcdef"
    for question in ("a", "b c", "ab"):
        batch = pipeline.preprocess(tf.constant([question]), tf.constant([" ".join(words)]))
        ids = batch.inputs["token_ids"].numpy()[0]
        assert len(ids) == len(tokenizer.tokenize(question)) + 3 + len(words) + 1
        logits = model(ids[None]).numpy()[0].sum(axis=0)[-len(words) - 1 : -1]
        assert pipeline(question, " ".join(words)).text == words[logits.argmax()]


def test_a_mask_includes_the_preceding_space_if_the_tokenizer_requires_it():
    pipeline = FillMask(*roberta(MaskedLanguageModel))
    assert pipeline.mask == "<mask>"
    texts = tf.constant(["a<mask> b", "a <mask> b", "a \u3000\t<mask> b"])
    first, *others = pipeline.preprocess(texts).inputs["token_ids"].numpy().tolist()
    assert others == [first, first]


@pytest.mark.slow
def test_a_classifier_of_text_pairs_requires_both_texts(served_in_tensorflow, assert_equal):
    pipeline = SLOW["text, GPT, pairs"][0]()
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
    served = serving.TextToText(types.SimpleNamespace(**config), tokenizer, config)
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
