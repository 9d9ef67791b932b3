"""Words and answers equal those of `transformers`, from folders that `benchmarks/parity/words.py` writes."""

import functools
import itertools
import json
import pathlib
import types

import numpy as np
import pytest
import tensorflow as tf

import keras_transformer_serving as serving
from keras_transformer import data, pipelines, text
from keras_transformer.export.bundle_writer import config_of

FOLDERS = sorted((pathlib.Path(__file__).parent / "words").iterdir())
TAGGERS, ANSWERERS = (
    [folder for folder in FOLDERS if folder.name.endswith(task)]
    for task in ("TokenClassification", "QuestionAnswering")
)
HARD = [
    "",
    "   ",
    "a\u2260b \r\n c\u200bd",
    "e\u0301\u0323 x\u0301 \u1112\u1161\u11ab",
    "[MASK] x</s>y  <s> ",
    "İſ ﬁ ½",
]


def served_by(pipeline):
    """Return the pipeline of the library without TensorFlow, with the same model."""
    config = config_of(pipeline)
    tokenizer = serving.tokenizer_of(pipeline.tokenizer.model_bytes, config)
    engine = types.SimpleNamespace(map=lambda function, batches: map(function, batches))

    class Served(getattr(serving, type(pipeline).__name__)):
        inputs = ("input_ids", *(["token_type_ids"] if config.get("num_segments", 1) > 1 else []))

        def __init__(self):
            self.engine, self.config, self.tokenizer = engine, config, tokenizer

        def run(self, input_ids, token_type_ids=None):
            inputs = {"token_ids": input_ids}
            inputs |= {} if token_type_ids is None else {"segment_ids": token_type_ids}
            return {name: values.numpy() for name, values in pipeline.forward(inputs).items()}

    return Served()


def quick_but(folders, *slow):
    """Return parameters of folders; those whose names start with one of `slow` are slow."""
    return [
        pytest.param(folder, marks=[pytest.mark.slow] if folder.name.startswith(slow) else [], id=folder.name)
        for folder in folders
    ]


@functools.cache
def read(folder):
    """Return the pipeline of a folder, which the tests share and do not change, and what is expected."""
    return pipelines.from_hugging_face(folder), json.loads((folder / "expected.json").read_text())


# The tokenizer of DistilBERT is one of words, as the Chinese one, and that of RoBERTa answers in the next test; with a
# prefix it differs in ids, which `test_words_have_the_ids_of_the_text_in_both_runtimes` compares.
@pytest.mark.parametrize("folder", quick_but(TAGGERS, "DistilBert", "Roberta"))
def test_labels_of_words_equal_transformers(folder):
    pipeline, expected = read(folder)
    texts = [row["text"] for row in expected["rows"]]
    batch = pipeline.preprocess(tf.constant(texts))
    for ids, row in zip(batch.inputs["token_ids"].numpy().tolist(), expected["rows"], strict=True):
        assert ids[: len(row["ids"])] == row["ids"]
    for answers in (pipeline(texts), served_by(pipeline)(texts)):
        for row, answer in zip(expected["rows"], answers, strict=True):
            found = [(word.start, word.end, word.label) for word in answer]
            assert found == [tuple(word[:3]) for word in row["words"]]
            assert [word.word for word in answer] == [row["text"][start:end] for start, end, _ in found]
            scores = [word.probability for word in answer]
            np.testing.assert_allclose(scores, [word[3] for word in row["words"]], rtol=1e-4)


GROUPED = [
    folder for name in ("DistilBert", "BertChinese") for folder in TAGGERS if folder.name.startswith(name)
]
GROUPINGS = [
    *itertools.product(GROUPED, ("average", "max", "first")),
    *((each, "simple") for each in TAGGERS),
]
# One of words, and "simple" of words, bytes and unigrams.
QUICK = {
    ("DistilBert", "average"),
    ("DistilBert", "simple"),
    ("ModernBert", "simple"),
    ("XLMRoberta", "simple"),
}


@pytest.mark.parametrize(
    ("folder", "aggregation"),
    [
        pytest.param(
            *grouping,
            marks=[]
            if (grouping[0].name.removesuffix("ForTokenClassification"), grouping[1]) in QUICK
            else [pytest.mark.slow],
            id=f"{grouping[0].name}-{grouping[1]}",
        )
        for grouping in GROUPINGS
    ],
)
def test_entities_equal_transformers(folder, aggregation):
    expected = json.loads((folder / "expected.json").read_text())
    settings = {"labels": expected["entities"]["labels"], "aggregation": aggregation}
    pipeline = pipelines.from_hugging_face(folder, **settings)
    texts = expected["entities"]["texts"]
    for answers in (pipeline(texts), served_by(pipeline)(texts)):
        for text_, answer, rows in zip(
            texts, answers, expected["entities"]["rows"][aggregation], strict=True
        ):
            assert [(each.start, each.end, each.label) for each in answer] == [tuple(row[:3]) for row in rows]
            assert [each.word for each in answer] == [text_[each.start : each.end] for each in answer]
            np.testing.assert_allclose(
                [each.probability for each in answer], [row[3] for row in rows], rtol=1e-4
            )
    many = pipeline([*texts, "", " "])
    assert many[-2:] == [[], []]


