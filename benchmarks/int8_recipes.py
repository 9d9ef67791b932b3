"""Recipes of int8 on real weights: how close embeddings stay to float32, and their processor time.

The model is a folder of sentence-transformers as it was published, such as all-MiniLM-L6-v2; its float32 graph is that
of this package. The recipes are ONNX Runtime's `quantize_dynamic`, with one scale for each matrix or for each of its
columns, of 7 or 8 bits, ONNX Runtime's `MatMulNBits`, which has scales for blocks of the activations, too, and this
package's, with and without the examples that it divides channels by. The texts are from the test splits of SST-2,
Multi30k and spa-eng; they are embedded in batches of 8 and one by one, on one thread, in turns.

    .venv/bin/python benchmarks/int8_recipes.py --model FOLDER --data FOLDER     # writes results/int8_recipes.json
"""

import argparse
import gzip
import os
import pathlib
import tempfile
import time
from collections.abc import Callable
from typing import Any

import measuring
import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

TEXTS_OF_EACH, ROUNDS, ONE_BY_ONE, BLOCK = 60, 5, 40, 32
FLOAT32, TODAY = "float32", "one scale, 7 bits"


def main() -> None:
    """Measure all recipes and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="a folder of sentence-transformers")
    parser.add_argument("--data", required=True, help="the folder of SST-2, Multi30k and spa-eng")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = measured(
            pathlib.Path(options.model), texts(pathlib.Path(options.data)), pathlib.Path(folder)
        )
    command = "python benchmarks/int8_recipes.py --model FOLDER --data FOLDER"
    measuring.write_result("int8_recipes", {**measuring.machine(), "command": command, **results})


def sources(data: pathlib.Path) -> tuple[list[str], list[str], list[str]]:
    """Return real texts of three kinds: reviews, captions and sentences."""
    reviews = (data / "sst2" / "stsa.binary.test").read_text().splitlines()
    with gzip.open(data / "multi30k" / "test_2016_flickr.en.gz", "rt", encoding="utf-8") as file:
        captions = file.read().splitlines()
    with gzip.open(data / "spa-eng" / "spa.txt.gz", "rt", encoding="utf-8") as file:
        sentences = [*dict.fromkeys(line.split("\t")[0] for line in file)]
    return [text.split(" ", 1)[1] for text in reviews], captions, sentences


def texts(data: pathlib.Path) -> list[str]:
    """Return the first texts of each kind."""
    reviews, captions, sentences = sources(data)
    return [*reviews[:TEXTS_OF_EACH], *captions[:TEXTS_OF_EACH], *sentences[5000::1500][:TEXTS_OF_EACH]]


def measured(model: pathlib.Path, sentences: list[str], folder: pathlib.Path) -> dict[str, Any]:
    """Return the closeness, processor times and size of each recipe."""
    import onnx

    import keras_transformer_serving as serving
    from keras_transformer import export, pipelines
    from keras_transformer_serving import closeness

    pipeline = pipelines.from_hugging_face(model)
    export.onnx(pipeline, folder / "export")
    graph = onnx.load(next((folder / "export" / "onnx").rglob("model.onnx")))
    examples = pipeline.example_inputs()["forward"]
    embed, sizes = {}, {}
    for name, convert in recipes(examples).items():
        content = convert(graph).SerializeToString()
        sizes[name], embed[name] = len(content), embedding(serving.Bundle(folder / "export"), content)
    expected = np.asarray(embed[FLOAT32](sentences, batch_size=8))
    times: dict[str, dict[str, list[float]]] = {
        name: {"batches of 8": [], "one by one": []} for name in embed
    }
    for _ in range(ROUNDS):
        for name, function in embed.items():
            times[name]["batches of 8"].append(processor_time(lambda f=function: f(sentences, batch_size=8)))
            times[name]["one by one"].append(
                processor_time(lambda f=function: [f(text) for text in sentences[:ONE_BY_ONE]])
            )
    rows = {}
    for name, function in embed.items():
        found = np.asarray(function(sentences, batch_size=8))
        pair = closeness.Pair({}, {"embedding": expected}, {"embedding": found})
        counts = {"batches of 8": len(sentences), "one by one": ONE_BY_ONE}
        milliseconds = {
            case: [round(seconds / counts[case] * 1e3, 3) for seconds in each]
            for case, each in times[name].items()
        }
        rows[name] = {
            **{key: round(value, 5) for key, value in closeness.vectors([pair], "embedding").items()},
            "megabytes": round(sizes[name] / 1e6, 1),
            "processor_milliseconds_per_text": {case: min(each) for case, each in milliseconds.items()},
            "rounds": milliseconds,
        }
    return {"texts": len(sentences), "parameters": pipeline.model.count_params(), "recipes": rows}


def recipes(examples: list[Any]) -> dict[str, Callable[[Any], Any]]:
    """Return the functions that convert a graph, by name."""
    from keras_transformer.export.to_onnx.quantization import to_int8

    return {
        FLOAT32: lambda graph: graph,
        TODAY: lambda graph: dynamic(graph, per_channel=False, reduce_range=True),
        "one scale, 8 bits": lambda graph: dynamic(graph, per_channel=False, reduce_range=False),
        "scales of columns, 7 bits": lambda graph: dynamic(graph, per_channel=True, reduce_range=True),
        "scales of columns, 8 bits": lambda graph: dynamic(graph, per_channel=True, reduce_range=False),
        "MatMulNBits, 8 bits": lambda graph: blockwise(graph),
        "ours without examples": lambda graph: to_int8(graph),
        "ours": lambda graph: to_int8(graph, examples=examples),
    }


def dynamic(graph: Any, **options: Any) -> Any:
    """Quantise a graph by ONNX Runtime's `quantize_dynamic`."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "model.onnx"
        onnx.save_model(graph, path)
        quantize_dynamic(path, path, weight_type=QuantType.QInt8, **options)
        return onnx.load(path)


