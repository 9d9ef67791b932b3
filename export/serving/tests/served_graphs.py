"""Hand-made ONNX graphs for the exports in `served_exports`."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper

INT, FLOAT = TensorProto.INT64, TensorProto.FLOAT
OFFSET = 5  # of the ids of bytes, after those of the special tokens
VOCABULARY = OFFSET + 256
STEPS = 12


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


def text_graph(name):
    """A vector of a text, 1 + (sum of ids) modulo 5, 7 and 11, or the score of a pair, between 0 and 1.

    The vector of a token is its id modulo 5, 7 and 11.
    """
    names = ("input_ids", "attention_mask")
    inputs = [helper.make_tensor_value_info(each, INT, ["batch_size", "length"]) for each in names]
    nodes = [
        ("Mul", ["input_ids", "attention_mask"], "real"),
        ("ReduceSum", ["real", "axis"], "sum"),
        ("Mod", ["sum", "moduli"], "remainder"),
        ("Cast", ["remainder"], "floats", {"to": FLOAT}),
    ]
    constants = {"axis": np.array([1]), "moduli": np.array([[5, 7, 11]]), "one": np.array(1, "float32")}
    if name == "embedder":
        nodes += [
            ("Add", ["floats", "one"], "pooled"),
            ("Unsqueeze", ["input_ids", "last"], "column"),
            ("Mod", ["column", "moduli"], "remainders"),
            ("Cast", ["remainders"], "last_hidden_state", {"to": FLOAT}),
        ]
        outputs = [
            helper.make_tensor_value_info("pooled", FLOAT, ["batch_size", 3]),
            helper.make_tensor_value_info("last_hidden_state", FLOAT, ["batch_size", "length", 3]),
        ]
        return model(nodes, inputs, outputs, {**constants, "last": np.array([-1])})
    constants = {"axis": np.array([1]), "moduli": np.array([[7]]), "three": np.array(3, "float32")}
    nodes += [
        ("Sub", ["floats", "three"], "logits"),
        ("Sigmoid", ["logits"], "probabilities"),
        ("Squeeze", ["probabilities", "axis"], "scores"),
    ]
    outputs = [
        helper.make_tensor_value_info("logits", FLOAT, ["batch_size", 1]),
        helper.make_tensor_value_info("scores", FLOAT, ["batch_size"]),
    ]
    return model(nodes, inputs, outputs, constants)


def loop(noise=False):
    """Token k after a prompt of n bytes ending in x is x + k(n − 1) + k(k − 1)/2 modulo 256, or an end token.

    A byte is an end token if it is 5 modulo 16. Noise adds 100 times its first number to x.
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


