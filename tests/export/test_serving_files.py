"""The folder serving/ of an export: files that servers parse, and requests that they answer."""

import pathlib
import shutil

import numpy as np
import pytest
import yaml
from google.protobuf import json_format, text_format
from served_exports import json_call, run
from tensorflow.core.framework import tensor_pb2

from keras_transformer.export import bundle_writer
from keras_transformer.export.tensorflow_serving import configuration, messages, warmup
from keras_transformer_serving import Bundle, files, manifest

KIT = pathlib.Path(__file__).resolve().parents[2] / "export"
MODEL_SERVER_CONFIG = {
    "Latest": {"num_versions": (1, "uint32")},
    "ServableVersionPolicy": {"latest": (100, "Latest")},
    "ModelConfig": {
        "name": (1, "string"),
        "base_path": (2, "string"),
        "model_platform": (4, "string"),
        "model_version_policy": (7, "ServableVersionPolicy"),
    },
    "ModelConfigList": {"config": (1, "repeated ModelConfig")},
    "ModelServerConfig": {"model_config_list": (1, "ModelConfigList")},
}
BATCHING_PARAMETERS = {
    "Int64Value": {"value": (1, "int64")},
    "StringValue": {"value": (1, "string")},
    "BatchingParameters": {
        "max_batch_size": (1, "Int64Value"),
        "batch_timeout_micros": (2, "Int64Value"),
        "max_enqueued_batches": (3, "Int64Value"),
        "num_batch_threads": (4, "Int64Value"),
        "thread_pool_name": (5, "StringValue"),
        "allowed_batch_sizes": (6, "repeated int64"),
        "pad_variable_length_inputs": (7, "bool"),
    },
}
MONITORING = {
    "PrometheusConfig": {"enable": (1, "bool"), "path": (2, "string")},
    "MonitoringConfig": {"prometheus_config": (1, "PrometheusConfig")},
}


def parsed(path, message, fields):
    return text_format.Parse(path.read_text(encoding="utf-8"), messages.message_classes(fields)[message]())


def served(folder):
    """Return the names and paths of the models in models.config."""
    path = folder / "serving" / "tensorflow_serving" / "models.config"
    models = parsed(path, "ModelServerConfig", MODEL_SERVER_CONFIG).model_config_list.config
    assert {model.model_platform for model in models} == {"tensorflow"}
    assert {model.model_version_policy.latest.num_versions for model in models} == {1}
    return {model.name: model.base_path for model in models}


