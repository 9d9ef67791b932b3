"""Hand-made exports for the server: a classifier, a generating model and one that samples; and calls of an ASGI app."""

import asyncio
import contextlib
import json

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from keras_transformer_serving.server import create_app
from keras_transformer_serving.text.byte import ByteTokenizer

INT, FLOAT = TensorProto.INT64, TensorProto.FLOAT
ROLES = {"pad": "<pad>", "end": "</s>", "unknown": "<unk>", "start": "<s>", "mask": "<mask>"}
TOKENIZER = json.dumps(
    {"settings": {"special_tokens": ROLES, "extra_tokens": [], "special_tokens_in_text": False}}
).encode()
OFFSET = len(ROLES)
VOCABULARY = OFFSET + 256
STEPS, SOURCE = 12, 40
SHARED = {
    "tokenizer_class": "ByteTokenizer",
    "tokenizer_file": "bytes.json",
    "vocabulary_size": VOCABULARY,
    "pad_id": 0,
    "end_id": 1,
    "start_id": None,
}
CLASSIFIER = {
    **SHARED,
    "pipeline": "TextClassification",
    "num_segments": 2,
    "max_length": SOURCE,
    "special_ids": None,
    "symmetric": False,
    "labels": ["bad", "fair", "good"],
    "problem_type": "single_label_classification",
    "threshold": 0.5,
    "long_texts": "refuse",
}
GENERATOR = {
    **SHARED,
    "pipeline": "TextGeneration",
    "add_start": False,
    "special_tokens": False,
    "anchor_id": OFFSET + ord("a"),
    "generation": {"sampler": "greedy"},
    "constraints": [],
    "max_new_tokens": STEPS,
    "max_source_tokens": SOURCE,
}
SAMPLER = {**GENERATOR, "generation": {"sampler": "sample", "seed": 3, "temperature": 1.0, "num_return": 1}}


def classifier():
    """logits = (sum of ids + 10 · segments) modulo 5, 7 and 11."""
    nodes = [
        ("Mul", ["input_ids", "attention_mask"], "real"),
        ("Mul", ["token_type_ids", "ten"], "segments"),
        ("Add", ["real", "segments"], "added"),
        ("ReduceSum", ["added", "axis"], "sum"),
        ("Mod", ["sum", "moduli"], "remainder"),
        ("Cast", ["remainder"], "logits", {"to": FLOAT}),
        ("Softmax", ["logits"], "probabilities"),
    ]
    constants = {"ten": np.array([10]), "axis": np.array([1]), "moduli": np.array([[5, 7, 11]])}
    names = ("input_ids", "attention_mask", "token_type_ids")
    inputs = [helper.make_tensor_value_info(name, INT, ["batch_size", "length"]) for name in names]
    outputs = [
        helper.make_tensor_value_info(name, FLOAT, ["batch_size", 3]) for name in ("logits", "probabilities")
    ]
    return model(nodes, inputs, outputs, constants)