def test_labels_without_prefixes_join_and_tags_are_numbers_or_names():
    folder = GROUPED[1]
    labels = [7, "I-x", "O"]
    words, entities = (
        pipelines.from_hugging_face(folder, labels=labels, aggregation=aggregation)("\u6211\u662f a b c d e")
        for aggregation in (None, "first")
    )
    expected = []
    for label, group in itertools.groupby(words, key=lambda word: word.label):
        group = list(group)
        if label != "O":
            tag = "x" if label == "I-x" else label
            mean = np.mean([word.probability for word in group])
            expected.append((tag, group[0].start, group[-1].end, pytest.approx(mean, rel=1e-5)))
    assert [(each.label, each.start, each.end, each.probability) for each in entities] == expected
    with pytest.raises(ValueError, match="must be one of .*'average', 'max'.*Received: aggregation='last'"):
        pipelines.from_hugging_face(folder, aggregation="last")
    with pytest.raises(ValueError, match="`words` must be 'tokenizer' where aggregation='simple'"):
        pipelines.from_hugging_face(folder, aggregation="simple", words="white_space")


# The taggers have the same tokenizers: quick tests answer with one of words and one of bytes.
@pytest.mark.parametrize(
    "folder", quick_but(ANSWERERS, "DistilBert", "ModernBert", "RobertaWithPrefix", "XLMRoberta")
)
def test_answers_equal_transformers(folder):
    pipeline, expected = read(folder)
    questions, contexts = zip(*((row["question"], row["text"]) for row in expected["rows"]), strict=True)
    batch = pipeline.preprocess(tf.constant(questions), tf.constant(contexts))
    for ids, row in zip(batch.inputs["token_ids"].numpy().tolist(), expected["rows"], strict=True):
        assert ids[: len(row["ids"])] == row["ids"]
    places = [(row["start"], row["end"]) for row in expected["rows"]]
    for answers in (pipeline(questions, contexts), served_by(pipeline)(questions, contexts)):
        assert [(answer.start, answer.end) for answer in answers] == places
        texts = [context[start:end] for context, (start, end) in zip(contexts, places, strict=True)]
        assert [answer.text for answer in answers] == texts


@pytest.mark.slow_variants
@pytest.mark.parametrize("doc_stride", [5, 20])
@pytest.mark.parametrize("name", ["BertChinese", "Roberta"])
def test_answers_to_long_contexts_and_no_answers_equal_transformers(name, doc_stride):
    (folder,) = (folder for folder in ANSWERERS if folder.name == f"{name}ForQuestionAnswering")
    rows = json.loads((folder / "long_contexts.json").read_text())
    settings = {"max_length": 48, "max_answer_tokens": 6, "long_texts": "window"}
    pipeline = pipelines.from_hugging_face(folder, **settings, doc_stride=doc_stride, no_answer_threshold=0.0)
    served = pipeline.served()
    for no_answer in (True, False):
        of_option = [row for row in rows if row[2] == doc_stride and row[3] == no_answer]
        questions, contexts = ([row[place] for row in of_option] for place in (0, 1))
        option = {} if no_answer else {"no_answer_threshold": 1e6}
        for answerer in (pipeline, served):
            answers = answerer(questions, contexts, **option)
            assert [list(answer[:3]) for answer in answers] == [row[4:7] for row in of_option]
            scores = [answer.probability for answer in answers]
            np.testing.assert_allclose(scores, [row[7] for row in of_option], rtol=1e-4)
            assert [answer.no_answer_score > 0 for answer in answers if no_answer] == [
                row[4] == "" for row in of_option if no_answer
            ]
        texts = [tf.constant(questions), tf.constant(contexts), *map(tf.constant, option.values())]
        signature = pipeline.serve(*texts)
        assert [each.decode() for each in signature["answer"].numpy()] == [row[4] for row in of_option]


@pytest.mark.parametrize("folder", TAGGERS, ids=lambda folder: folder.name)
def test_training_data_has_the_ids_of_words_that_are_split(folder):
    pipeline, expected = read(folder)
    if "sentences" not in expected:
        pytest.skip("words that are split need add_prefix_space")
    sentences = expected["sentences"]
    tags = [list(range(len(words))) for words in sentences]
    batches = data.tagging(sentences, tags, pipeline.tokenizer, 1, max_length=80, shuffle=False)
    rows = {}
    for inputs, labels in batches:
        ids, classes = inputs["token_ids"].numpy()[0], labels.numpy()[0]
        assert classes[classes >= 0].tolist() in tags
        rows[int(classes.max())] = ids[ids != pipeline.tokenizer.pad_id].tolist()
    assert [rows[len(words) - 1] for words in sentences] == expected["ids_of_sentences"]


