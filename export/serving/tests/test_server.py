"""The server: both protocols, batching, limits, errors."""

import asyncio
import base64
import json
import time

import numpy as np
import pytest
from served_exports import (
    INFER,
    OFFSET,
    PREDICT,
    SOURCE,
    STEPS,
    batch_sizes,
    call,
    json_call,
    predict,
    run,
    tensor,
    write_export,
)
from served_graphs import array_graph

import keras_transformer_serving as serving
from keras_transformer_serving.server import Limits

TEXTS = ["a", "hello", "", "the cat", "¿qué?", "x" * SOURCE, "b" * 17, "zz", "q" * 9, "☃"]


@pytest.mark.parametrize(
    ("name", "signature"),
    [
        ("classifier", "serving_default"),
        ("classifier", "forward"),
        ("generator", "serving_default"),
        ("generator", "generate"),
        ("generator", "encode"),
        ("copier", "attributions"),
        ("sampler", "generate_ids"),
    ],
)
def test_batched_responses_equal_single_responses(exports, name, signature):
    texts = [text for text in TEXTS if text and len(text) < SOURCE - 2]
    rows = [{"input_ids": [OFFSET + byte for byte in text.encode()]} for text in texts]
    instances = rows if signature == "forward" else texts

    async def test(app):
        single = [await predict(app, name, [each], signature_name=signature) for each in instances]
        before = batch_sizes(app)
        together = await asyncio.gather(
            *(predict(app, name, [each], signature_name=signature) for each in instances)
        )
        after = batch_sizes(app)
        assert [status for status, _ in single] == [200] * len(texts)
        assert together == single
        count, rows = (
            after[name] - before[name]
            for name in ("keras_transformer_batch_size_count", "keras_transformer_batch_size_sum")
        )
        if signature in ("encode", "attributions"):  # no jobs, and several for each text
            assert (rows == 0) == (signature == "encode")
            return
        assert rows == len(texts)
        if signature != "forward":
            assert count < len(texts)

    run(exports, test, name, limits=Limits(max_latency_ms=20))


def test_responses_equal_the_serving_pipelines(exports):
    texts = [text for text in TEXTS if text and len(text.encode()) < SOURCE - 2]
    found = {name: serving.load(exports[name]) for name in ("classifier", "generator")}

    async def test(app):
        _, answers = await predict(app, "classifier", texts)
        assert [each["label"] for each in answers["predictions"]] == found["classifier"](texts)
        probabilities = [each["probabilities"] for each in answers["predictions"]]
        np.testing.assert_array_equal(np.float32(probabilities), found["classifier"].probabilities(texts))
        _, answers = await predict(app, "generator", texts)
        assert answers["predictions"] == [{"text": text, "error": ""} for text in found["generator"](texts)]
        options = [
            {"text": text, "max_new_tokens": 1 + i % 5, "min_new_tokens": 2} for i, text in enumerate(texts)
        ]
        _, answers = await predict(app, "generator", options, signature_name="generate")
        limits = [each["max_new_tokens"] for each in options]
        expected = found["generator"].generate(texts, max_new_tokens=limits, min_new_tokens=2)
        ids = np.array([each["ids"] for each in answers["predictions"]])
        np.testing.assert_array_equal(ids[:, : max(limits)], expected["ids"])
        assert not ids[:, max(limits) :].any()

    run(exports, test, "classifier", "generator")


@pytest.mark.parametrize("name", ["classifier", "generator", "copier", "tagger", "images"])
def test_every_export_runs_on_arrays(small, tmp_path, name):
    model = serving.load(write_export(small, tmp_path / name, name))
    ids = np.array([[OFFSET + ord("a"), OFFSET + ord("b"), 0]])
    arrays = {"pixel_values": np.zeros((1, 2, 2, 1), "float32")} if name == "images" else {"input_ids": ids}
    found = model.run(**arrays)
    assert all(isinstance(each, np.ndarray) for each in found.values())
    if name in ("generator", "copier"):
        np.testing.assert_array_equal(found["ids"], model.generate([ids[0, :2]])["ids"])


