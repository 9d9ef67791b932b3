"""ONNX graphs from strings to strings: the tokenizer and detokenizer around the generation loop."""

import importlib.util
import json
import pathlib
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from keras_transformer.export.tokenizer_examples import tokenizer_examples
from keras_transformer_serving.graphs import loop_name
from keras_transformer_serving.text import tokenizer_of
from keras_transformer_serving.text.sentence_piece import SentencePieceTokenizer

TEXT_GRAPH = "text_to_text"
_DOMAIN = "ai.onnx.contrib"  # of the operators of onnxruntime-extensions
_CHECK = pathlib.Path(__file__).with_name("text_graph_check.py")


class _Nodes:
    """The nodes of a graph under construction, and its constants.

    Args:
        prefix: of the names of all values.
    """

    def __init__(self, prefix: str) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self._prefix = prefix

    def add(self, operation: str, *inputs: str, outputs: int = 1, name: str = "", **attributes: Any) -> Any:
        """Add a node, and return the name of its output, or the names of several."""
        import onnx

        names = [name or f"{self._prefix}/{len(self.nodes)}:{place}" for place in range(outputs)]
        self.nodes.append(onnx.helper.make_node(operation, inputs, names, **attributes))
        return names[0] if outputs == 1 else names

    def constant(self, value: Any, dtype: Any = np.int64) -> str:
        """Add a constant, and return its name."""
        import onnx

        name = f"{self._prefix}/constant:{len(self.constants)}"
        self.constants.append(onnx.numpy_helper.from_array(np.array(value, dtype), name))
        return name


def check(pipeline: Any) -> None:
    """Raise unless a pipeline can be exported as a graph from strings to strings.

    Raises:
        ImportError: if onnxruntime-extensions is not installed.
        ValueError: if its tokenizer or sampler has no such graph.
    """
    if (
        importlib.util.find_spec("onnxruntime_extensions") is None
    ):  # an import next to TensorFlow's would crash
        raise ImportError(
            "`text_graph` needs onnxruntime_extensions, of the extra [text-graph]: pip install onnxruntime-extensions"
        )
    config, needs = pipeline.export_config(), "`text_graph` needs"
    if not pipeline.generates or config["start_id"] is None:
        raise ValueError(f"{needs} an encoder–decoder. Received: a {config['pipeline']}")
    expected, tokenizer = SentencePieceTokenizer.__name__, type(pipeline.tokenizer).__name__
    if tokenizer != expected:
        raise ValueError(f"{needs} a {expected}. Received: a {tokenizer}")
    sampler = config["generation"]["sampler"]
    if sampler == "sample":
        raise ValueError(f"{needs} a sampler without noise. Received: the sampler {sampler!r}")


