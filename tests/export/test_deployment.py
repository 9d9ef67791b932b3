"""The deployment files in export/ are valid for the programs that read them, and consistent with each other."""

import argparse
import http.server
import json
import pathlib
import re
import runpy
import subprocess
import sys
import threading
import tomllib

import jsonschema
import numpy as np
import onnx
import onnxruntime
import pytest
import yaml
from check_jsonschema.builtin_schemas import get_builtin_schema
from google.protobuf import text_format
from onnx import helper

from keras_transformer.export.signatures import of_graphs
from keras_transformer_serving import Bundle, bundle, command_line
from keras_transformer_serving.server.metrics import Metrics

ROOT = pathlib.Path(__file__).resolve().parents[2]
KIT = ROOT / "export"
MESSAGES = runpy.run_path(str(ROOT / "keras_transformer" / "export" / "tensorflow_serving" / "messages.py"))
TRITON = runpy.run_path(str(KIT / "triton" / "make_repository.py"))
DOCKERFILES = [path for path in sorted(KIT.rglob("Dockerfile*")) if path.suffix != ".dockerignore"]
SERVERS = [KIT / "docker" / "Dockerfile", KIT / "docker" / "Dockerfile.gpu"]
COMPOSE = sorted(KIT.rglob("compose.yaml"))
USER, PORT = 10001, 8501


def named(paths):
    return pytest.mark.parametrize("path", paths, ids=lambda path: path.relative_to(KIT).as_posix())


def instructions(path):
    """Return the instructions of a Dockerfile as (name, arguments), with comments removed and lines joined."""
    lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [tuple(line.split(maxsplit=1)) for line in joined.splitlines() if line.strip()]


def last(path, name):
    return [arguments for each, arguments in instructions(path) if each == name][-1]


def words(path, name):
    """Return the words of an instruction in exec form, which needs no shell in the image."""
    arguments = last(path, name)
    return json.loads(arguments[arguments.index("[") :])


def parsed(path, message, fields):
    found = MESSAGES["message_classes"](fields)[message]()
    return text_format.Parse(path.read_text(), found)


@pytest.fixture
def http_server():
    """Return `answer(status, body)`, which serves one response and returns the port and the requested paths."""
    started = []

    def answer(status, body):
        paths = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                paths.append(self.path)
                self.send_response(status)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        started.append(server)
        return server.server_port, paths

    yield answer
    for server in started:
        server.shutdown()
        server.server_close()


def healthy(path, port):
    """Return whether the health check of a Dockerfile succeeds, with its port replaced."""
    command = [word.replace(str(PORT), str(port)) for word in words(path, "HEALTHCHECK")]
    if command[0] == "python":
        command[0] = sys.executable
    environment = {"MODEL_NAME": "es-en", "PATH": "/usr/bin:/bin"}
    return subprocess.run(command, env=environment, capture_output=True, timeout=30).returncode == 0


# TensorFlow Serving

TENSORFLOW_SERVING = KIT / "tensorflow_serving"


def test_the_tensorflow_serving_image_contains_the_files_its_arguments_name(exported):
    path = TENSORFLOW_SERVING / "Dockerfile"
    copied = [arguments.split() for name, arguments in instructions(path) if name == "COPY"]
    assert [stage for stage, _, _ in copied] == ["--from=bundle"] * 2
    (source, folder), (saved_models, models) = [paths for _, *paths in copied]
    files = [word.split("=")[1] for word in words(path, "CMD") if "_file=" in word]
    assert sorted(files) == sorted(folder + each.name for each in (exported / source).iterdir())
    config = (exported / source / "models.config").read_text()
    assert re.findall(r'base_path: "(.*)"', config) == [
        models + each.name for each in (exported / saved_models).iterdir()
    ]


@pytest.mark.parametrize(("state", "expected"), [("AVAILABLE", True), ("LOADING", False)])
def test_tensorflow_serving_is_healthy_once_the_model_is_available(http_server, state, expected):
    status = {"model_version_status": [{"version": "1", "state": state, "status": {"error_code": "OK"}}]}
    port, paths = http_server(200, json.dumps(status).encode())
    assert healthy(TENSORFLOW_SERVING / "Dockerfile", port) is expected
    assert paths == ["/v1/models/es-en"]


