"""Exports of pipelines that run a model once equal their pipelines."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_transformer_serving as serving
from keras_transformer import export, text
from keras_transformer.export import ParityError
from keras_transformer.export.parity import outputs
from keras_transformer.models import (
    BERT,
    GAT,
    GPT,
    EncoderDecoderClassifier,
    GPTClassifier,
    MaskedLanguageModel,
    SentenceEncoder,
    SequenceClassifier,
    SpanClassifier,
    TokenClassifier,
    Transformer,
    ViT,
)
from keras_transformer.pipelines import (
    Embedding,
    FillMask,
    ImageClassification,
    NodeClassification,
    QuestionAnswering,
    Reranking,
    TextClassification,
    TokenClassification,
)
from keras_transformer.pipelines.base import DEFAULT
from keras_transformer.pipelines.forward import FORWARD
from keras_transformer_cli import commands
from keras_transformer_serving import files, parity

BYTES = text.ByteTokenizer()
SMALL = {"num_layers": 1, "num_heads": 2, "model_dim": 8, "hidden_dim": 16}
SEVERAL = "multi_label_classification"
LONG = "abcdefghijklmnopqrstuvwxyz"  # too long for every setting except "window"
TEXTS = ["a b", " ñ\u3000☃\n b\u00a0", "", "x", "ab cd ef", LONG]
PAIRS = [("a", "b c"), ("", " ñ \u2003☃"), ("ab c", "x"), ("a", LONG)]


def randomised(model):
    random = np.random.default_rng(2)
    for weight in model.trainable_weights:
        weight.assign(random.normal(size=weight.shape))
    return model


def bert(head=lambda encoder: encoder, tokenizer=BYTES, **options):
    """A random model with high dropout, which exports must not apply."""
    return randomised(head(BERT(tokenizer.vocabulary_size, **SMALL, max_length=20, dropout=0.5, **options)))


def word_pieces():
    return text.WordPieceTokenizer(
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefx", "##b", "##x", "."]
    )


def gpt_classifier(symmetric, problem_type=None):
    decoder = GPT(
        BYTES.vocabulary_size, **SMALL, max_length=20, dropout=0.5, pad_id=BYTES.pad_id, end_id=BYTES.end_id
    )
    return randomised(
        GPTClassifier(
            decoder.resize_token_embeddings(decoder.vocabulary_size + 3),
            3,
            symmetric=symmetric,
            problem_type=problem_type,
        )
    )


def bart_classifier():
    ids = {"pad_id": BYTES.pad_id, "start_id": BYTES.end_id, "end_id": BYTES.end_id}
    sizes = {**SMALL, "position_encoding": "learned", "max_length": 20, "dropout": 0.5}
    return randomised(EncoderDecoderClassifier(Transformer(BYTES.vocabulary_size, **sizes, **ids), 3))


def several_labels():
    """A classifier whose texts have different labels, and different numbers of labels."""
    model = bert(lambda encoder: SequenceClassifier(encoder, 3, "mean", problem_type=SEVERAL))
    pipeline = TextClassification(model, BYTES, ["x", "y", "z"], "window", 0.4)
    probabilities = np.clip(pipeline.scores(TEXTS), 1e-6, 1 - 1e-6)
    model.head.bias.assign_sub(np.log(probabilities / (1 - probabilities)).mean(0))
    return pipeline


def fill_mask(**options):
    tokenizer = word_pieces()
    return FillMask(bert(MaskedLanguageModel, tokenizer), tokenizer, **options)


def embed_with_prompts():
    head = [keras.layers.Dense(3, "tanh"), keras.layers.LayerNormalization(epsilon=1e-5)]
    poolings = ("last", "max", "mean_sqrt_length", "weighted_mean")
    model = bert(lambda encoder: SentenceEncoder(encoder, poolings, head), word_pieces())
    prompts = {"prompts": {"query": "a: ", "passage": "b "}, "default_prompt_name": "query"}
    return Embedding(model, word_pieces(), long_texts="truncate", max_length=8, **prompts)


# Each pipeline and its texts; only "window" accepts the long ones.
TEXT_PIPELINES = {
    "text": (
        lambda: TextClassification(bert(lambda e: SequenceClassifier(e, 3)), BYTES, ["x", "y", "z"]),
        TEXTS[:5],
    ),
    "text, window": (
        lambda: TextClassification(bert(lambda e: SequenceClassifier(e, 3)), BYTES, long_texts="window"),
        TEXTS,
    ),
    "text, one segment": (
        lambda: TextClassification(bert(lambda e: SequenceClassifier(e, 3, "mean"), num_segments=1), BYTES),
        TEXTS[:5],
    ),
    "text, GPT": (lambda: TextClassification(gpt_classifier(False), BYTES, long_texts="window"), TEXTS),
    "text, GPT, pairs": (lambda: TextClassification(gpt_classifier(True), BYTES), PAIRS[:3]),
    "text, BART": (lambda: TextClassification(bart_classifier(), BYTES, long_texts="window"), TEXTS),
    "text, several labels": (several_labels, TEXTS),
    "text, GPT, several labels": (
        lambda: TextClassification(gpt_classifier(False, SEVERAL), BYTES),
        TEXTS[:5],
    ),
    "text, number": (
        lambda: TextClassification(bert(lambda e: SequenceClassifier(e, 1)), BYTES, long_texts="window"),
        TEXTS,
    ),
    "text, GPT, numbers": (lambda: TextClassification(gpt_classifier(False, "regression"), BYTES), TEXTS[:5]),
    "token": (
        lambda: TokenClassification(bert(lambda e: TokenClassifier(e, 3)), BYTES, ["x", "y", "z"]),
        TEXTS[:5],
    ),
    "token, window": (
        lambda: TokenClassification(bert(lambda e: TokenClassifier(e, 3)), BYTES, long_texts="window"),
        [*TEXTS, "a b cc d e ff g h i j k l mmmmm n o p"],
    ),
    "span": (lambda: QuestionAnswering(bert(SpanClassifier), BYTES, max_answer_tokens=2), PAIRS[:3]),
    "span, window": (lambda: QuestionAnswering(bert(SpanClassifier), BYTES, long_texts="window"), PAIRS),
    "rerank": (lambda: Reranking(bert(lambda e: SequenceClassifier(e, 1)), BYTES, "linear"), PAIRS[:3]),
    "rerank, window": (
        lambda: Reranking(bert(lambda e: SequenceClassifier(e, 1)), BYTES, long_texts="window"),
        PAIRS,
    ),
    "embedding": (lambda: Embedding(bert(), BYTES), TEXTS[:5]),
    "embedding, window": (
        lambda: Embedding(bert(), BYTES, pooling="first", normalize=False, long_texts="window"),
        TEXTS,
    ),
    "embedding, prompts": (embed_with_prompts, TEXTS[:5]),
    "fill": (lambda: fill_mask(top=3), ["a [MASK] b", "[MASK][MASK]x☃", "c [MASK] d [MASK] ."]),
}
OTHERS = {
    "image": lambda: ImageClassification(
        randomised(ViT(8, 4, num_classes=3, **SMALL, dropout=0.5)), ["a", "b", "c"]
    ),
    "image, several labels": lambda: ImageClassification(
        randomised(ViT(8, 4, num_classes=3, **SMALL, problem_type=SEVERAL)), ["a", "b", "c"]
    ),
    "image, number": lambda: ImageClassification(randomised(ViT(8, (8, 2), num_classes=1, **SMALL))),
    "nodes": lambda: NodeClassification(randomised(GAT(5, 3, num_heads=(2, 1), head_dim=4, dropout=0.5))),
}


def run_of(pipeline):
    """Return a function that calls the signatures directly; the slow tests export them."""
    found = pipeline.signatures()

    def run(name, inputs):
        tensors = found[name].function(*(tf.constant(values) for values in inputs.values()))
        return {output: outputs._decoded(tensor.numpy()) for output, tensor in tensors.items()}

    return run


def check(pipeline, texts=None):
    examples = outputs.examples_of(pipeline, texts)
    report = parity.compare_tensors(examples, run_of(pipeline), 1e-4)
    assert set(report["graphs"]) == set(pipeline.signatures())
    return examples


@pytest.mark.slow_variants
@pytest.mark.parametrize("name", TEXT_PIPELINES)
def test_text_signatures_equal_the_pipeline(name):
    make, texts = TEXT_PIPELINES[name]
    pipeline = make()
    examples = check(pipeline, texts)
    assert {len(next(iter(one.inputs.values()))) for one in examples if one.graph == DEFAULT} == {
        1,
        len(texts),
    }


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name.startswith("image, ") else ()) for name in OTHERS],
)
def test_image_and_graph_signatures_equal_the_pipeline(name):
    check(OTHERS[name]())


@pytest.mark.slow
def test_exports_resize_images_as_the_pipeline_does():
    pipeline = OTHERS["image"]()
    pipeline.resize = True
    images = np.random.default_rng(0).uniform(0, 255, (2, 11, 6, 3)).astype("float32")
    found = run_of(pipeline)(DEFAULT, {"pixel_values": images})
    np.testing.assert_allclose(found["probabilities"], pipeline.probabilities(images), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_texts_without_a_mask_or_word_have_an_empty_row():
    pipeline = fill_mask(top=2)
    found = run_of(pipeline)(DEFAULT, {"text": np.array(["a [MASK]", "a"])})
    assert found["pieces"].shape == (2, 1, 2)
    assert found["pieces"][1].tolist() == [["", ""]]
    answerer = QuestionAnswering(bert(SpanClassifier), BYTES)
    found = run_of(answerer)(DEFAULT, {"question": np.array(["a", "a"]), "context": np.array([" ", "b"])})
    assert {name: values[0] for name, values in found.items()} == {
        "answer": "",
        "start": -1,
        "end": -1,
        "probability": 0,
        "error": "`context` must contain a word. Received: none",
    }
    assert found["answer"][1] == "b"


@pytest.mark.parametrize(
    ("name", "inputs", "message"),
    [
        ("text", {"text": ["a", LONG]}, "as `max_length` is 20"),
        ("span", {"question": ["a"], "context": [LONG]}, "as `max_length` is 20"),
        ("rerank", {"query": ["a"], "text": [LONG]}, "tokens each beside its `query`, as `max_length` is 20"),
        ("span, window", {"question": [LONG], "context": ["a"]}, "as `max_length` is 20"),
        (
            "image",
            {"pixel_values": np.full((1, 8, 8, 3), np.nan, "float32")},
            "must have values from 0.0 to 255.0",
        ),
        (
            "image",
            {"pixel_values": np.full((1, 8, 8, 3), 256, "float32")},
            "must have values from 0.0 to 255.0",
        ),
        (
            "nodes",
            {"nodes": np.ones((1, 2, 5), "float32"), "edges": np.array([[[0, 2]]])},
            "`edges` must connect nodes of the graph",
        ),
        (
            "nodes",
            {"nodes": np.full((1, 2, 5), np.inf, "float32"), "edges": np.array([[[0, 1]]])},
            "`nodes` must be finite",
        ),
    ],
)
def test_inputs_that_the_pipeline_rejects_have_an_error(name, inputs, message):
    pipeline = OTHERS[name]() if name in OTHERS else TEXT_PIPELINES[name][0]()
    found = run_of(pipeline)(DEFAULT, {key: np.array(values) for key, values in inputs.items()})
    assert any(message in str(error) for error in found["error"])


@pytest.mark.parametrize("name", ["text", "span"])
@pytest.mark.parametrize("texts", [[], [5], [["a", "b", "c"]], ["ab", ("a", "b")]], ids=repr)
def test_texts_of_another_dtype_are_rejected(name, texts):
    with pytest.raises(ValueError, match="`texts` must be (pairs of )?strings"):
        TEXT_PIPELINES[name][0]().example_inputs(texts)


@pytest.mark.slow
def test_texts_are_rejected_for_graphs_without_text_inputs(tmp_path):
    for function in (export.saved_model, export.onnx):
        with pytest.raises(ValueError, match="`texts` must be None for a ImageClassification"):
            function(OTHERS["image"](), tmp_path / "it", texts=["a"])
    with pytest.raises(ValueError, match="`texts` must be None for a TextClassification"):
        export.onnx(TEXT_PIPELINES["text"][0](), tmp_path / "it", texts=["a"])


EXAMPLE = outputs.Example(
    "graph", {"x": np.ones((2, 1))}, {"y": np.array([1.0, 200.0], "float32"), "label": np.array(["ñ", ""])}
)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"y": np.array([1.0003, 200.0], "float32")}, "`graph` must have the model's y"),
        ({"y": np.array([1.0, np.nan], "float32")}, "`graph` must have the model's y"),
        ({"y": np.array([[1.0, 200.0]], "float32")}, r"shape \(1, 2\)"),
        ({"label": np.array(["n", ""])}, "`graph` must have the model's label"),
        (
            {"more": np.zeros(1)},
            r"must have the outputs \['label', 'y'\]. Received: \['label', 'more', 'y'\]",
        ),
    ],
)
def test_a_different_output_raises_a_parity_error(changed, message):
    with pytest.raises(ParityError, match=message):
        parity.compare_tensors([EXAMPLE], lambda *_: {**EXAMPLE.outputs, **changed}, 1e-4)


def test_small_differences_are_reported():
    near = {**EXAMPLE.outputs, "y": np.array([1.0, 200.01], "float32")}
    report = parity.compare_tensors([EXAMPLE, EXAMPLE], lambda *_: near, 1e-4)
    assert report["graphs"]["graph"]["rows"] == 4
    assert report["graphs"]["graph"]["largest_difference"] == pytest.approx(0.01, rel=0.01)


def test_examples_round_trip(tmp_path):
    examples = [EXAMPLE, outputs.Example("other", {"text": np.array(["a", "☃ b"])}, {"n": np.array([1, -1])})]
    outputs.save(tmp_path / "it.npz", examples)
    again = parity.load_examples(tmp_path / "it.npz")
    assert [one.graph for one in again] == ["graph", "other"]
    for one, other in zip(examples, again, strict=True):
        for side in ("inputs", "outputs"):
            expected, found = getattr(one, side), getattr(other, side)
            assert set(expected) == set(found)
            for name in expected:
                np.testing.assert_array_equal(expected[name], found[name])
                assert expected[name].dtype == found[name].dtype


@pytest.fixture(scope="module")
def classifier():
    return OTHERS["image"]()


@pytest.fixture(scope="module")
def folder(classifier, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exports") / "digits"
    export.saved_model(classifier, folder)
    export.onnx(classifier, folder)
    return folder


def everything(folder):
    return {path: path.stat().st_mtime_ns for path in sorted(folder.rglob("*"))}


@pytest.mark.slow
def test_an_export_verifies_against_itself_and_its_pipeline(folder, classifier):
    results = export.verify(folder)
    assert set(results) == {"saved_model/digits/1", "onnx"}
    assert set(results["onnx"]["graphs"]) == {"forward"}
    assert set(results["saved_model/digits/1"]["graphs"]) == {"serving_default", "forward"}
    assert export.verify(folder, classifier) == results
    with pytest.raises(ParityError, match="`forward` must have the model's logits"):
        export.verify(folder, ImageClassification(ViT(8, 4, num_classes=3, **SMALL), ["a", "b", "c"]))


def test_a_graph_with_different_weights_fails_verification(folder, tmp_path):
    examples = parity.load_examples(folder / "onnx" / "examples.npz")
    examples[0].outputs["logits"][0, 0] += 0.01
    with pytest.raises(ParityError, match="logits"):
        parity.compare_tensors(examples, parity.onnx_runner(serving.Bundle(folder)), 1e-4)


@pytest.mark.slow
def test_exports_are_not_overwritten_and_failed_exports_leave_no_files(
    folder, classifier, tmp_path, monkeypatch
):
    before = everything(folder)
    for function in (export.saved_model, export.onnx):
        with pytest.raises(FileExistsError):
            function(classifier, folder)
    monkeypatch.setattr(outputs, "save", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        export.onnx(classifier, tmp_path / "new")
    assert everything(folder) == before
    assert everything(tmp_path) == {}


def test_an_export_is_served_without_tensorflow(folder, classifier):
    served = serving.load(folder)
    images = np.random.default_rng(3).integers(0, 256, (4, 8, 8, 3))
    images[0, 0, 0] = 0, 255, 255
    found = served.run(pixel_values=images)["logits"]
    assert [served.config["labels"][i] for i in found.argmax(-1)] == classifier(images.astype("uint8"))
    assert served.answers(pixel_values=images) == classifier(images.astype("uint8"))
    with pytest.raises(
        ValueError, match="`pixel_values` must be from 0.0 to 255.0. Received: from 0.0 to 510.0"
    ):
        served.run(pixel_values=2 * images * (images == 255))
    assert "tokenizer_file" not in served.config
    assert not (folder / "tokenizer").exists()


@pytest.mark.slow
def test_the_command_line_verifies_an_export_and_rejects_generation(folder, capsys):
    assert commands.main(["verify", str(folder)]) == 0
    assert json.loads(capsys.readouterr().out) == export.verify(folder)
    assert commands.main(["generate", str(folder), "a"]) == 2
    assert "must be a generating pipeline" in capsys.readouterr().err


def test_values_other_than_pipelines_are_rejected(tmp_path):
    for function in (export.saved_model, export.onnx):
        with pytest.raises(
            ValueError, match="`pipeline` must be a pipeline of keras_transformer.pipelines. Received: a ViT"
        ):
            function(OTHERS["image"]().model, tmp_path / "it")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["text, several labels", "text, number"])
def test_multi_label_classifiers_and_regressions_are_exported_and_served(name, tmp_path):
    pipeline, texts = TEXT_PIPELINES[name][0](), TEXTS[:5]
    report = files.read_json(export.onnx(pipeline, tmp_path / "it").parent / "parity.json")
    assert report["onnx"]["graphs"]["forward"]["largest_difference"] < 1e-4
    served = serving.load(tmp_path / "it")
    assert served.config["problem_type"] == pipeline.problem_type
    batch = {name: ids.numpy() for name, ids in pipeline.preprocess(tf.constant(texts)).inputs.items()}
    inputs = {"input_ids": batch["token_ids"], "token_type_ids": batch["segment_ids"]}
    found = served.run(**inputs)
    regression = pipeline.problem_type == "regression"
    scores = found["logits" if regression else "probabilities"]
    np.testing.assert_allclose(scores, pipeline.scores(texts), rtol=1e-4, atol=1e-4)
    assert set(found) == ({"logits"} if regression else {"logits", "probabilities"})
    if regression:
        np.testing.assert_allclose(served.answers(**inputs), pipeline(texts), rtol=1e-4, atol=1e-4)
    else:
        assert served.answers(**inputs) == pipeline(texts)


@pytest.mark.slow
def test_multiple_labels_are_padded_and_numbers_are_float32():
    found = run_of(TEXT_PIPELINES["text, several labels"][0]())(DEFAULT, {"text": np.array(TEXTS)})
    answers = TEXT_PIPELINES["text, several labels"][0]()(TEXTS)
    assert [[label for label in row if label] for row in found["labels"].tolist()] == answers
    assert found["labels"].shape == (len(TEXTS), max(map(len, answers)))
    assert len(set(map(len, answers))) > 1
    found = run_of(TEXT_PIPELINES["text, number"][0]())(DEFAULT, {"text": np.array(TEXTS)})
    assert {name: (values.shape, values.dtype) for name, values in found.items()} == {
        "values": ((len(TEXTS), 1), "float32"),
        "error": ((len(TEXTS),), found["error"].dtype),
    }


def test_only_a_classifier_may_have_several_candidate_answers():
    model = object.__new__(serving.Model)
    model.config = {"pipeline": "Embedding"}
    with pytest.raises(ValueError, match="`answers` needs an export of a classifier .*Received: Embedding"):
        model.answers(input_ids=np.zeros((1, 2)))


@pytest.mark.slow
@pytest.mark.parametrize("name", [*TEXT_PIPELINES, "image, several labels", "image, number", "nodes"])
def test_every_pipeline_is_exported_verified_and_loaded(
    name, tmp_path, served_without_tensorflow, assert_equal
):
    pipeline = OTHERS[name]() if name in OTHERS else TEXT_PIPELINES[name][0]()
    folder = tmp_path / "it"
    path = export.saved_model(pipeline, folder)
    export.onnx(pipeline, folder)
    results = export.verify(folder)
    assert results == export.verify(folder, pipeline)
    assert all(
        graph["largest_difference"] < 1e-4 for part in results.values() for graph in part["graphs"].values()
    )
    served = serving.load(folder)
    example = next(each for each in outputs.examples_of(pipeline) if each.graph == FORWARD)
    found = served.run(**example.inputs)
    for output, values in example.outputs.items():
        np.testing.assert_allclose(found[output], values, rtol=1e-4, atol=1e-4)
    if name in OTHERS:
        with pytest.raises(ValueError, match="texts are for the export's SavedModel"):
            served(["a"])
    else:
        texts = TEXT_PIPELINES[name][1]
        columns = list(zip(*texts, strict=True)) if isinstance(texts[0], tuple) else [texts]
        expected = json.dumps(pipeline(*columns), default=np.ndarray.tolist)
        assert_equal(served_without_tensorflow(folder, *columns), json.loads(expected))
    loaded = tf.saved_model.load(str(path))
    if name in ("text", "token", "embedding"):
        found = loaded.signatures["serving_default"](text=tf.constant(["a", LONG]))
        assert [b"as `max_length` is 20" in error for error in found["error"].numpy()] == [
            False,
            True,
        ]
    twice = [
        loaded.signatures["forward"](**{key: tf.constant(values) for key, values in example.inputs.items()})
        for _ in range(2)
    ]
    keras.tree.map_structure(np.testing.assert_array_equal, *twice)  # no dropout
    (path / "examples.npz").write_bytes((path / "examples.npz").read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"examples\.npz is damaged"):
        export.verify(folder)
    assert files.read_json(folder / "config.json")["pipeline"] == type(pipeline).__name__
