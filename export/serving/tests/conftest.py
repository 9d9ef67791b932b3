"""A small export with a hand-made graph, written in milliseconds."""

import io
import os
import threading
import types

import numpy as np
import onnx
import pytest
from onnx import helper
from served_exports import write_export

from keras_transformer_serving import bundle

CONFIG = {
    "pipeline": "TextClassification",
    "pad_id": 0,
    "vocabulary_size": 9,
    "num_segments": 2,
    "max_length": 4,
    "tokenizer_file": "vocab.model",
}
INT, FLOAT = onnx.TensorProto.INT64, onnx.TensorProto.FLOAT


def graph():
    """logits = ids · mask + 10 · segments."""
    row = ["batch_size", "sequence_length"]
    nodes = [
        helper.make_node("Mul", ["input_ids", "attention_mask"], ["masked"]),
        helper.make_node("Mul", ["token_type_ids", "ten"], ["segments"]),
        helper.make_node("Add", ["masked", "segments"], ["sum"]),
        helper.make_node("Cast", ["sum"], ["logits"], to=FLOAT),
    ]
    names = ("input_ids", "attention_mask", "token_type_ids")
    inputs = [helper.make_tensor_value_info(name, INT, row) for name in names]
    outputs = [helper.make_tensor_value_info("logits", FLOAT, row)]
    ten = helper.make_tensor("ten", INT, [], np.array([10]).tobytes(), raw=True)
    return helper.make_model(
        helper.make_graph(nodes, "model", inputs, outputs, [ten]),
        opset_imports=[helper.make_opsetid("", 18)],
        ir_version=10,
    )


def examples():
    ids = np.array([[5, 6, 0], [7, 0, 0]])
    sides = {
        "inputs": {"input_ids": ids, "attention_mask": 1 * (ids > 0), "token_type_ids": 0 * ids},
        "outputs": {"logits": ids.astype("float32")},
    }
    file = io.BytesIO()
    np.savez(
        file, **{f"0/forward/{side}/{name}": sides[side][name] for side in sides for name in sides[side]}
    )
    return file.getvalue()


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk():
    """Skip fsync, as the operating system does not crash in these tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(scope="session")
def small():
    """`write(folder, part, **options)` writes a part, "onnx" or "saved_model/it/1"; `graph` is the ONNX graph."""
    content = {
        "onnx": {"model.onnx": graph().SerializeToString(), "examples.npz": examples()},
        "saved_model": {"saved_model.pb": b"graph", "variables/variables.index": b"weights"},
    }

    def write(folder, part="onnx", config=CONFIG, contents=None, **options):
        def write_shared(new):
            (new / "tokenizer").mkdir()
            (new / "tokenizer" / "vocab.model").write_bytes(b"pieces")

        def write_derived(new, reports):
            listed = ", ".join(reports).encode()
            configs = {f"serving/{each.split('/')[0]}/config" for each in reports}
            for name in ("README.md", "serving/models.config", *configs):
                (new / name).parent.mkdir(parents=True, exist_ok=True)
                (new / name).write_bytes(listed)

        options = {"write_shared": write_shared, "write_derived": write_derived, **options}
        with bundle.new_parts(folder, [part], config, {"onnx": "1"}, **options) as written:
            new, report = written[part]
            for name, bytes_ in {**content[part.split("/")[0]], **(contents or {})}.items():
                (new / name).parent.mkdir(exist_ok=True)
                (new / name).write_bytes(bytes_)
            (new / "assets").mkdir()
            report.update(tolerance=1e-4, graphs={"forward": {"rows": 2, "largest_difference": 0.0}})

    return types.SimpleNamespace(write=write, graph=graph())


@pytest.fixture(scope="session")
def exports(small, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exports")
    names = ("classifier", "generator", "sampler", "copier", "translator")
    return {name: write_export(small, folder / name, name) for name in names}


@pytest.fixture
def blocked(monkeypatch):
    """Block computation until the returned event is set."""
    from keras_transformer_serving.server import batching

    free, compute = threading.Event(), batching.compute_each
    monkeypatch.setattr(batching, "compute_each", lambda *batch: free.wait(30) and compute(*batch))
    yield free
    free.set()
