"""The protocol of text-embeddings-inference, by huggingface_hub's client where it has the route."""

import asyncio
import json

import numpy as np
import pytest
from huggingface_hub import InferenceClient
from served_exports import OFFSET, SOURCE, calling, json_call, listening, predict, run, write_export

import keras_transformer_serving as serving
from keras_transformer_serving.server import create_app

NAMES = ("embedder", "reranker", "classifier")
TEXTS = ["hello", "a", "the cat"]


@pytest.fixture(scope="module")
def exports(small, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tei")
    exports = {name: write_export(small, folder / name, name) for name in NAMES}
    exports["normalizing"] = write_export(small, folder / "normalizing", "embedder", normalize=True)
    exports["linear"] = write_export(small, folder / "linear", "reranker", activation="linear")
    changes = {"long_texts": "truncate", "default_prompt_name": "query"}
    exports["truncating"] = write_export(small, folder / "truncating", "embedder", **changes)
    return exports


@pytest.fixture(scope="module")
def answer(exports):
    with calling(create_app({name: exports[name] for name in ("embedder", "reranker")})) as answer:
        yield answer


def post(exports, *names, **options):
    """Return a function from a path and a body to a status and an answer, of a server of these exports."""

    def call(path, body):
        return run(exports, lambda app: json_call(app, "POST", path, body), *names, **options)

    return call


def normalized(vectors):
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def test_the_client_of_the_hub_gets_the_vectors_and_similarities_of_the_pipeline(exports):
    pipeline = serving.load(exports["embedder"])
    expected = normalized(pipeline(TEXTS))
    with listening(create_app({"embedder": exports["embedder"]})) as address:
        client = InferenceClient(model=f"{address}/embed")
        for text, vector in zip(TEXTS, expected, strict=True):
            np.testing.assert_allclose(client.feature_extraction(text), [vector], rtol=1e-6)
        raw = client.feature_extraction(
            TEXTS[0], normalize=False, truncate=True, truncation_direction="Right"
        )
        np.testing.assert_array_equal(raw, pipeline(TEXTS[:1]))
        with_prompt = client.feature_extraction(TEXTS[0], prompt_name="query")
        np.testing.assert_allclose(
            with_prompt, normalized(pipeline(TEXTS[:1], prompt_name="query")), rtol=1e-6
        )
        found = InferenceClient(model=f"{address}/similarity").sentence_similarity(TEXTS[0], TEXTS[1:])
        np.testing.assert_allclose(found, expected[1:] @ expected[0], rtol=1e-6)


def test_texts_are_embedded_and_truncated(exports):
    call = post(exports, "embedder", "classifier")
    pipeline = serving.load(exports["embedder"])
    status, found = call("/embed", {"inputs": TEXTS, "normalize": False})
    assert status == 200
    np.testing.assert_array_equal(np.float32(found), pipeline(TEXTS))
    long = "x" * 2 * SOURCE
    status, found = call("/embed", {"inputs": long})
    assert (status, found["error_type"]) == (413, "Validation")
    assert found["error"].startswith(f"`text` must have at most {SOURCE - 2} tokens")
    _, found = call("/embed", {"inputs": long, "truncate": True, "normalize": False})
    np.testing.assert_array_equal(np.float32(found), [pipeline(long, truncate=True)])


@pytest.mark.parametrize(("name", "default"), [("embedder", 413), ("truncating", 200)])
def test_the_export_says_whether_texts_are_truncated_if_a_request_does_not(exports, name, default):
    async def test(app):
        long, limit = "x" * 2 * SOURCE, SOURCE - 2
        for path, body in (("/embed", {}), ("/similarity", None)):
            statuses = []
            for options in ({}, {"truncate": None}, {"truncate": True}, {"truncate": False}):
                request = {"inputs": long, **options}
                if body is None:
                    inputs = {"source_sentence": "a", "sentences": [long]}
                    request = {"inputs": inputs, "parameters": options}
                statuses.append((await json_call(app, "POST", path, request))[0])
            assert statuses == [default, default, 200, 413]
        for options, errors in (
            ({}, default == 413),
            ({"truncate": False}, True),
            ({"truncate": True}, False),
        ):
            _, found = await predict(app, name, [long], **options)
            assert bool(found["predictions"][0]["error"]) == errors
        request = {"model": name, "input": ["ab", long] if default == 200 else ["ab"]}
        _, found = await json_call(app, "POST", "/v1/embeddings", request)
        assert found["usage"]["prompt_tokens"] == (len("q: ab") + limit if default == 200 else 2)

    run(exports, test, name)


@pytest.mark.parametrize("name", ["reranker", "linear"])
def test_texts_are_ranked(exports, name):
    call, pipeline = post(exports, name, "embedder"), serving.load(exports[name])
    scores = pipeline("hello", TEXTS).astype(np.float64)
    _, found = call("/rerank", {"query": "hello", "texts": TEXTS, "return_text": True})
    assert [each["index"] for each in found] == np.argsort(-scores, kind="stable").tolist()
    assert [each["text"] for each in found] == [TEXTS[each["index"]] for each in found]
    given = {each["index"]: each["score"] for each in found}
    # The graph of "linear" has the same scores, which are its logits.
    probabilities = scores if name == "reranker" else 1 / (1 + np.exp(-scores))
    np.testing.assert_allclose([given[i] for i in range(len(TEXTS))], probabilities, rtol=1e-6)
    _, raw = call("/rerank", {"query": "hello", "texts": TEXTS, "raw_scores": True})
    given = {each["index"]: each["score"] for each in raw}
    logits = np.log(scores / (1 - scores)) if name == "reranker" else scores
    np.testing.assert_allclose([given[i] for i in range(len(TEXTS))], logits, rtol=1e-5, atol=1e-5)


def test_texts_are_tokenized(exports):
    call = post(exports, "embedder")
    _, found = call("/tokenize", {"inputs": ["ab", ""]})
    ids = [[token["id"] for token in row] for row in found]
    assert ids == [[3, OFFSET + ord("a"), OFFSET + ord("b"), 1], [3, 1]]
    assert [token["special"] for token in found[0]] == [True, False, False, True]
    assert found[0][1] | {"text": ""} == {
        "id": ids[0][1], "text": "", "special": False, "start": None, "stop": None
    }  # fmt: skip
    _, bare = call("/tokenize", {"inputs": "ab", "add_special_tokens": False, "prompt_name": "query"})
    assert [token["id"] for token in bare[0]] == [OFFSET + ord(character) for character in "q: ab"]


def test_one_of_several_models_is_named(exports):
    call = post(exports, "embedder", "normalizing")
    status, found = call("/embed", {"inputs": "a"})
    assert (status, found["error"]) == (400, "`model` must be embedder or normalizing. Received: None")
    assert call("/embed", {"inputs": "a", "model": "embedder"})[0] == 200
    assert call("/embed", {"inputs": "a", "model": "reranker"})[0] == 404
    status, found = call("/rerank", {"query": "a", "texts": ["a"]})
    assert (status, found["error"]) == (
        404, "`model` must be one for this route, of which none is loaded. Received: None"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/embed", {}, "`inputs` must be a string or a list of strings, which are not empty, or token ids. "),
        (
            "/embed",
            {"inputs": "a", "truncation_direction": "up"},
            "`truncation_direction` must be right or left",
        ),
        ("/embed", {"inputs": "a", "prompt_name": "other"}, "`prompt_name` must be query. Received: 'other'"),
        (
            "/embed",
            {"inputs": "a", "dimensions": 4},
            "`dimensions` must be an integer in [1, 3]. Received: 4",
        ),
        ("/embed", {"inputs": "a", "input": "b"}, "The fields of a request must be of inputs, "),
        ("/embed", {"inputs": "\ud800"}, "`text` must be UTF-8"),
        ("/embed", ["a"], "The request must be a JSON object"),
        ("/similarity", {"inputs": "a"}, '`inputs` must be {"source_sentence"'),
        ("/similarity", {"inputs": {"sentences": ["a"]}}, "`inputs.source_sentence` must be a string"),
        ("/tokenize", {"inputs": ["\ud800"]}, "`inputs` must be UTF-8"),
    ],
)
def test_invalid_requests_are_rejected_by_field(answer, path, body, message):
    status, _, content = answer(path, {**body, "model": "embedder"} if path == "/tokenize" else body)
    found = json.loads(content)
    expected = {"`text` must be UTF-8": (422, "Tokenizer"), "`inputs` must be UTF-8": (422, "Tokenizer")}
    expected["The request must be a JSON object"] = (400, "Validation")
    assert (status, found["error_type"]) == expected.get(message, (422, "Validation"))
    assert found["error"].startswith(message)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/embed", {"inputs": []}),
        ("/embed", {"inputs": ""}),
        ("/embed", {"inputs": ["a", ""]}),
        ("/embed_all", {"inputs": []}),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": []}}),
        ("/similarity", {"inputs": {"source_sentence": "", "sentences": ["a"]}}),
        ("/rerank", {"query": "a", "texts": []}),
    ],
)
def test_empty_inputs_have_an_error_of_their_own(answer, path, body):
    status, _, content = answer(path, body)
    assert (status, json.loads(content)["error_type"]) == (400, "Empty")