# Docker


@named(DOCKERFILES)
def test_dockerfiles_have_known_instructions_and_name_no_registry(path):
    found = instructions(path)
    names = [name for name, _ in found]
    assert {*names} <= {
        *(
            "ARG",
            "CMD",
            "COPY",
            "ENTRYPOINT",
            "ENV",
            "EXPOSE",
            "FROM",
            "HEALTHCHECK",
            "RUN",
            "STOPSIGNAL",
            "USER",
        )
    }
    assert next(name for name in names if name != "ARG") == "FROM"
    assert all(names.count(name) <= 1 for name in ("FROM", "CMD", "ENTRYPOINT", "HEALTHCHECK", "USER"))
    defaults = dict(arguments.split("=", 1) for name, arguments in found if name == "ARG")
    image = re.sub(r"\$\{(\w+)\}", lambda name: defaults[name[1]], last(path, "FROM"))
    assert "." not in image.split("/")[0].split(":")[0]
    assert image.startswith("keras-transformer-serving") or ":" in image  # a tag


@named([*SERVERS, TENSORFLOW_SERVING / "Dockerfile"])
def test_the_server_runs_as_an_unprivileged_user(path):
    names = [name for name, _ in instructions(path)]
    assert last(path, "USER") == f"{USER}:{USER}"
    assert not {"RUN", "COPY"} & {*names[names.index("USER") :]}


@named(SERVERS)
def test_the_server_image_is_built_from_files_in_the_build_context(path):
    ignored = path.with_name(f"{path.name}.dockerignore").read_text().split()
    sent = [name[1:] for name in ignored if name.startswith("!")]
    command = last(path, "RUN")
    used = re.findall(r"/source/([\w./]+)", command)
    assert {*used} == {*sent} == {"constraints.txt", "export/serving"}
    assert all((ROOT / name).exists() for name in sent)
    extra = "gpu" if path.suffix == ".gpu" else "cpu"
    assert f"export/serving[server,{extra},tokenizers]" in command


def test_gpu_image_installs_the_gpu_build_of_the_pinned_version():
    pins = (ROOT / "constraints.txt").read_text()
    script = re.search(r"sed -i '([^']*)'", last(SERVERS[1], "RUN"))[1]
    changed = subprocess.run(["sed", script], input=pins, capture_output=True, text=True, check=True).stdout
    (pin,) = re.findall(r"^onnxruntime==.*", pins, re.MULTILINE)
    assert re.findall(r"^onnxruntime(?:-gpu)?==.*", changed, re.MULTILINE) == [pin.replace("==", "-gpu==")]


def parse(arguments):
    parser = argparse.ArgumentParser()
    command_line.add_arguments(parser)
    return parser.parse_args(arguments)


@named(SERVERS)
def test_server_image_starts_the_command(path):
    program, *arguments = words(path, "ENTRYPOINT") + words(path, "CMD")
    project = tomllib.loads((KIT / "serving" / "pyproject.toml").read_text())["project"]
    assert project["scripts"][program] == "keras_transformer_serving.command_line:main"
    options = parse(arguments)
    assert (options.host, options.port, options.folders) == ("0.0.0.0", PORT, ["model=/bundle"])
    assert options.providers == (["CUDAExecutionProvider"] if path.suffix == ".gpu" else None)
    assert last(path, "EXPOSE") == str(PORT)


@named(SERVERS)
@pytest.mark.parametrize(("status", "expected"), [(200, True), (503, False)])
def test_server_image_is_healthy_once_the_server_is_ready(path, http_server, status, expected):
    port, paths = http_server(status, b"")
    assert healthy(path, port) is expected
    assert paths == ["/v2/health/ready"]