def write(pipeline: Any, folder: pathlib.Path, examples: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """Write the graph from "text" to "generated_text" and "error", strings (B,), beside the loop, and check it.

    The other inputs and outputs are those of the loop, and the tokenizer's "tokens" and "token_offsets". A text that is
    too long has an error and an empty output. The operators end a text at its first null character.

    Args:
        pipeline: the pipeline.
        folder: the folder of the loop's graph; weights in a separate file are those of the loop.
        examples: "texts", and their "answers" by the pipeline.

    Returns:
        The report: the number of "texts" and of "tokenizer_examples" that were compared.

    Raises:
        ValueError: if ids or texts differ from the pipeline's.
    """
    import onnx

    config, tokenizer = pipeline.export_config(), pipeline.tokenizer
    loop = onnx.load_model(folder / f"{loop_name(config)}.onnx", load_external_data=False)
    path = folder / f"{TEXT_GRAPH}.onnx"
    onnx.save_model(_with_texts(loop, tokenizer.model_bytes, config), path)
    tokenized = tokenizer_examples(tokenizer)
    rows = [row for row, text in enumerate(tokenized["texts"]) if "\0" not in text]
    answers = [answer if isinstance(answer, str) else answer[0] for answer in examples["answers"]]
    cases = {
        "texts": examples["texts"],
        "answers": answers,
        "tokenizer": {key: [tokenized[key][row] for row in rows] for key in ("texts", "ids")},
    }
    # In a process of its own: the operators crash where TensorFlow is imported.
    command = [sys.executable, "-P", str(_CHECK), str(path)]
    process = subprocess.run(command, input=json.dumps(cases), capture_output=True, text=True)
    if process.returncode != 0:
        reasons = [f"a process that ended with {process.returncode}", *process.stderr.strip().splitlines()]
        raise ValueError(
            f"`text_graph` must give the ids and texts of the pipeline. Export without it. Received: {reasons[-1]}"
        )
    return {"texts": len(answers), "tokenizer_examples": len(rows)}


def _with_texts(loop: Any, tokenizer_model: bytes, config: Mapping[str, Any]) -> Any:
    """Return the model of a loop with the tokenizer before and the detokenizer after it."""
    import onnx
    from onnx import helper

    before, after = _Nodes("tokenizer"), _Nodes("detokenizer")
    _tokenize(before, tokenizer_model, config)
    _detokenize(after, tokenizer_model, config)
    graph = loop.graph
    graph.name = TEXT_GRAPH
    nodes = [*before.nodes, *graph.node, *after.nodes]
    inputs = [value for value in graph.input if value.name != "input_ids"]
    del graph.node[:], graph.input[:]
    graph.node.extend(nodes)
    graph.initializer.extend([*before.constants, *after.constants])
    string = onnx.TensorProto.STRING
    graph.input.extend([helper.make_tensor_value_info("text", string, ["batch_size"]), *inputs])
    outputs = [*graph.output]
    del graph.output[:]
    for name in ("generated_text", "error"):
        graph.output.append(helper.make_tensor_value_info(name, string, ["batch_size"]))
    tokens = helper.make_tensor_value_info("tokens", onnx.TensorProto.INT32, ["tokens"])
    offsets = helper.make_tensor_value_info("token_offsets", onnx.TensorProto.INT64, ["batch_size + 1"])
    graph.output.extend([*outputs, tokens, offsets])
    loop.opset_import.append(helper.make_opsetid(_DOMAIN, 1))
    return loop


def _tokenize(nodes: _Nodes, tokenizer_model: bytes, config: Mapping[str, Any]) -> None:
    """Add the nodes from "text" (B,) to "input_ids" (B, S) and "error" (B,)."""
    add, constant = nodes.add, nodes.constant
    limit, end_id, pad_id = (config[name] for name in ("max_source_tokens", "end_id", "pad_id"))
    no_text = np.zeros(config["vocabulary_size"], bool)
    no_text[[pad_id, end_id, *config["empty_ids"]]] = True
    never = constant([False], bool)
    settings = (constant([0]), constant([0.0], np.float32), never, never, never)  # best, without extra ids
    nodes.nodes.append(
        _sentence_piece(
            "SentencepieceTokenizer", ["text", *settings], ["tokens", "token_offsets"], tokenizer_model
        )
    )
    tokens = add("Concat", add("Cast", "tokens", to=7), constant([pad_id]), axis=0)  # never empty
    starts = add("Slice", "token_offsets", constant([0]), constant([-1]))
    lengths = add("Sub", add("Slice", "token_offsets", constant([1]), constant([2**31])), starts)
    max_length = add("ReduceMax", add("Concat", lengths, constant([0]), axis=0), keepdims=0)
    positions = add("Range", constant(0), add("Add", max_length, constant(1)), constant(1))  # (S,)
    columns, rows = add("Unsqueeze", lengths, constant([1])), add("Unsqueeze", starts, constant([1]))
    inside = add("Less", positions, columns)  # (B, S)
    places = add("Where", inside, add("Add", rows, positions), constant(0))
    ids = add("Gather", tokens, places)
    ordinary = add("And", inside, add("Not", add("Gather", constant(no_text, bool), ids)))
    has_text = add("Cast", add("ReduceMax", add("Cast", ordinary, to=6), constant([1]), keepdims=1), to=9)
    fits = add("Less", columns, constant(limit))  # with the end id
    kept = add("And", has_text, fits)
    ended = add("Where", add("Equal", positions, columns), constant(end_id), constant(pad_id))
    complete = add("Where", inside, ids, ended)
    ids = add("Where", kept, complete, constant(pad_id))
    width = add("Min", add("Shape", positions), constant([limit]))
    add("Slice", ids, constant([0]), width, constant([1]), name="input_ids")
    message = f"`text` must have at most {limit} tokens (max_source_tokens)"
    wrong = add("And", has_text, add("Not", fits))
    errors = add("Where", wrong, constant([message], object), constant([""], object))
    add("Squeeze", errors, constant([1]), name="error")


def _detokenize(nodes: _Nodes, tokenizer_model: bytes, config: Mapping[str, Any]) -> None:
    """Add the nodes from "ids" (B, M) or (B, N, M) to "generated_text" (B,), those of the first hypotheses."""
    import onnx
    from onnx import helper

    add, constant = nodes.add, nodes.constant
    ids = "ids"
    if config["generation"].get("num_return", 1) > 1:
        ids = add("Gather", ids, constant(0), axis=1)
    tokenizer = tokenizer_of(tokenizer_model, {"tokenizer_class": SentencePieceTokenizer.__name__})
    assert isinstance(tokenizer, SentencePieceTokenizer)
    row = _Nodes("detokenizer/row")
    values = row.add("Gather", ids, "row")
    is_end = row.add("Cast", row.add("Equal", values, row.constant(config["end_id"])), to=7)
    before_end = row.add("Equal", row.add("CumSum", is_end, row.constant(0)), row.constant(0))
    dropped = [row.add("Equal", values, row.constant(config[name])) for name in ("pad_id", "start_id")]
    kept = row.add("And", before_end, row.add("Not", row.add("Or", *dropped)))
    kept_ids = row.add("Compress", values, kept, axis=0)
    guard = tokenizer.guard
    if guard:  # a token before the text keeps its leading spaces
        kept_ids = row.add("Concat", row.constant([tokenizer.unknown_id]), kept_ids, axis=0)
    row.nodes.append(_sentence_piece("SentencepieceDecoder", [kept_ids], ["decoded"], tokenizer_model))
    row.add("Identity", "condition", name="continues")
    body = helper.make_graph(
        row.nodes,
        "rows",
        [
            helper.make_tensor_value_info("row", onnx.TensorProto.INT64, []),
            helper.make_tensor_value_info("condition", onnx.TensorProto.BOOL, []),
        ],
        [
            helper.make_tensor_value_info("continues", onnx.TensorProto.BOOL, []),
            helper.make_tensor_value_info("decoded", onnx.TensorProto.STRING, [1]),
        ],
        row.constants,
    )
    count = add("Gather", add("Shape", ids), constant(0))
    texts = add("Loop", count, constant(True, bool), body=body)
    name = "" if guard else "generated_text"
    texts = add("Squeeze", texts, constant([1]), name=name)
    if guard:
        replaced = [constant([f"^{guard} ?"], object), constant([""], object)]
        add("StringRegexReplace", texts, *replaced, name="generated_text", domain=_DOMAIN)


def _sentence_piece(operation: str, inputs: list[str], outputs: list[str], model: bytes) -> Any:
    import onnx

    return onnx.helper.make_node(operation, inputs, outputs, domain=_DOMAIN, model=model)