def test_inputs_are_token_ids_and_decoded(exports):
    call = post(exports, "embedder")
    ids = [[OFFSET + byte for byte in text.encode()] for text in TEXTS]
    _, expected = call("/embed", {"inputs": TEXTS})
    assert call("/embed", {"inputs": ids}) == (200, expected)
    assert call("/embed", {"inputs": ids[0]}) == (200, expected[:1])
    assert call("/embed", {"inputs": [ids[0], TEXTS[1]]}) == (200, expected[:2])
    assert call("/embed", {"inputs": [10**6]})[0] == 422
    assert call("/decode", {"ids": ids}) == (200, TEXTS)
    assert call("/decode", {"ids": ids[0]}) == (200, TEXTS[:1])
    _, tokens = call("/tokenize", {"inputs": TEXTS})
    assert call("/decode", {"ids": [[token["id"] for token in row] for row in tokens]}) == (200, TEXTS)


def test_texts_are_truncated_to_their_last_tokens(exports):
    pipeline, call = serving.load(exports["embedder"]), post(exports, "embedder", "reranker")
    text = "".join(map(chr, range(ord("0"), ord("z"))))
    end = text[-(SOURCE - 2) :]
    body = {"inputs": text, "truncate": True, "normalize": False}
    for direction, kept in (("Left", end), ("Right", text[: SOURCE - 2])):
        _, found = call("/embed", {**body, "truncation_direction": direction})
        np.testing.assert_array_equal(np.float32(found), pipeline([kept]))
    assert call("/embed", {**body, "truncate": False, "truncation_direction": "left"})[0] == 413
    ranks = [
        call("/rerank", {"query": "abc", "texts": [kept], "truncate": True, "truncation_direction": "Left"})
        for kept in (text, end)
    ]
    assert ranks[0] == ranks[1]
    assert ranks[0] != call("/rerank", {"query": "abc", "texts": [text], "truncate": True})


