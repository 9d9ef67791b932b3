"""An invalid row fails only its own row, in Python and over HTTP; long texts are truncated on request."""

import json

import numpy as np
import pytest
from served_exports import (
    INFER,
    OFFSET,
    PREDICT,
    SOURCE,
    STEPS,
    call,
    json_call,
    predict,
    run,
    tensor,
    write_export,
)

import keras_transformer_serving as serving
from keras_transformer_serving.pipelines.texts import first_length
from keras_transformer_serving.server import Limits

LONG = "x" * (SOURCE + 1)
BAD = [None, 3, ["a"], "a\ud800", float("nan"), b"\xff", LONG]
NAMES = ("classifier", "tagger", "generator", "copier", "sampler")


@pytest.fixture(scope="module")
def loaded(exports, small, tmp_path_factory):
    tagger = write_export(small, tmp_path_factory.mktemp("tagger") / "tagger", "tagger")
    return {name: serving.load({**exports, "tagger": tagger}[name]) for name in NAMES}


def error_of(function, *arguments):
    with pytest.raises((TypeError, ValueError)) as caught:
        function(*arguments)
    return type(caught.value), str(caught.value)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("batch_size", [1, 3, 32])
def test_an_invalid_text_fails_only_its_own_row(loaded, name, batch_size):
    pipeline = loaded[name]
    bad = [*BAD, ""] if name in ("generator", "sampler") else BAD
    rows = ["hello", *bad, "the cat"]
    found = pipeline(rows, batch_size=batch_size, errors="return")
    good = pipeline(["hello", *["a"] * len(bad), "the cat"], batch_size=batch_size)
    assert [found[0], found[-1]] == [good[0], good[-1]]
    for index, text in enumerate(bad, 1):
        assert (type(found[index]), str(found[index])) == error_of(pipeline, [*["a"] * index, text])
    assert all(isinstance(each, Exception) for each in pipeline(bad, batch_size=batch_size, errors="return"))
    one = pipeline(LONG, errors="return")
    assert (type(one), str(one)) == error_of(pipeline, LONG)
    assert pipeline("hello", errors="return") == good[0]
    assert pipeline([], errors="return") == []
    assert pipeline([b"hello"]) == good[:1]
    for value in (None, 3, {}, {"text": "a"}, b"a", np.array("a")):
        # A generator takes conversations, which are mappings.
        message = (
            r"^`texts?` must (be a list of strings\.|have \"messages\" in each conversation\.) Received: "
        )
        with pytest.raises((TypeError, ValueError), match=message):
            pipeline(value)


@pytest.mark.parametrize("name", ["classifier", "generator", "sampler", "copier"])
def test_workers_change_no_answer(exports, loaded, name):
    pipeline = serving.load(exports[name], workers=3)
    rows = [*["hello", "the cat", "a"] * 5, *BAD]
    expected = loaded[name](rows, batch_size=2, errors="return")
    found = pipeline(rows, batch_size=2, errors="return")
    assert [*map(str, found)] == [*map(str, expected)]
    assert error_of(pipeline, rows) == error_of(loaded[name], rows)


def test_an_invalid_text_of_a_pair_fails_only_its_pair(loaded):
    classifier = loaded["classifier"]
    found = classifier.scores(["a", None, "b", "c"], ["d", "e", LONG, "f"], errors="return")
    np.testing.assert_array_equal([found[0], found[3]], classifier.scores(["a", "c"], ["d", "f"]))
    assert [(type(each), "[" in str(each)) for each in found[1:3]] == [(TypeError, True), (ValueError, True)]
    with pytest.raises(ValueError, match="must have the same length"):
        classifier(["a", None], ["b"], errors="return")


def test_generate_returns_an_error_per_row(loaded):
    for name in ("generator", "copier"):
        texts = ["hello", LONG, [OFFSET, OFFSET + 1], None, [-1]]
        found = loaded[name].generate(texts, errors="return", max_new_tokens=[3, 4, 5, 6, 7])
        assert [type(each) for each in found["error"]] == [
            type(None), ValueError, type(None), TypeError, ValueError,
        ]  # fmt: skip
        good = loaded[name].generate([texts[0], texts[2]], max_new_tokens=[3, 5])
        for output, values in good.items():
            expected = found[output][[0, 2]]
            np.testing.assert_array_equal(expected[:, :5] if output == "ids" else expected, values)
        assert not found["lengths"][[1, 3, 4]].any()
        assert "error" not in good