def loop(noise=False):
    """Token k after a prompt of n bytes that ends in x is x + k(n − 1) + k(k − 1)/2 modulo 256, or an end.

    A byte is an end if it is 5 modulo 16. Noise adds its first number times 100 to x.
    """
    steps = np.arange(1, STEPS + 1)
    constants = {
        "zero": np.array([0]),
        "one": np.array([1]),
        "axis": np.array([1]),
        "offset": np.array([OFFSET]),
        "k": steps[None],
        "triangle": (steps * (steps - 1) // 2)[None],
        "index": (steps - 1)[None],
        "bytes": np.array([256]),
        "sixteen": np.array([16]),
        "five": np.array([5]),
        "half": np.array([-0.5], "float32"),
        "max_new_tokens": np.array([STEPS]),
        "min_new_tokens": np.array([0]),
        "hundred": np.array([100], "float32"),
    }
    nodes = [
        ("Equal", ["input_ids", "zero"], "is_pad"),
        ("Not", ["is_pad"], "is_real"),
        ("Cast", ["is_real"], "real", {"to": INT}),
        ("ReduceSum", ["real", "axis"], "n"),  # (B, 1)
        ("CumSum", ["real", "axis_0d"], "place"),
        ("Equal", ["place", "n"], "at_last"),
        ("And", ["at_last", "is_real"], "is_last"),
        ("Cast", ["is_last"], "last", {"to": INT}),
        ("Mul", ["input_ids", "last"], "last_id"),
        ("ReduceSum", ["last_id", "axis"], "id"),
        ("Sub", ["id", "offset"], "x"),
        ("Sub", ["n", "one"], "before"),
        ("Mul", ["before", "k"], "linear"),
        ("Add", ["linear", "triangle"], "grown"),
        ("Add", ["grown", "shifted" if noise else "x"], "raw"),
        ("Mod", ["raw", "bytes"], "byte"),
        ("Mod", ["byte", "sixteen"], "remainder"),
        ("Equal", ["remainder", "five"], "may_end"),
        ("Reshape", ["max_new_tokens", "column"], "limit"),
        ("Reshape", ["min_new_tokens", "column"], "least"),
        ("Less", ["index", "least"], "early"),
        ("Not", ["early"], "late"),
        ("And", ["may_end", "late"], "ends"),
        ("Cast", ["ends"], "end", {"to": INT}),
        ("CumSum", ["end", "axis_0d"], "ended"),
        ("Sub", ["ended", "end"], "ended_before"),
        ("Equal", ["ended_before", "zero"], "open"),
        ("Less", ["index", "limit"], "inside"),
        ("Greater", ["n", "zero"], "not_empty"),
        ("And", ["open", "inside"], "both"),
        ("And", ["both", "not_empty"], "generated"),
        ("Add", ["byte", "offset"], "byte_id"),
        ("Where", ["ends", "one", "byte_id"], "token"),
        ("Where", ["generated", "token", "zero"], "ids"),
        ("Cast", ["generated"], "counted", {"to": INT}),
        ("ReduceSum", ["counted", "axis"], "lengths", {"keepdims": 0}),
        ("Cast", ["lengths"], "floats", {"to": FLOAT}),
        ("Mul", ["floats", "half"], "scores"),
    ]
    constants |= {"axis_0d": np.array(1), "column": np.array([-1, 1])}
    inputs = [helper.make_tensor_value_info("input_ids", INT, ["batch_size", "length"])]
    if noise:
        inputs.append(helper.make_tensor_value_info("noise", FLOAT, ["batch_size", 1, STEPS]))
        inputs.append(helper.make_tensor_value_info("temperature", FLOAT, ["batch_or_1"]))
        constants["temperature"] = np.ones(1, "float32")
        nodes[11:11] = [
            ("ReduceMax", ["noise", "noise_axes"], "noise_of_row", {"keepdims": 0}),
            ("Mul", ["noise_of_row", "hundred"], "scaled"),
            ("Cast", ["scaled"], "shift", {"to": INT}),
            ("Reshape", ["shift", "column"], "shift_column"),
            ("Add", ["x", "shift_column"], "shifted"),
        ]
        constants["noise_axes"] = np.array([1, 2])
    options = ("max_new_tokens", "min_new_tokens")
    inputs += [helper.make_tensor_value_info(name, INT, ["batch_or_1"]) for name in options]
    outputs = [
        helper.make_tensor_value_info("ids", INT, ["batch_size", STEPS]),
        helper.make_tensor_value_info("lengths", INT, ["batch_size"]),
        helper.make_tensor_value_info("scores", FLOAT, ["batch_size"]),
    ]
    return model(nodes, inputs, outputs, constants)


def decoder():
    """One step of `loop`: the logits are largest for the next token."""
    constants = {
        "offset": np.array([OFFSET]),
        "bytes": np.array([256]),
        "sixteen": np.array([16]),
        "five": np.array([5]),
        "one": np.array([1]),
        "every": np.arange(VOCABULARY),
        "last_axis": np.array([-1]),
        "to_cache": np.array([0, 1, -1, 1]),
    }
    nodes = [
        ("Sub", ["input_ids", "offset"], "x"),
        ("Add", ["x", "position_ids"], "raw"),
        ("Mod", ["raw", "bytes"], "byte"),
        ("Mod", ["byte", "sixteen"], "remainder"),
        ("Equal", ["remainder", "five"], "ends"),
        ("Add", ["byte", "offset"], "byte_id"),
        ("Where", ["ends", "one", "byte_id"], "token"),
        ("Unsqueeze", ["token", "last_axis"], "column"),
        ("Equal", ["column", "every"], "is_next"),
        ("Cast", ["is_next"], "logits", {"to": FLOAT}),
        ("Cast", ["input_ids"], "entries", {"to": FLOAT}),
        ("Reshape", ["entries", "to_cache"], "new"),
        ("Concat", ["past_key_values.0.key", "new"], "present.0.key", {"axis": 2}),
        ("Concat", ["past_key_values.0.value", "new"], "present.0.value", {"axis": 2}),
    ]
    names = ("input_ids", "attention_mask", "position_ids")
    inputs = [helper.make_tensor_value_info(name, INT, ["batch_size", None]) for name in names]
    cache = ["batch_size", 1, "past", 1]
    inputs += [
        helper.make_tensor_value_info(f"past_key_values.0.{part}", FLOAT, cache) for part in ("key", "value")
    ]
    outputs = [helper.make_tensor_value_info("logits", FLOAT, [None, None, VOCABULARY])]
    outputs += [
        helper.make_tensor_value_info(f"present.0.{part}", FLOAT, [None, 1, None, 1])
        for part in ("key", "value")
    ]
    return model(nodes, inputs, outputs, constants)


def array_graph(name):
    """A classifier of images (2, 2, 1), by their mean, or of nodes (T, 1): the logits are (0, 2 · value − 1)."""
    nodes = [
        ("ReduceMean", ["pixel_values", "axes"], "value", {"keepdims": 0}),
        ("Reshape", ["value", "column"], "entries"),
        ("Mul", ["entries", "weights"], "scaled"),
        ("Add", ["scaled", "bias"], "logits"),
        ("Softmax", ["logits"], "probabilities"),
    ]
    constants = {
        "axes": np.array([1, 2, 3]),
        "column": np.array([-1, 1]),
        "weights": np.array([0, 2], "float32"),
        "bias": np.array([0, -1], "float32"),
    }
    if name == "images":
        inputs = [helper.make_tensor_value_info("pixel_values", FLOAT, ["batch_size", 2, 2, 1])]
        names = ("logits", "probabilities")
        outputs = [helper.make_tensor_value_info(each, FLOAT, ["batch_size", 2]) for each in names]
        return model(nodes, inputs, outputs, constants)
    constants = {each: constants[each] for each in ("weights", "bias")}
    inputs = [
        helper.make_tensor_value_info("nodes", FLOAT, ["batch_size", "num_nodes", 1]),
        helper.make_tensor_value_info("edges", INT, ["batch_size", "num_edges", 2]),
    ]
    outputs = [helper.make_tensor_value_info("logits", FLOAT, ["batch_size", "num_nodes", 2])]
    return model([("Mul", ["nodes", "weights"], "scaled"), nodes[3]], inputs, outputs, constants)


def model(nodes, inputs, outputs, constants):
    made = [
        helper.make_node(operator, names, [output], **(options[0] if options else {}))
        for operator, names, output, *options in nodes
    ]
    weights = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(made, "model", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


PREDICT = "/v1/models/{}:predict"
INFER = "/v2/models/{}/infer"
_GRAPHS = {
    "classifier": (CLASSIFIER, {"model.onnx": classifier}),
    "generator": (GENERATOR, {"model.onnx": decoder, "generate_greedy.onnx": loop}),
    "sampler": (SAMPLER, {"model.onnx": decoder, "generate_sample.onnx": lambda: loop(noise=True)}),
}


def write_export(small, folder, name, **changes):
    """Write the export of this name; `changes` replace settings."""
    config, graphs = _GRAPHS[name]
    tokenizer = ByteTokenizer(TOKENIZER)
    texts = ["a", "é"]
    examples = {
        "texts": texts,
        "ids": [tokenizer.tokenize(text) for text in texts],
        "decoded": texts,
    }

    def write_shared(new):
        (new / "tokenizer").mkdir()
        (new / "tokenizer" / "bytes.json").write_bytes(TOKENIZER)
        (new / "tokenizer" / "examples.json").write_text(json.dumps(examples))

    contents = {file: graph().SerializeToString() for file, graph in graphs.items()}
    small.write(folder, config={**config, **changes}, contents=contents, write_shared=write_shared)
    return folder


async def call(app, method, path, body=b"", headers=(), disconnect=None, chunks=None):
    """Return the status, headers and content of a request to an ASGI app.

    `body` is JSON unless it is bytes. `disconnect` is an event after which the client is gone; `chunks` is the body as
    an asynchronous iterator.
    """
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    sent, done, messages = False, asyncio.Event(), []

    async def receive():
        nonlocal sent
        if chunks is not None:
            async for chunk in chunks:
                return {"type": "http.request", "body": chunk, "more_body": True}
        if not sent:
            sent = True
            return {"type": "http.request", "body": content if chunks is None else b"", "more_body": False}
        await (done if disconnect is None else disconnect).wait()
        return {"type": "http.disconnect"}

    async def send(message):
        messages.append(message)
        if message["type"] == "http.response.body" and not message.get("more_body"):
            done.set()

    raw = path.encode()
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": method,
        "path": path,
        "raw_path": raw,
        "query_string": b"",
        "root_path": "",
        "scheme": "http",
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers],
        "server": ("test", 80),
        "client": ("test", 1),
    }
    await app(scope, receive, send)
    head = messages[0]
    found = {name.decode(): value.decode() for name, value in head["headers"]}
    return head["status"], found, b"".join(message.get("body", b"") for message in messages[1:])


async def json_call(app, method, path, body=b"", **options):
    """Return the status and the JSON value of a request."""
    status, _, content = await call(app, method, path, body, **options)
    return status, json.loads(content)


@contextlib.asynccontextmanager
async def started(app):
    """Run the lifespan of an app, from when its models are loaded."""
    async with app.router.lifespan_context(app):
        await asyncio.wait_for(app.state.server.started.wait(), 30)
        yield app


def run(exports, test, *names, **options):
    """Run an asynchronous test with an app that serves exports."""
    limits = options.pop("limits", None)

    async def main():
        app = create_app({name: exports[name] for name in names or exports}, limits, **options)
        async with started(app):
            return await test(app)

    return asyncio.run(main())


def predict(app, name, instances, **others):
    return json_call(app, "POST", PREDICT.format(name), {"instances": instances, **others})


def batch_sizes(app):
    metric = app.state.server.metrics.batch_size.collect()[0]
    return {
        sample.name: sample.value for sample in metric.samples if sample.name.endswith(("_count", "_sum"))
    }


def tensor(name, data, datatype="BYTES", shape=None):
    return {"name": name, "datatype": datatype, "shape": shape or [len(data)], "data": data}