def test_a_sample_depends_only_on_its_seed_and_row(exports):
    async def test(app):
        _, first = await predict(app, "sampler", ["a"] * 3)
        _, again = await predict(app, "sampler", ["a"] * 3)
        assert first == again
        texts = [each["text"] for each in first["predictions"]]
        assert len(set(texts)) > 1
        rows = [{"text": "a", "seed": 3, "rows": row} for row in (2, 0)]
        _, named = await predict(app, "sampler", rows, signature_name="generate")
        assert [each["text"] for each in named["predictions"]] == [texts[2], texts[0]]
        rows = [{"text": "a", "seed": -1, "rows": 0}] * 8
        _, drawn = await predict(app, "sampler", rows, signature_name="generate")
        assert len({each["text"] for each in drawn["predictions"]}) > 1

    run(exports, test, "sampler")


@pytest.mark.parametrize("name", ["classifier", "generator"])
def test_an_invalid_row_does_not_change_other_rows(exports, name):
    wrong = ["x" * (SOURCE + 1), {"b64": base64.b64encode(b"\xff").decode()}, "a\ud800"]
    good = ["good", "fine"]

    async def test(app):
        _, expected = await predict(app, name, good)
        status, found = await predict(app, name, [good[0], *wrong, good[1]])
        assert status == 200
        first, *invalid, last = found["predictions"]
        assert [first, last] == expected["predictions"]
        assert [each["error"].split("Received")[1] for each in invalid] == [
            f": {SOURCE + 1} tokens",
            ": other bytes",
            ": other bytes",
        ]
        empty = {"label": "", "probabilities": [0.0] * 3} if name == "classifier" else {"text": ""}
        assert [{**each, "error": ""} for each in invalid] == [{**empty, "error": ""}] * 3

    run(exports, test, name)


def test_an_option_out_of_range_fails_only_its_row(exports):
    async def test(app):
        rows = [{"text": "hello", "max_new_tokens": limit} for limit in (3, 99)]
        _, found = await predict(app, "generator", rows, signature_name="generate")
        good, invalid = found["predictions"]
        assert good["error"] == ""
        assert good["lengths"] <= 3
        assert invalid == {
            "text": "",
            "ids": [0] * STEPS,
            "lengths": 0,
            "scores": 0.0,
            "error": f"`max_new_tokens` must be in [1, {STEPS}]. Received: 99",
        }

    run(exports, test, "generator")