def test_each_token_is_embedded(exports):
    call = post(exports, "embedder", "reranker")
    status, found = call("/embed_all", {"inputs": ["hello", "a"]})
    assert status == 200
    ids = [[3, *(OFFSET + byte for byte in text), 1] for text in (b"hello", b"a")]
    assert found == [[[id_ % 5, id_ % 7, id_ % 11] for id_ in row] for row in ids]
    assert call("/embed_all", {"inputs": "x" * 99})[0] == 413


def test_texts_are_classified(exports):
    pipeline, call = serving.load(exports["classifier"]), post(exports, "classifier")
    status, found = call("/predict", {"inputs": "hello"})
    assert status == 200
    scores = pipeline.probabilities("hello")
    order = np.argsort(-scores, kind="stable")
    assert [each["label"] for each in found] == [pipeline.config["labels"][index] for index in order]
    np.testing.assert_allclose([each["score"] for each in found], scores[order], rtol=1e-6)
    assert call("/predict", {"inputs": ["hello"]}) == (200, found)
    assert call("/predict", {"inputs": [["hello"], ["hello"]]}) == (200, [found, found])
    _, pair = call("/predict", {"inputs": ["hello", "you"]})
    scores = pipeline.probabilities("hello", "you")
    np.testing.assert_allclose([each["score"] for each in pair], sorted(scores)[::-1], rtol=1e-6)
    assert call("/predict", {"inputs": [["hello", "you"]]}) == (200, [pair])
    for wrong in ([["a"], ["a", "b"]], [["a", "b", "c"]], [[]], 1, {}):
        assert call("/predict", {"inputs": wrong})[0] in (400, 422)
    assert call("/predict", {"inputs": "a", "raw_scores": True})[0] == 422


def test_an_export_that_normalizes_has_no_other_vectors(exports):
    call = post(exports, "normalizing")
    assert call("/embed", {"inputs": "a"})[0] == 200
    status, found = call("/embed", {"inputs": "a", "normalize": False})
    assert (status, found["error"]) == (
        422, "`normalize` must be true, as the export normalizes. Received: False"
    )  # fmt: skip


def test_the_server_describes_itself(exports):
    async def test(app):
        _, document = await json_call(app, "GET", "/openapi.json")
        assert {"/embed", "/similarity", "/tokenize", "/info", "/health"} <= document["paths"].keys()
        assert "/rerank" not in document["paths"]
        _, found = await json_call(app, "GET", "/info")
        assert (found["model_id"], found["max_client_batch_size"]) == ("embedder", 256)
        assert (found["max_input_length"], found["model_dtype"]) == (SOURCE, "float32")
        assert found["model_type"] == {"embedding": {"pooling": "mean"}}
        required = {"max_concurrent_requests", "max_batch_tokens", "auto_truncate", "tokenization_workers"}
        assert required | {"version", "served_model_name"} <= found.keys()
        _, named = await json_call(
            app, "POST", "/v1/embeddings", {"model": "text-embeddings-inference", "input": "a"}
        )
        assert (named["model"], len(named["data"])) == ("embedder", 1)
        together = [json_call(app, "POST", "/embed", {"inputs": text}) for text in TEXTS]
        assert [status for status, _ in await asyncio.gather(*together)] == [200] * len(TEXTS)

    run(exports, test, "embedder")

    async def test_several(app):
        _, found = await json_call(app, "GET", "/info")
        assert (found["model_id"], found["served_model_name"]) == ("embedder", "embedder")
        _, found = await json_call(app, "GET", "/info?model=normalizing")
        assert (found["model_id"], found["served_model_name"]) == ("normalizing", "normalizing")
        status, found = await json_call(app, "GET", "/info?model=other")
        assert (status, found["error"]) == (404, "`model` must be embedder or normalizing. Received: 'other'")

    run(exports, test_several, "embedder", "normalizing")