def blockwise(graph: Any) -> Any:
    """Replace multiplications by matrices by `MatMulNBits` with activations in int8 (accuracy level 4)."""
    import onnx
    from onnx import helper, numpy_helper

    copy = type(graph)()
    copy.CopyFrom(graph)
    matrices = {each.name: each for each in copy.graph.initializer if len(each.dims) == 2}
    for node in copy.graph.node:
        if node.op_type != "MatMul" or node.input[1] not in matrices:
            continue
        name = node.input[1]
        rows, columns = matrices[name].dims
        blocks = numpy_helper.to_array(matrices[name]).T.reshape(columns, -1, BLOCK)  # no padding is needed
        scales = np.abs(blocks).max(axis=2) / 127
        integers = (np.rint(blocks / scales[..., None]) + 128).astype("uint8")
        copy.graph.initializer.append(numpy_helper.from_array(integers, f"{name}_integers"))
        copy.graph.initializer.append(numpy_helper.from_array(scales.reshape(-1), f"{name}_scales"))
        sizes = {"K": rows, "N": columns, "bits": 8, "block_size": BLOCK, "accuracy_level": 4}
        inputs = [node.input[0], f"{name}_integers", f"{name}_scales"]
        node.CopyFrom(
            helper.make_node(
                "MatMulNBits", inputs, [*node.output], node.name, domain="com.microsoft", **sizes
            )
        )
    read = {name for node in copy.graph.node for name in node.input}
    for each in [each for each in copy.graph.initializer if each.name not in read]:
        copy.graph.initializer.remove(each)
    if not any(each.domain == "com.microsoft" for each in copy.opset_import):
        copy.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    return copy


def embedding(bundle: Any, content: bytes) -> Any:
    """Return the exported pipeline with another graph."""
    import keras_transformer_serving as serving
    from keras_transformer_serving.forward import ForwardGraph
    from keras_transformer_serving.parity import exported_tokenizer
    from keras_transformer_serving.pipelines import pipeline_of

    sessions = serving.Sessions(lambda _: content, threads=1)
    return pipeline_of(ForwardGraph(sessions), bundle.config, exported_tokenizer(bundle))


def processor_time(function: Callable[[], Any]) -> float:
    """Return the seconds of processor time of a call."""
    start = time.process_time()
    function()
    return time.process_time() - start


if __name__ == "__main__":
    main()