def test_row_and_column_formats_of_tensorflow_serving_are_accepted(exports):
    async def test(app):
        path = PREDICT.format("classifier")
        bytes_ = {"b64": base64.b64encode("qué".encode()).decode()}
        _, named = await predict(app, "classifier", [{"text": "qué"}, {"text": bytes_}])
        _, single = await predict(app, "classifier", ["qué", bytes_])
        assert named == single
        assert single["predictions"][0] == single["predictions"][1]
        assert list(single["predictions"][0]) == ["label", "probabilities", "error"]
        for inputs in (["qué", bytes_], {"text": ["qué", bytes_]}):
            _, columns = await json_call(app, "POST", path, {"inputs": inputs})
            rows = [
                dict(zip(columns["outputs"], row, strict=True))
                for row in zip(*columns["outputs"].values(), strict=True)
            ]
            assert rows == single["predictions"]
        pair = {"text": ["a"], "text_pair": ["b"]}
        status, _ = await json_call(app, "POST", path, {"inputs": pair, "signature_name": "classify_pairs"})
        assert status == 200
        for part in ("/versions/1", "/labels/stable"):
            found = await json_call(
                app, "POST", f"/v1/models/classifier{part}:predict", {"instances": ["qué", bytes_]}
            )
            assert found == (200, single)
        assert await predict(app, "classifier", []) == (200, {"predictions": []})
        _, status = await json_call(app, "GET", "/v1/models/classifier")
        assert (status["name"], status["ready"]) == ("classifier", True)  # of KServe's first protocol
        assert status["model_version_status"] == [
            {"version": "1", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
        ]
        _, metadata = await json_call(app, "GET", "/v1/models/classifier/metadata")
        definitions = metadata["metadata"]["signature_def"]["signature_def"]
        assert set(definitions) == {"serving_default", "classify_pairs", "forward"}
        assert definitions["serving_default"]["outputs"]["probabilities"] == {
            "dtype": "DT_FLOAT",
            "tensor_shape": {
                "dim": [{"size": "-1", "name": ""}, {"size": "3", "name": ""}],
                "unknown_rank": False,
            },
            "name": "serving_default_probabilities:0",
        }
        # One option for all rows.
        options = {"text": ["hello", "the cat"], "max_new_tokens": [2]}
        _, found = await json_call(
            app, "POST", PREDICT.format("generator"), {"inputs": options, "signature_name": "generate"}
        )
        assert max(found["outputs"]["lengths"]) <= 2

    run(exports, test)


def test_open_inference_protocol_requests_are_answered(exports):
    async def test(app):
        path = INFER.format("classifier")
        _, rows = await predict(app, "classifier", ["a", "b"])
        _, found = await json_call(app, "POST", path, {"id": "7", "inputs": [tensor("text", ["a", "b"])]})
        label, probabilities, error = found.pop("outputs")
        assert found == {"model_name": "classifier", "model_version": "1", "id": "7"}
        assert label == tensor("label", [each["label"] for each in rows["predictions"]])
        flat = [number for each in rows["predictions"] for number in each["probabilities"]]
        assert probabilities == tensor("probabilities", flat, "FP32", [2, 3])
        assert error == tensor("error", ["", ""])
        request = {"inputs": [tensor("text", ["a"])], "outputs": [{"name": "label"}]}
        _, found = await json_call(app, "POST", "/v2/models/classifier/versions/1/infer", request)
        assert found["outputs"] == [tensor("label", [rows["predictions"][0]["label"]])]
        ids = {"parameters": {"signature_name": "forward"}}
        flat, nested = [
            await json_call(
                app, "POST", path, {**ids, "inputs": [tensor("input_ids", data, "INT64", [2, 2])]}
            )
            for data in ([7, 8, 9, 0], [[7, 8], [9, 0]])
        ]
        assert flat == nested
        assert flat[0] == 200
        _, metadata = await json_call(app, "GET", "/v2/models/generator")
        assert metadata["inputs"] == [{"name": "text", "datatype": "BYTES", "shape": [-1]}]
        assert metadata["versions"] == ["1"]
        _, found = await json_call(app, "GET", "/v2")
        assert found["name"] == "keras-transformer-serve"
        for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/generator/ready"):
            assert (await call(app, "GET", path))[0] == 200

    run(exports, test)


def events(content):
    found = []
    for block in content.decode().split("\n\n")[:-1]:
        *kind, data = block.splitlines()
        found.append(
            (kind[0].removeprefix("event: ") if kind else "", json.loads(data.removeprefix("data: ")))
        )
    return found


@pytest.mark.parametrize("text", ["hello", "a", "☃", "x" * SOURCE, "the cat", "b"])
def test_streamed_pieces_concatenate_to_the_output(exports, text):
    async def test(app):
        _, whole = await predict(app, "generator", [text])
        status, headers, content = await call(app, "POST", "/v1/models/generator:stream", {"text": text})
        assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        *pieces, last = events(content)
        assert "".join(data["text"] for _, data in pieces) == whole["predictions"][0]["text"]
        assert last == ("done", {"text": whole["predictions"][0]["text"]})
        rows = [{"text": text, "max_new_tokens": 2}]
        _, short = await predict(app, "generator", rows, signature_name="generate")
        _, _, content = await call(app, "POST", "/v1/models/generator:stream", rows[0])
        assert events(content)[-1] == ("done", {"text": short["predictions"][0]["text"]})

    run(exports, test, "generator")


@pytest.mark.parametrize(
    ("name", "body", "message"),
    [
        ("classifier", {"text": "a"}, "Streaming needs a pipeline that generates"),
        ("generator", {"text": "a", "temperature": 1.0}, 'The request must be {"text": …}'),
        ("generator", {"text": 5}, "`text` must be a string. Received: text=5"),
        ("generator", {"instances": ["a"]}, 'The request must be {"text": …}'),
        ("generator", {"text": "a", "max_new_tokens": 0}, "`max_new_tokens` must be in"),
        ("generator", {"text": ""}, "`texts` must each have a token. Received: none"),
        ("generator", {"text": "\ud800"}, "`text` must be UTF-8"),
    ],
)
def test_unsupported_streams_are_rejected(exports, name, body, message):
    async def test(app):
        status, found = await json_call(app, "POST", f"/v1/models/{name}:stream", body)
        assert status == 400
        assert found["error"].startswith(message)
        assert app.state.server.active == 0

    run(exports, test, name)


def test_a_stream_over_the_time_limit_ends_with_an_error(exports, monkeypatch):
    next_logits = serving.Graphs.next_logits

    def slow(self, *arguments):
        step = next_logits(self, *arguments)
        return lambda token: time.sleep(0.4) or step(token)

    async def test(app):
        monkeypatch.setattr(serving.Graphs, "next_logits", slow)
        _, _, content = await call(app, "POST", "/v1/models/generator:stream", {"text": "abd"})
        message = "Each part of the stream must be computed within 0.25 s"
        assert events(content)[-1] == ("error", {"error": message})
        assert app.state.server.active == 0

    run(exports, test, "generator", limits=Limits(timeout=0.25))


def test_openapi_and_metrics_are_served(exports):
    async def test(app):
        await predict(app, "classifier", ["a", "x" * 99])
        await predict(app, "x", ["a"])
        await call(app, "POST", "/v1/models/generator:stream", {"text": "a"})
        _, document = await json_call(app, "GET", "/openapi.json")
        assert document["openapi"] == "3.1.0"
        assert "/v1/models/generator:stream" in document["paths"]
        assert "/v1/models/classifier:stream" not in document["paths"]
        paths = [route.path for route in app.routes]
        known = {path.replace("{name}", name) for name in app.state.server.models for path in paths}
        assert set(document["paths"]) <= known
        _, _, content = await call(app, "GET", "/metrics")
        lines = content.decode().splitlines()
        for line in (
            'keras_transformer_requests_total{code="200",model="classifier",protocol="tensorflow_serving"} 1.0',
            'keras_transformer_requests_total{code="404",model="",protocol="tensorflow_serving"} 1.0',
            'keras_transformer_rows_total{model="classifier"} 1.0',
            'keras_transformer_refused_rows_total{model="classifier"} 1.0',
            'keras_transformer_queue_length{model="classifier"} 0.0',
            'keras_transformer_first_token_seconds_count{model="generator"} 1.0',
        ):
            assert line in lines

    run(exports, test)


def example(schema):
    """Return a value of a schema: its default, or one of zeros."""
    if "default" in schema or "enum" in schema:
        return schema.get("default", schema.get("enum", [None])[0])
    if schema["type"] == "array":
        return [example(schema["items"])] * schema.get("minItems", 2)
    values = {"string": "a", "integer": 1, "number": 0.5, "boolean": True, "object": {"b": "c"}}
    return values[schema["type"]]


def body_of(document, path):
    return document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]