def test_invalid_options_raise_errors(loaded):
    for name, pipeline in loaded.items():
        with pytest.raises(ValueError, match="`errors` must be 'raise' or 'return'. Received: errors='skip'"):
            pipeline(["a"], errors="skip")
        with pytest.raises(TypeError, match="`truncate` must be True or False. Received: truncate='no'"):
            pipeline(["a"], truncate="no")
        if name in ("generator", "copier", "sampler"):
            for texts in (["a", None], ["a", "b"]):
                with pytest.raises(ValueError, match="one for each of 2 texts"):
                    pipeline(texts, errors="return", max_new_tokens=[1, 2, 3])


def test_long_texts_are_truncated_on_request(loaded, small, tmp_path):
    text = "the quick brown fox jumps over the lazy dogs"
    assert len(text) > SOURCE
    classifier, tagger, generator, copier = (
        loaded[name] for name in ("classifier", "tagger", "generator", "copier")
    )
    assert classifier([text, "a"], truncate=True) == classifier([text[: SOURCE - 2], "a"])
    # 38 letters: the text and two letters of the next word.
    tagged = tagger(f"{text} zebra end", truncate=True)
    assert [word[:2] for word in tagged] == [word[:2] for word in tagger(f"{text} ze")[:-1]] + [
        ("zebra", "word")
    ]
    # A prompt keeps its last tokens; a source the first tokens and the end token.
    assert generator([text, "a"], truncate=True) == generator([text[-SOURCE:], "a"])
    assert copier([text, "a"], truncate=True) == copier([text[: SOURCE - 1], "a"])
    ids = generator.tokenizer.tokenize(text)
    assert generator.encode([ids], truncate=True) == [ids[-SOURCE:]]
    np.testing.assert_array_equal(
        generator.generate([ids], truncate=True)["ids"], generator.generate([text], truncate=True)["ids"]
    )
    started = serving.load(write_export(small, tmp_path / "started", "generator", add_start=True))
    assert started.encode([text], truncate=True) == [[3, *ids[1 - SOURCE :]]]


def test_the_longer_text_of_a_pair_is_truncated_first(loaded):
    space = SOURCE - 3
    for first, second in ((5, 60), (60, 5), (60, 60), (50, 60), (60, 0), (18, 19)):
        kept = first_length(first, second, space)
        pair, cut = ("a" * first, "b" * second), ("a" * kept, "b" * min(second, space - kept))
        np.testing.assert_array_equal(
            loaded["classifier"].scores(*pair, truncate=True), loaded["classifier"].scores(*cut)
        )
    assert first_length(60, 60, space) == space // 2


@pytest.mark.parametrize("name", ["classifier", "generator", "copier"])
def test_an_invalid_row_over_http_fails_only_its_own_row(exports, name):
    rows = ["good", None, 3, LONG, ["a"], {"b64": "?"}, "y" * 101, "fine"]

    def received(place, row):
        return f"`text` must be a string. Received: {place}={rows[row]!r}"

    async def test(app):
        _, expected = await predict(app, name, ["good", "fine"])
        status, found = await predict(app, name, rows)
        assert status == 200
        first, *invalid, last = found["predictions"]
        assert [first, last] == expected["predictions"]
        errors = [each["error"] for each in invalid]
        for row in (1, 2, 4, 5):
            assert errors[row - 1] == received(f"instances[{row}].text", row)
        assert f"Received: {SOURCE + 1 + (name == 'copier')} tokens" in errors[2]
        assert errors[5] == "`text` must have at most 100 characters. Received: 101 in row 6"
        _, columns = await json_call(app, "POST", PREDICT.format(name), {"inputs": {"text": rows}})
        assert [bool(error) for error in columns["outputs"]["error"]] == [False, *[True] * 6, False]
        assert columns["outputs"]["error"][1] == received("inputs.text[1]", 1)
        _, found = await json_call(app, "POST", INFER.format(name), {"inputs": [tensor("text", rows)]})
        *_, error = found["outputs"]
        assert error["data"][1] == received("text.data[1]", 1)
        assert [bool(each) for each in error["data"]] == [False, *[True] * 6, False]
        _, only_bad = await predict(app, name, [None])
        assert only_bad["predictions"][0]["error"] == received("instances[0].text", 1)

    run(exports, test, name, limits=Limits(max_characters=100))