@named(COMPOSE)
def test_compose_files_are_read_only_and_local(path):
    document = yaml.safe_load(path.read_text())
    schema = get_builtin_schema("vendor.compose-spec")
    # Some versions of the schema name their draft in an unknown form.
    validator = jsonschema.validators.validator_for(schema, default=jsonschema.Draft7Validator)
    jsonschema.validate(document, schema, cls=validator)
    for service in document["services"].values():
        build = service["build"]
        context = (path.parent / build["context"]).resolve()
        assert (context / build.get("dockerfile", "Dockerfile")).is_file()
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
        assert all(volume.endswith(":ro") for volume in service["volumes"])


# Kubernetes

KUBERNETES = KIT / "kubernetes"


def manifests():
    """Return the manifests of the kustomization by kind."""
    names = yaml.safe_load((KUBERNETES / "cpu" / "kustomization.yaml").read_text())["resources"]
    files = {path.name for path in (KUBERNETES / "cpu").glob("*.yaml")} - {"kustomization.yaml"}
    assert {*names} == files
    found = [yaml.safe_load((KUBERNETES / "cpu" / name).read_text()) for name in names]
    return {each["kind"]: each for each in found}


def test_manifests_match_the_schemas_of_kubernetes():
    kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="108 MB of schemas")
    for manifest in manifests().values():
        kubernetes_validate.validate(manifest, desired_version="1.37", strict=True)
        manifest["spec"]["unknown"] = 1
        with pytest.raises(kubernetes_validate.ValidationError, match="unknown"):
            kubernetes_validate.validate(manifest, desired_version="1.37", strict=True)


def test_each_gpu_replica_has_one_gpu():
    overlay = yaml.safe_load((KUBERNETES / "gpu" / "kustomization.yaml").read_text())
    assert overlay["resources"] == ["../cpu"]
    (patch,) = overlay["patches"]
    assert patch["target"] == {"kind": "Deployment", "name": manifests()["Deployment"]["metadata"]["name"]}
    (change,) = yaml.safe_load(patch["patch"])
    *path, key = [part.replace("~1", "/") for part in change["path"].split("/")[1:]]
    place = manifests()["Deployment"]
    for part in path:
        place = place[int(part) if part.isdigit() else part]
    assert (change["op"], key, change["value"]) == ("add", "nvidia.com/gpu", "1")
    base = yaml.safe_load((KUBERNETES / "cpu" / "kustomization.yaml").read_text())
    assert [each["name"] for each in overlay["images"]] == [each["newName"] for each in base["images"]]