@pytest.mark.parametrize("name", ["classifier", "copier", "sampler"])
def test_every_documented_option_is_accepted(exports, name):
    async def test(app):
        _, document = await json_call(app, "GET", "/openapi.json")
        signatures = app.state.server.models[name].current.loaded.signatures
        path, rows = PREDICT.format(name), {}
        for schema in body_of(document, path)["anyOf"]:
            options = dict(schema["properties"])
            signature = options.pop("signature_name")["const"]
            tensors = signatures[signature].inputs
            reads_text = any(tensor.dtype == "string" for tensor in tensors)
            optional = {tensor.name for tensor in tensors if not tensor.required}
            if style := options.pop("instances", None):
                _, row = style["items"].get("anyOf", [None, style["items"]])
                rows[signature] = {each: example(row["properties"][each]) for each in row["required"]}
            columns = {key: [value] * 2 for key, value in rows[signature].items()}
            given = {"instances": [rows[signature]] * 2} if style else {"inputs": columns}
            options.pop("inputs", None)
            assert options.keys() == optional | ({"truncate"} if reads_text else set())
            for option, of_option in options.items():
                body = {"signature_name": signature, **given, option: example(of_option)}
                status, found = await json_call(app, "POST", path, body)
                assert status == 200, (body, found)
                assert not any(each.get("error") for each in found.get("predictions", [])), (body, found)
        options = body_of(document, INFER.format(name))["properties"]["parameters"]["properties"]
        assert options.pop("signature_name")["enum"] == list(signatures)
        for signature, row in rows.items():
            known = {each.name: each for each in signatures[signature].inputs}
            inputs = [
                tensor(each, [value], known[each].names.inference, [1, *np.shape(value)])
                for each, value in row.items()
            ]
            reads_text = any(each.dtype == "string" for each in known.values())
            for option in options.keys() & (known.keys() | ({"truncate"} if reads_text else set())):
                parameters = {"signature_name": signature, option: example(options[option])}
                body = {"inputs": inputs, "parameters": parameters}
                status, found = await json_call(app, "POST", INFER.format(name), body)
                assert status == 200, (body, found)

    run(exports, test, name)