@pytest.mark.parametrize("name", ["classifier", "generator", "copier"])
def test_truncate_over_http_truncates_texts(exports, loaded, name):
    texts = [LONG, "hello", None]

    async def test(app):
        _, found = await predict(app, name, texts, truncate=True)
        output = "label" if name == "classifier" else "text"
        answers = [each[output] for each in found["predictions"]]
        assert answers[:2] == loaded[name](texts[:2], truncate=True)
        assert [each["error"][:6] for each in found["predictions"]] == ["", "", "`text`"]
        request = {"inputs": [tensor("text", texts)], "parameters": {"truncate": True}}
        _, tensors = await json_call(app, "POST", INFER.format(name), request)
        assert tensors["outputs"][0]["data"] == answers
        status, found = await predict(app, name, texts, truncate="yes")
        assert (status, found["error"]) == (400, "`truncate` must be true or false. Received: truncate='yes'")
        if name == "classifier":
            ids = [{"input_ids": [OFFSET]}]
            status, found = await predict(app, name, ids, signature_name="forward", truncate=True)
            assert (status, found["error"].split(".")[0]) == (400, "`truncate` needs a signature of texts")
        if name == "generator":
            path = "/v1/models/generator:stream"
            request = {"text": LONG, "truncate": True}
            _, _, content = await call(app, "POST", path, request)
            assert json.loads(content.splitlines()[-2].removeprefix(b"data: ")) == {"text": answers[0]}
            assert (await json_call(app, "POST", path, {**request, "truncate": 1}))[0] == 400
            assert (await json_call(app, "POST", path, {"text": LONG}))[0] == 400

    run(exports, test, name)


def test_each_row_may_have_separate_noise(exports):
    noise = serving.uniform_noise(3, np.arange(3), 1, STEPS).astype(float)

    async def test(app):
        def ids(answer):
            return [each["ids"] for each in answer[1]["predictions"]]

        async def generate(noises, signature="generate_ids"):
            rows = [{"text": "a", **({} if each is None else {"noise": each})} for each in noises]
            return await predict(app, "sampler", rows, signature_name=signature)

        seeded = await generate([None] * 3)
        assert len({tuple(each) for each in ids(seeded)}) > 1
        assert ids(await generate(noise.tolist())) == ids(seeded)
        assert ids(await generate(noise[[2, 0, 0]].tolist())) == [ids(seeded)[row] for row in (2, 0, 0)]
        given = {**tensor("noise", noise.ravel().tolist(), "FP32"), "shape": [3, 1, STEPS]}
        request = {
            "inputs": [tensor("text", ["a"] * 3), given],
            "parameters": {"signature_name": "generate_ids"},
        }
        _, found = await json_call(app, "POST", INFER.format("sampler"), request)
        assert np.reshape(found["outputs"][0]["data"], (3, STEPS)).tolist() == ids(seeded)
        wrong = noise.copy()
        wrong[1, 0, 4] = 1.5
        _, found = await generate(wrong.tolist())
        errors = [each["error"] for each in found["predictions"]]
        assert [bool(each) for each in errors] == [False, True, False]
        assert errors[1].startswith("`noise` must be in [0, 1]. Received: from ")
        status, found = await generate(noise[:, :, 1:].tolist())
        assert status == 400
        assert found["error"].startswith(f"`noise` must be float32 of shape (1, {STEPS})")
        _, document = await json_call(app, "GET", "/v1/models/sampler/metadata")
        definition = document["metadata"]["signature_def"]["signature_def"]["generate_ids"]
        assert set(definition["inputs"]) == {"text", "noise"}

    run(exports, test, "sampler")