def test_manifests_select_the_pods_of_the_deployment():
    found = manifests()
    deployment = found["Deployment"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    for kind in ("Deployment", "PodDisruptionBudget"):
        assert found[kind]["spec"]["selector"]["matchLabels"] == labels
    assert found["Service"]["spec"]["selector"] == labels
    scaled = found["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]
    assert scaled == {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "name": deployment["metadata"]["name"],
    }
    assert "replicas" not in deployment["spec"]  # `kubectl apply` would reset the autoscaler's replicas
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    (port,) = container["ports"]
    assert port["containerPort"] == PORT
    assert found["Service"]["spec"]["ports"][0]["targetPort"] == port["name"]
    assert all(container[f"{probe}Probe"]["httpGet"]["port"] == port["name"] for probe in PROBES)


PROBES = {"startup": "/v2/health/ready", "liveness": "/v2/health/live", "readiness": "/v2/health/ready"}


def test_autoscaler_reads_a_metric_of_the_server():
    collected = Metrics().registry.collect()
    gauges = {metric.name for metric in collected if metric.type == "gauge"}
    (metric,) = manifests()["HorizontalPodAutoscaler"]["spec"]["metrics"]
    assert metric["pods"]["metric"]["name"] in gauges
    assert int(metric["pods"]["target"]["averageValue"]) == parse(["it"]).max_batch_size


def test_pods_are_probed_drained_and_unprivileged():
    pod = manifests()["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    options = parse(container["args"])
    assert {probe: container[f"{probe}Probe"]["httpGet"]["path"] for probe in PROBES} == PROBES
    assert (
        pod["terminationGracePeriodSeconds"]
        > container["lifecycle"]["preStop"]["sleep"]["seconds"] + options.timeout
    )
    assert pod["securityContext"]["runAsUser"] == USER
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert options.folders == words(SERVERS[0], "CMD")
    assert options.threads == int(container["resources"]["requests"]["cpu"])
    assert {*container["resources"]} == {"requests", "limits"}


# Triton

_TENSOR = {"name": (1, "string"), "data_type": (2, "int32")}
MODEL_CONFIG = {
    "Reshape": {"shape": (1, "repeated int64")},
    "Input": {
        **_TENSOR,
        "dims": (4, "repeated int64"),
        "reshape": (5, "Reshape"),
        "optional": (8, "bool"),
    },
    "Output": {**_TENSOR, "dims": (3, "repeated int64"), "reshape": (5, "Reshape")},
    "DynamicBatching": {
        "preferred_batch_size": (1, "repeated int32"),
        "max_queue_delay_microseconds": (2, "uint64"),
    },
    "WarmUpInput": {
        "data_type": (1, "int32"),
        "dims": (2, "repeated int64"),
        "input_data_file": (5, "string"),
    },
    "ModelWarmup": {
        "name": (1, "string"),
        "batch_size": (2, "uint32"),
        "inputs": (3, "map WarmUpInput"),
    },
    "ModelConfig": {
        "max_batch_size": (4, "int32"),
        "input": (5, "repeated Input"),
        "output": (6, "repeated Output"),
        "default_model_filename": (8, "string"),
        "dynamic_batching": (11, "DynamicBatching"),
        "model_warmup": (16, "repeated ModelWarmup"),
        "backend": (17, "string"),
    },
}
# The numbers of DataType, and the types of ONNX.
DATA_TYPES = {
    "TYPE_BOOL": (1, onnx.TensorProto.BOOL),
    "TYPE_INT32": (8, onnx.TensorProto.INT32),
    "TYPE_INT64": (9, onnx.TensorProto.INT64),
    "TYPE_FP16": (10, onnx.TensorProto.FLOAT16),
    "TYPE_FP32": (11, onnx.TensorProto.FLOAT),
}
ONNX_TYPES = dict(DATA_TYPES.values())


def triton_config(folder):
    """Return the configuration of a model, with enumeration values as numbers."""
    text = (folder / "config.pbtxt").read_text()
    text = re.sub(r"\bTYPE_\w+", lambda name: str(DATA_TYPES[name[0]][0]), text)
    return text_format.Parse(text, MESSAGES["message_classes"](MODEL_CONFIG)["ModelConfig"]())


def shapes(tensors, batched):
    """Return names, ONNX types and shapes that the graph must have, with -1 for dynamic sizes."""
    return {
        each.name: (
            ONNX_TYPES[each.data_type],
            [-1] * batched + list(each.reshape.shape if each.HasField("reshape") else each.dims),
        )
        for each in tensors
    }


def graph_shapes(values):
    return {
        value.name: (
            value.type.tensor_type.elem_type,
            [
                size.dim_value if size.HasField("dim_value") else -1
                for size in value.type.tensor_type.shape.dim
            ],
        )
        for value in values
    }


def write_export(folder, axes=("batch_size", "sequence_length"), weights=b""):
    """Write an export of a graph `model`: logits = ids as floats, sums (B,) and type (B,)."""
    config = {"pipeline": "TextClassification", "pad_id": 0, "end_id": None, "max_length": 4}
    graph = helper.make_graph(
        [
            helper.make_node("Cast", ["input_ids"], ["logits"], to=onnx.TensorProto.FLOAT),
            helper.make_node("ReduceSum", ["input_ids", "axis"], ["sums"], keepdims=0),
            helper.make_node("Identity", ["attention_mask"], ["mask"]),
        ],
        "model",
        [
            helper.make_tensor_value_info("input_ids", onnx.TensorProto.INT64, axes),
            helper.make_tensor_value_info("attention_mask", onnx.TensorProto.BOOL, axes),
        ],
        [
            helper.make_tensor_value_info("logits", onnx.TensorProto.FLOAT, axes),
            helper.make_tensor_value_info("sums", onnx.TensorProto.INT64, axes[:1]),
            helper.make_tensor_value_info("mask", onnx.TensorProto.BOOL, axes),
        ],
        [helper.make_tensor("axis", onnx.TensorProto.INT64, [1], [1])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    with bundle.new_parts(folder, ["onnx"], config, {"onnx": "1"}) as written:
        new, report = written["onnx"]
        (new / "model.onnx").write_bytes(model.SerializeToString())
        report["signatures"] = of_graphs(new)
        if weights:
            (new / "model.onnx_data").write_bytes(weights)
    return folder


@pytest.mark.parametrize("max_batch_size", [32, 0])
def test_triton_configuration_matches_the_loop(exported, tmp_path, max_batch_size):
    version = TRITON["make_repository"](
        exported, tmp_path / "models", name="es-en", max_batch_size=max_batch_size
    )
    assert version == tmp_path / "models" / "es-en" / "1"
    config = triton_config(version.parent)
    graph = onnx.load(version / config.default_model_filename).graph
    assert graph.name == "generate_greedy"
    defaults = {each.name for each in graph.initializer}
    assert (config.backend, config.max_batch_size) == ("onnxruntime", max_batch_size)
    assert config.HasField("dynamic_batching") == bool(max_batch_size)
    optional = {each.name for each in config.input if each.optional}
    inputs = graph_shapes(graph.input)
    # Triton's ONNX Runtime backend rejects optional inputs of batched models.
    assert optional == (set() if max_batch_size else inputs.keys() & defaults) != inputs.keys()
    batched = bool(max_batch_size)
    found = shapes(config.input, batched)
    assert found == {name: inputs[name] for name in found}
    assert found.keys() | defaults >= inputs.keys()
    assert shapes(config.output, batched) == graph_shapes(graph.output)


def test_triton_files_of_an_export_equal_the_generated_repository(exported, tmp_path):
    version = TRITON["make_repository"](exported, tmp_path / "models")
    model = {path.relative_to(version.parent): path for path in version.parent.rglob("*") if path.is_file()}
    found = {
        path.relative_to(exported / "serving/triton"): path for path in exported.glob("serving/triton/**/*")
    }
    found = {name: path.read_bytes() for name, path in found.items() if path.is_file()}
    assert found == {name: path.read_bytes() for name, path in model.items() if version not in path.parents}
    assert {path.name for path in version.iterdir()} == {"generate_greedy.onnx"}


def test_triton_configuration_matches_the_model(tmp_path):
    version = TRITON["make_repository"](write_export(tmp_path / "reviews"), tmp_path / "models")
    config = triton_config(version.parent)
    assert (version.parent.name, config.max_batch_size) == ("reviews", 32)
    graph = onnx.load(version / config.default_model_filename).graph
    assert shapes(config.input, True) == graph_shapes(graph.input)
    assert shapes(config.output, True) == graph_shapes(graph.output)
    (sums,) = [each for each in config.output if each.name == "sums"]
    assert list(sums.dims) == [1]  # Triton does not support the shape () after the batch
    session = onnxruntime.InferenceSession(version / "model.onnx")
    ids = np.array([[5, 6, 0]])
    (found,) = session.run(["sums"], {"input_ids": ids, "attention_mask": ids > 0})
    assert found.tolist() == [11]


@pytest.mark.parametrize("axes", [("batch_size", "sequence_length"), (1, 4)])
def test_triton_warm_up_requests_are_valid_inputs(tmp_path, axes):
    version = TRITON["make_repository"](write_export(tmp_path / "reviews", axes), tmp_path / "models")
    config = triton_config(version.parent)
    (request,) = config.model_warmup
    assert request.batch_size == 1
    assert {*request.inputs} == {each.name for each in config.input}
    batch = [1] if config.max_batch_size else []
    feed = {}
    for name, each in request.inputs.items():
        dtype = onnx.helper.tensor_dtype_to_np_dtype(ONNX_TYPES[each.data_type])
        content = (version.parent / "warmup" / each.input_data_file).read_bytes()
        feed[name] = np.frombuffer(content, dtype).reshape([*batch, *each.dims])
    assert feed["attention_mask"].all()
    onnxruntime.InferenceSession(version / "model.onnx").run(None, feed)


@pytest.mark.parametrize("axes", [(1, "sequence_length"), (None, 4)])
def test_triton_batches_only_models_with_a_dynamic_first_axis(tmp_path, axes):
    version = TRITON["make_repository"](write_export(tmp_path / "reviews", axes), tmp_path / "models")
    config = triton_config(version.parent)
    batched = axes[0] is None
    assert bool(config.max_batch_size) is config.HasField("dynamic_batching") is batched
    graph = onnx.load(version / "model.onnx").graph
    assert shapes(config.input, batched) == graph_shapes(graph.input)


def test_versions_of_one_model_have_one_configuration(tmp_path):
    export, models = write_export(tmp_path / "reviews"), tmp_path / "models"
    for version in (1, 2):
        TRITON["make_repository"](export, models, version=version)
    assert sorted(path.name for path in (models / "reviews").iterdir()) == [
        "1",
        "2",
        "config.pbtxt",
        "warmup",
    ]
    with pytest.raises(FileExistsError, match="is not changed"):
        TRITON["make_repository"](export, models, version=2)
    with pytest.raises(ValueError, match=r"equal config\.pbtxt"):
        TRITON["make_repository"](export, models, version=3, max_batch_size=8)
    assert sorted(path.name for path in (models / "reviews").iterdir()) == [
        "1",
        "2",
        "config.pbtxt",
        "warmup",
    ]
    Bundle(export).check()


def test_a_version_includes_the_weights_file_beside_the_graph(tmp_path):
    export = write_export(tmp_path / "large", weights=b"weights")
    version = TRITON["make_repository"](export, tmp_path / "models")
    assert (version / "model.onnx_data").read_bytes() == b"weights"


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"name": "../es"}, "`name` must consist of"),
        ({"name": ""}, "`name` must consist of"),
        ({"version": 0}, "`version` must be an integer of at least 1. Received: 0"),
        ({"version": True}, "`version` must be"),
        ({"max_batch_size": -1}, "`max_batch_size` must be an integer of at least 0. Received: -1"),
        ({"precision": "int8"}, "`precision` must be one of"),
    ],
)
def test_invalid_arguments_leave_no_model(tmp_path, options, error):
    export = write_export(tmp_path / "reviews")
    with pytest.raises(ValueError, match=re.escape(error)):
        TRITON["make_repository"](export, tmp_path / "models", **options)
    assert not (tmp_path / "models").exists()


@pytest.mark.parametrize("text", [False, True])
def test_folders_without_graphs_leave_no_model(tmp_path, text):
    (tmp_path / "run").mkdir()
    export = tmp_path / "phones"
    with bundle.new_parts(export, ["litert"], {"pipeline": "TextClassification"}, {}) as written:
        (written["litert"][0] / "model.tflite").write_bytes(b"")
    for folder, error in (
        (tmp_path / "run", "be an export"),
        (export, "have ONNX graphs, which Triton runs.*with litert"),
    ):
        with pytest.raises(FileNotFoundError, match=f"`bundle` must {error}"):
            TRITON["make_repository"](folder, tmp_path / "models", text=text)
    assert not (tmp_path / "models").exists()


def test_a_damaged_graph_leaves_no_model(tmp_path):
    export = write_export(tmp_path / "reviews")
    (export / "onnx" / "model.onnx").write_bytes(b"")
    with pytest.raises(ValueError, match="is damaged"):
        TRITON["make_repository"](export, tmp_path / "models")
    assert not (tmp_path / "models").exists()


def test_a_repository_inside_the_export_is_rejected(tmp_path):
    export = write_export(tmp_path / "reviews")
    with pytest.raises(ValueError, match="must not be in the export"):
        TRITON["make_repository"](export, export / "models")


def test_the_command_names_the_invalid_argument(tmp_path, capsys):
    export = write_export(tmp_path / "reviews")
    arguments = [str(export), str(tmp_path / "models")]
    TRITON["main"]([*arguments, "--name", "es"])
    with pytest.raises(SystemExit):
        TRITON["main"]([*arguments, "--name", "es", "--version", "0"])
    assert "`version` must be" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        TRITON["main"]([str(tmp_path / "missing"), str(tmp_path / "models")])
    assert "must be an export" in capsys.readouterr().err