def written(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


@pytest.fixture(scope="module")
def requests(exported):
    """Return the requests of the export by signature: REST bodies, and gRPC messages."""
    folder = exported / "serving" / "requests" / "tiny"
    names = {path.name.split(".")[0] for path in folder.iterdir()}
    return {
        name: (files.read_json(folder / f"{name}.json"), files.read_json(folder / f"{name}.grpc.json"))
        for name in names
    }


@pytest.fixture
def reports(exported):
    return files.read_json(exported / "parity.json")


def test_every_model_is_served_once_from_the_folder_mounted_by_compose(tmp_path, exported, reports):
    (volume,) = yaml.safe_load((KIT / "tensorflow_serving" / "compose.yaml").read_text())["services"][
        "tensorflow-serving"
    ]["volumes"]
    source, target, _ = volume.rsplit(":", 2)
    assert source.endswith("/saved_model")
    assert served(exported) == {"tiny": f"{target}/tiny"}
    report = reports.pop("saved_model/tiny/1")
    parts = ["saved_model/es-en/10", "saved_model/señal_2.b/3", "saved_model/es-en/9"]
    bundle_writer.write_serving_files(tmp_path, Bundle(exported).config, dict.fromkeys(parts, report))
    assert served(tmp_path) == {name: f"{target}/{name}" for name in ("es-en", "señal_2.b")}
    assert configuration.latest_versions(dict.fromkeys(parts))["es-en"] == "saved_model/es-en/10"


def test_batching_parameters_are_valid_for_tensorflow_serving(exported):
    path = exported / "serving" / "tensorflow_serving" / "batching_parameters.txt"
    found = parsed(path, "BatchingParameters", BATCHING_PARAMETERS)
    values = {field.name: value.value for field, value in found.ListFields()}
    assert all(value > 0 for value in values.values())
    assert values.keys() == {
        "max_batch_size",
        "batch_timeout_micros",
        "max_enqueued_batches",
        "num_batch_threads",
    }


def test_tensorflow_serving_exposes_prometheus_metrics(exported):
    path = exported / "serving" / "tensorflow_serving" / "monitoring.config"
    found = parsed(path, "MonitoringConfig", MONITORING)
    assert found.prometheus_config.enable
    assert found.prometheus_config.path.startswith("/")


def test_files_of_a_server_are_written_with_the_format_it_serves(tmp_path, exported, reports):
    config = Bundle(exported).config
    for number, (part, folders) in enumerate(
        [("saved_model/tiny/1", {"tensorflow_serving", "requests"}), ("onnx", {"triton"})]
    ):
        bundle_writer.write_serving_files(tmp_path / str(number), config, {part: reports[part]})
        assert {path.name for path in (tmp_path / str(number) / "serving").iterdir()} == folders
    bundle_writer.write_serving_files(tmp_path / "both", config, reports)
    both = written(tmp_path / "both")
    assert both == written(tmp_path / "0") | written(tmp_path / "1")
    assert both == {f"serving/{name}": content for name, content in written(exported / "serving").items()}
    bundle_writer.write_serving_files(tmp_path / "unknown", config, {"onnx": {}, "saved_model/tiny/1": {}})
    assert served(tmp_path / "unknown") == {"tiny": "/models/tiny"}


def test_examples_missing_from_the_report_have_no_request(tmp_path, exported, reports):
    del reports["saved_model/tiny/1"]["signatures"]["generate"]["example"]
    bundle_writer.write_serving_files(tmp_path, Bundle(exported).config, reports)
    assert not [name for name in written(tmp_path) if name.split("/")[-1].startswith("generate.")]
    assert "serving/requests/tiny/generate_ids.json" in written(tmp_path)


def test_grpc_requests_are_the_warm_up_requests(exported, requests):
    """Warm-up requests of one row. TensorFlow lacks `PredictRequest`, but has its `TensorProto`."""
    expected = {
        request.model_spec.signature_name: request
        for request in reversed(warmup.requests(exported / "saved_model" / "tiny" / "1"))
    }
    assert requests.keys() == expected.keys()
    for name, (_, found) in requests.items():
        found = {**found, "inputs": {key: tensor(value) for key, value in found["inputs"].items()}}
        assert json_format.ParseDict(found, messages.CLASSES["PredictRequest"]()) == expected[name]


def tensor(value):
    """Return a `TensorProto` in JSON, with its type as a number as in `messages`."""
    return json_format.MessageToDict(
        json_format.ParseDict(value, tensor_pb2.TensorProto()), use_integers_for_enums=True
    )


def test_rest_and_grpc_requests_have_the_same_rows(requests):
    for name, (body, request) in requests.items():
        assert body.get("signature_name", "serving_default") == name
        (row,) = body["instances"]
        arrays = warmup.arrays(
            {
                key: json_format.ParseDict(value, tensor_pb2.TensorProto())
                for key, value in request["inputs"].items()
            }
        )
        row = row if isinstance(row, dict) else dict.fromkeys(arrays, row)
        assert row.keys() == arrays.keys()
        for key, (value,) in arrays.items():
            np.testing.assert_array_equal(value, row[key].encode() if isinstance(row[key], str) else row[key])


def test_the_server_of_this_package_answers_the_rest_requests(exported, requests, reports):
    async def send(app):
        return {
            name: await json_call(app, "POST", "/v1/models/tiny:predict", body)
            for name, (body, _) in requests.items()
        }

    examples = reports["onnx"]["examples"]
    text, ids = examples["answers"][0], examples["ids"][0]
    for name, (status, content) in run({"tiny": exported}, send).items():
        (row,) = content["predictions"]
        assert (status, row["error"]) == (200, ""), name
        if "text" in row:
            assert row["text"] == text
        if "ids" in row:
            assert row["ids"] == ids


def test_an_export_without_the_serving_folder_is_read_and_extended(damaged, pipeline, reports):
    """Earlier versions wrote no such folder."""
    entries = files.read_json(damaged / "manifest.json")["files"]
    old = {name: entry for name, entry in entries.items() if not name.startswith("serving/")}
    shutil.rmtree(damaged / "serving")
    files.write_json(damaged / "manifest.json", manifest.sealed({}, old, None))
    Bundle(damaged).check()
    part = "saved_model/tiny/1"
    with bundle_writer.new_parts(pipeline, damaged, ["saved_model/other/1"]) as written:
        new, report = written["saved_model/other/1"]
        shutil.copytree(damaged / part, new, dirs_exist_ok=True)
        report.update(reports[part])
    Bundle(damaged).check()
    assert served(damaged) == {"tiny": "/models/tiny", "other": "/models/other"}
    assert {path.name for path in (damaged / "serving/requests").iterdir()} == {"tiny", "other"}
    assert (damaged / "serving/triton/config.pbtxt").is_file()