@pytest.mark.parametrize("folder", TAGGERS, ids=lambda folder: folder.name)
def test_words_have_the_ids_of_the_text_in_both_runtimes(folder):
    pipeline, expected = read(folder)
    texts = [*(row["text"] for row in expected["rows"]), *HARD]
    tokenizer, served = pipeline.tokenizer, served_by(pipeline).tokenizer
    words = tokenizer.tokenize_words(texts)
    assert words.ids.merge_dims(1, 2).to_list() == tokenizer.tokenize(texts).to_list()
    columns = zip(*(values.to_list() for values in words), strict=True)
    found = [[word for word in zip(*of_text, strict=True) if word[0]] for of_text in columns]
    assert found == [[tuple(word) for word in served.tokenize_words(text)] for text in texts]
    tokens = tokenizer.tokenize_words(texts, each_token=True)
    columns = zip(*(values.to_list() for values in tokens), strict=True)
    found = [[*zip(*of_text, strict=True)] for of_text in columns]
    assert found == [[tuple(word) for word in served.tokenize_words(text, each_token=True)] for text in texts]
    assert tokens.ids.merge_dims(1, 2).to_list() == tokenizer.tokenize(texts).to_list()


def test_pipelines_of_before_have_words_of_white_space(tmp_path):
    pipeline, _ = read(TAGGERS[0])
    pipeline.save(tmp_path / "saved")
    path = tmp_path / "saved" / "settings.json"
    settings = json.loads(path.read_text())
    assert settings.pop("words") == "tokenizer"
    path.write_text(json.dumps(settings))
    before = pipelines.load(tmp_path / "saved")
    text = "中文句子。Ada住在北京, (ok)"
    expected = ["中文句子。Ada住在北京,", "(ok)"]
    assert [word.word for word in before(text)] == expected
    old = served_by(before)
    del old.config["words"]
    assert [word.word for word in old(text)] == expected


@pytest.fixture(scope="module", params=["nmt_nfkc", "identity"])
def sentence_piece(request):
    lines = ["Paris and Paris", "said Ada (Lovelace), / ! .", "a b c d e f g h"] * 3
    return text.SentencePieceTokenizer.train(lines, 300, normalization=request.param)


PUNCTUATED = [
    ("from Paris.", ["from", "Paris", "."]),
    ("(Paris), Ada!", ["(", "Paris", ")", ",", "Ada", "!"]),
    ("Paris/Ada", ["Paris", "/", "Ada"]),
    ("", []),
    # Bytes of letters, and letters that NFKC changes.
    ("Łódź. (cafe\u0301).", ["Łódź", ".", "(", "cafe\u0301", ")", "."]),
    ("½.", ["½", "."]),
]


@pytest.mark.slow_variants
def test_punctuation_is_apart_from_words_in_both_runtimes(sentence_piece, tmp_path):
    texts, expected = zip(*PUNCTUATED, strict=True)
    served = serving.tokenizer_of(sentence_piece.model_bytes, {"tokenizer_class": "SentencePieceTokenizer"})
    of_texts = [[word for word in served.tokenize_words(line) if word.ids] for line in texts]
    assert [
        [line[word.start : word.end] for word in words] for line, words in zip(texts, of_texts, strict=True)
    ] == [*expected]
    columns = zip(*(values.to_list() for values in sentence_piece.tokenize_words(texts)), strict=True)
    assert [[*zip(*row, strict=True)] for row in columns] == [[*map(tuple, words)] for words in of_texts]
    ids = [[id_ for word in words for id_ in word.ids] for words in of_texts]
    assert ids == sentence_piece.tokenize(texts).to_list()

    saved = tf.Module()
    saved.words = tf.function(sentence_piece.tokenize_words, [tf.TensorSpec([None], tf.string)])
    saved.tokenizer = sentence_piece
    tf.saved_model.save(saved, tmp_path / "saved")
    loaded = tf.saved_model.load(tmp_path / "saved").words(tf.constant(texts))
    assert loaded.starts.to_list() == [[word.start for word in words] for words in of_texts]


def test_an_answer_before_punctuation_is_labelled_without_it(sentence_piece):
    context = "Ada said Paris."
    _, labels = next(iter(data.questions(["who"], [context], [("Paris", 9)], sentence_piece, 1)))
    ids = sentence_piece.tokenize([context, "Ada said"]).to_list()
    before = len(sentence_piece.tokenize("who")) + 2
    assert labels.numpy().tolist() == [[before + len(ids[1]), before + len(ids[0]) - 2]]