@pytest.mark.parametrize("name", ["generator", "copier", "sampler"])
def test_every_documented_stream_option_is_accepted(exports, name):
    async def test(app):
        _, document = await json_call(app, "GET", "/openapi.json")
        path = f"/v1/models/{name}:stream"
        options = body_of(document, path)["properties"]
        others = {"copier": {"long_texts"}, "sampler": {"temperature", "seed", "rows"}}.get(name, set())
        assert options.keys() == {"text", "max_new_tokens", "min_new_tokens", "truncate"} | others
        for option in options:
            request = {"text": "ab", option: example(options[option])}
            status, _, content = await call(app, "POST", path, request)
            assert status == 200, content

    run(exports, test, name)


def test_importing_serving_does_not_import_the_server():
    import subprocess
    import sys

    code = "import sys, keras_transformer_serving.command_line; print('starlette' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_images_and_graphs_are_classified(small, tmp_path):
    classes = {"labels": ["x", "y"], "problem_type": "single_label_classification", "threshold": 0.5}
    images = {**classes, "pipeline": "ImageClassification", "value_range": [0.0, 1.0]}
    images |= {"image_size": [2, 2], "num_channels": 1, "resize": False}
    nodes = {"labels": [7, 8], "pipeline": "NodeClassification", "num_features": 1}
    folders = {name: tmp_path / name for name in ("images", "nodes")}
    for name, config in (("images", images), ("nodes", nodes)):
        contents = {"model.onnx": array_graph(name).SerializeToString()}
        small.write(folders[name], config={**config, "tokenizer_file": "vocab.model"}, contents=contents)

    async def test(app):
        bright, dark, wrong = ([[[value]] * 2] * 2 for value in (1.0, 0.0, 3.0))
        _, found = await predict(app, "images", [{"pixel_values": each} for each in (bright, wrong, dark)])
        first, invalid, last = found["predictions"]
        assert [first["label"], last["label"]] == ["y", "x"]
        assert invalid == {
            "label": "",
            "probabilities": [0.0, 0.0],
            "error": "`pixel_values` must be from 0.0 to 1.0. Received: from 3.0 to 3.0",
        }
        _, single = await predict(app, "images", [bright])
        assert single["predictions"] == [first]
        status, found = await predict(app, "images", [[[[1.0]]]])
        assert status == 400
        assert found["error"].startswith("`pixel_values` must be float32 of shape (2, 2, 1)")
        graphs = [{"nodes": [[1.0], [0.0]], "edges": []}, {"nodes": [[0.0]], "edges": [[0, 0]]}]
        graphs.append({"nodes": [[0.0]], "edges": [[0, 5]]})
        _, found = await predict(app, "nodes", graphs)
        assert [each["label"] for each in found["predictions"]] == [[8, 7], [7, -1], [-1, -1]]
        assert found["predictions"][2]["error"].startswith("`edges` must be from -1 to 0")

    run(folders, test)