def copy_graph(name, vocabulary=VOCABULARY):
    """An encoder–decoder that copies its source: the encoder, a decoder step, or the loop.

    The loop of a translator copies the prefix of the target, too. The loop of n-best lists has a second hypothesis, in
    which each token is the next one.
    """
    ids = [helper.make_tensor_value_info("input_ids", INT, ["batch_size", "length"])]
    if name == "encoder":
        mask = helper.make_tensor_value_info("attention_mask", INT, ["batch_size", "length"])
        nodes = [
            ("Mul", ["input_ids", "attention_mask"], "real"),
            ("Cast", ["real"], "floats", {"to": FLOAT}),
            ("Unsqueeze", ["floats", "last"], "last_hidden_state"),
        ]
        outputs = [helper.make_tensor_value_info("last_hidden_state", FLOAT, ["batch_size", "length", 1])]
        return model(nodes, [*ids, mask], outputs, {"last": np.array([-1])})
    if name in ("loop", "translator", "n-best"):
        copied = "both" if name == "translator" else "input_ids"
        first = [("Concat", ["prefix_ids", "input_ids"], "both", {"axis": 1})] if copied == "both" else []
        nodes = [
            *first,
            ("Pad", [copied, "pads"], "long"),
            ("Slice", ["long", "zero", "steps", "one"], "whole"),
            ("Max", ["max_new_tokens", "min_new_tokens"], "limits"),
            ("Reshape", ["limits", "column"], "limit"),
            ("Less", ["index", "limit"], "inside"),
            ("Where", ["inside", "whole", "zero"], "ids"),
            ("Greater", ["ids", "zero"], "is_real"),
            ("Cast", ["is_real"], "real", {"to": INT}),
            ("ReduceSum", ["real", "one"], "lengths", {"keepdims": 0}),
            ("Cast", ["lengths"], "scores", {"to": FLOAT}),
        ]
        constants = {"zero": np.array([0]), "one": np.array([1]), "steps": np.array([STEPS])}
        constants |= {"pads": np.array([0, 0, 0, STEPS]), "column": np.array([-1, 1])}
        constants |= {"index": np.arange(STEPS), "max_new_tokens": np.array([STEPS])}
        constants["min_new_tokens"] = np.array([0])
        options = ("max_new_tokens", "min_new_tokens")
        if first:
            ids.append(helper.make_tensor_value_info("prefix_ids", INT, ["batch_size", "prefix_length"]))
        ids += [helper.make_tensor_value_info(name, INT, ["batch_or_1"]) for name in options]
        outputs = [
            helper.make_tensor_value_info("ids", INT, ["batch_size", STEPS]),
            helper.make_tensor_value_info("lengths", INT, ["batch_size"]),
            helper.make_tensor_value_info("scores", FLOAT, ["batch_size"]),
        ]
        if name == "n-best":
            constants["special"] = np.array([OFFSET - 1])
            best = {each.name: f"best_{each.name}" for each in outputs}
            nodes = [
                (operator, inputs, best.get(output, output), *rest)
                for operator, inputs, output, *rest in nodes
            ]
            nodes = [
                (operator, [best.get(each, each) for each in inputs], *rest)
                for operator, inputs, *rest in nodes
            ]
            nodes += [
                ("Greater", ["best_ids", "special"], "is_text"),
                ("Cast", ["is_text"], "text", {"to": INT}),
                ("Add", ["best_ids", "text"], "next_ids"),
                *(("Unsqueeze", [output, "one"], f"one_{output}") for output in (*best.values(), "next_ids")),
                ("Concat", ["one_best_ids", "one_next_ids"], "ids", {"axis": 1}),
                *(("Concat", [f"one_best_{each}"] * 2, each, {"axis": 1}) for each in ("lengths", "scores")),
            ]
            outputs = [
                helper.make_tensor_value_info("ids", INT, ["batch_size", 2, STEPS]),
                helper.make_tensor_value_info("lengths", INT, ["batch_size", 2]),
                helper.make_tensor_value_info("scores", FLOAT, ["batch_size", 2]),
            ]
        return model(nodes, ids, outputs, constants)
    nodes = [
        ("Squeeze", ["encoder_hidden_states", "last"], "flat"),
        ("Cast", ["flat"], "source", {"to": INT}),
        ("Cast", ["input_ids"], "entries", {"to": FLOAT}),
        ("Reshape", ["entries", "to_cache"], "new"),
        ("Concat", ["past_key_values.0.decoder.key", "new"], "present.0.decoder.key", {"axis": 2}),
        ("Concat", ["past_key_values.0.decoder.value", "new"], "present.0.decoder.value", {"axis": 2}),
        ("Identity", ["past_key_values.0.encoder.key"], "present.0.encoder.key"),
        ("Identity", ["past_key_values.0.encoder.value"], "present.0.encoder.value"),
        ("Shape", ["past_key_values.0.decoder.key"], "past", {"start": 2, "end": 3}),
        ("Shape", ["present.0.decoder.key"], "whole", {"start": 2, "end": 3}),
        ("Shape", ["source"], "length", {"start": 1, "end": 2}),
        ("Sub", ["length", "one"], "end"),
        ("Squeeze", ["past"], "from"),
        ("Squeeze", ["whole"], "to"),
        ("Range", ["from", "to", "step"], "positions"),
        ("Min", ["positions", "end"], "places"),
        ("Gather", ["source", "places"], "next", {"axis": 1}),
        ("Unsqueeze", ["next", "last"], "column"),
        ("Equal", ["column", "every"], "is_next"),
        ("Cast", ["is_next"], "hot", {"to": FLOAT}),
        ("Mul", ["hot", "nine"], "logits"),
    ]
    constants = {
        "last": np.array([-1]),
        "to_cache": np.array([0, 1, -1, 1]),
        "one": np.array([1]),
        "step": np.array(1),
        "every": np.arange(vocabulary),
        "nine": np.array(9, "float32"),
    }
    inputs = [
        *ids,
        helper.make_tensor_value_info("encoder_attention_mask", INT, ["batch_size", None]),
        helper.make_tensor_value_info("encoder_hidden_states", FLOAT, ["batch_size", None, 1]),
    ]
    sides = [f"0.{side}.{part}" for side in ("decoder", "encoder") for part in ("key", "value")]
    inputs += [
        helper.make_tensor_value_info(f"past_key_values.{side}", FLOAT, ["batch_size", 1, None, 1])
        for side in sides
    ]
    outputs = [helper.make_tensor_value_info("logits", FLOAT, [None, None, vocabulary])]
    outputs += [helper.make_tensor_value_info(f"present.{side}", FLOAT, [None, 1, None, 1]) for side in sides]
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


def token_graph(name):
    """Answer spans from a token "<" to a token ">", or token classes: 1 for tokens before the lower-case letters."""
    names = ("input_ids", "attention_mask", "token_type_ids")
    inputs = [helper.make_tensor_value_info(each, INT, ["batch_size", "length"]) for each in names]
    constants = {"nine": np.array(9, "float32"), "last": np.array([-1])}
    if name == "tagger":
        constants |= {"a": np.array(OFFSET + ord("a")), "classes": np.array([True, False])}
        nodes = [
            ("Less", ["input_ids", "a"], "upper"),
            ("Unsqueeze", ["upper", "last"], "column"),
            ("Xor", ["column", "classes"], "is_class"),
            ("Cast", ["is_class"], "hot", {"to": FLOAT}),
            ("Mul", ["hot", "nine"], "logits"),
        ]
        outputs = [helper.make_tensor_value_info("logits", FLOAT, ["batch_size", "length", 2])]
        return model(nodes, inputs, outputs, constants)
    nodes, outputs = [], []
    for side, mark in (("start", "<"), ("end", ">")):
        constants[f"{side}_mark"] = np.array(OFFSET + ord(mark))
        nodes += [
            ("Equal", ["input_ids", f"{side}_mark"], f"{side}_here"),
            ("Cast", [f"{side}_here"], f"{side}_hot", {"to": FLOAT}),
            ("Mul", [f"{side}_hot", "nine"], f"{side}_logits"),
        ]
        outputs.append(helper.make_tensor_value_info(f"{side}_logits", FLOAT, ["batch_size", "length"]))
    return model(nodes, inputs, outputs, constants)


def model(nodes, inputs, outputs, constants):
    made = [
        helper.make_node(operator, names, [output], **(options[0] if options else {}))
        for operator, names, output, *options in nodes
    ]
    weights = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(made, "model", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
