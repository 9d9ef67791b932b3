"""Hand-made exports for the server (a classifier, a generating and a sampling model), and calls of an ASGI app."""

import asyncio
import contextlib
import json
import socket
import threading
import time
import urllib.request

import uvicorn
from asgi_calls import call as call
from asgi_calls import calling as calling
from asgi_calls import json_call as json_call
from asgi_calls import run as run
from asgi_calls import started as started
from served_graphs import (
    OFFSET,
    STEPS,
    VOCABULARY,
    array_graph,
    classifier,
    copy_graph,
    decoder,
    loop,
    text_graph,
    token_graph,
)

from keras_transformer_serving.text.byte import ByteTokenizer

ROLES = {"pad": "<pad>", "end": "</s>", "unknown": "<unk>", "start": "<s>", "mask": "<mask>"}
TOKENIZER = json.dumps(
    {"settings": {"special_tokens": ROLES, "extra_tokens": [], "special_tokens_in_text": False}}
).encode()
SOURCE = 40
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
COPIER = {**GENERATOR, "pipeline": "TextToText", "start_id": 3, "empty_ids": []}
# Languages have tokens, which are shown in texts.
TRANSLATOR = {**COPIER, "languages": ["en", "es"], "source_language": "en", "target_language": None}
TRANSLATOR["vocabulary_size"] += 2
LANGUAGES = {
    "extra_tokens": ["<en>", "<es>"],
    "languages": {"en": "<en>", "es": "<es>"},
}
TAGGER = {
    **{name: value for name, value in CLASSIFIER.items() if name not in ("problem_type", "threshold")},
    "pipeline": "TokenClassification",
    "labels": ["word", "name"],
}
ANSWERS = {**TAGGER, "pipeline": "QuestionAnswering", "max_answer_tokens": 30}
IMAGES = {
    "pipeline": "ImageClassification",
    "labels": ["dark", "bright"],
    "problem_type": "single_label_classification",
    "threshold": 0.5,
    "value_range": [0.0, 1.0],
    "image_size": [2, 2],
    "num_channels": 1,
    "resize": False,
    "tokenizer_file": "bytes.json",
}
EMBEDDER = {
    **SHARED,
    "pipeline": "Embedding",
    "num_segments": 0,
    "max_length": SOURCE,
    "special_ids": None,
    "symmetric": False,
    "long_texts": "refuse",
    "model_dim": 3,
    "normalize": False,
    "prompts": {"query": "q: "},
    "default_prompt_name": None,
}
ENTAILMENT = {
    **CLASSIFIER,
    "pipeline": "ZeroShotClassification",
    "labels": ["contradiction", "neutral", "entailment"],
    "candidate_labels": None,
    "hypothesis_template": "It is {}.",
    "multi_label": False,
}
RERANKER = {**EMBEDDER, "pipeline": "Reranking", "activation": "sigmoid"}
TEMPLATE = "{% for message in messages %}{{ message.role }}:{{ message.content }};{% endfor %}"
CHAT = {**GENERATOR, "chat_template": {"default": TEMPLATE, "tool_use": None, "special_tokens": {}}}
SAMPLER = {**GENERATOR, "generation": {"sampler": "sample", "seed": 3, "temperature": 1.0, "num_return": 1}}


PREDICT = "/v1/models/{}:predict"
INFER = "/v2/models/{}/infer"
_GRAPHS = {
    "classifier": (CLASSIFIER, {"model.onnx": classifier}),
    "entailment": (ENTAILMENT, {"model.onnx": classifier}),
    "generator": (GENERATOR, {"model.onnx": decoder, "generate_greedy.onnx": loop}),
    "copier": (
        COPIER,
        {
            "optimum/encoder_model.onnx": lambda: copy_graph("encoder"),
            "optimum/decoder_model_merged.onnx": lambda: copy_graph("decoder"),
            "generate_greedy.onnx": lambda: copy_graph("loop"),
        },
    ),
    "n-best": (
        {**COPIER, "generation": {"sampler": "beam", "beam_width": 2, "num_return": 2}},
        {
            "optimum/encoder_model.onnx": lambda: copy_graph("encoder"),
            "optimum/decoder_model_merged.onnx": lambda: copy_graph("decoder"),
            "generate_beam.onnx": lambda: copy_graph("n-best"),
        },
    ),
    "translator": (
        TRANSLATOR,
        {
            "optimum/encoder_model.onnx": lambda: copy_graph("encoder"),
            "optimum/decoder_model_merged.onnx": lambda: copy_graph("decoder", TRANSLATOR["vocabulary_size"]),
            "generate_greedy.onnx": lambda: copy_graph("translator"),
        },
    ),
    "chat": (CHAT, {"model.onnx": decoder, "generate_greedy.onnx": loop}),
    "embedder": (EMBEDDER, {"model.onnx": lambda: text_graph("embedder")}),
    "reranker": (RERANKER, {"model.onnx": lambda: text_graph("reranker")}),
    "tagger": (TAGGER, {"model.onnx": lambda: token_graph("tagger")}),
    "answers": (ANSWERS, {"model.onnx": lambda: token_graph("answers")}),
    "images": (IMAGES, {"model.onnx": lambda: array_graph("images")}),
    "sampler": (SAMPLER, {"model.onnx": decoder, "generate_sample.onnx": lambda: loop(noise=True)}),
}


def write_export(small, folder, name, **changes):
    """Write the export of this name; `changes` replace settings."""
    config, graphs = _GRAPHS[name]
    content = TOKENIZER
    if "languages" in config:
        content = json.dumps({"settings": {**json.loads(TOKENIZER)["settings"], **LANGUAGES}}).encode()
    tokenizer = ByteTokenizer(content)
    texts = ["a", "é"]
    examples = {
        "texts": texts,
        "ids": [tokenizer.tokenize(text) for text in texts],
        "decoded": texts,
    }

    def write_shared(new):
        (new / "tokenizer").mkdir()
        (new / "tokenizer" / "bytes.json").write_bytes(content)
        (new / "tokenizer" / "examples.json").write_text(json.dumps(examples))

    contents = {file: graph().SerializeToString() for file, graph in graphs.items()}
    small.write(folder, config={**config, **changes}, contents=contents, write_shared=write_shared)
    return folder


@contextlib.contextmanager
def listening(app):
    """Serve an app on a port of this machine, in a thread; the value is its address."""
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=1))
    with socket.create_server(("127.0.0.1", 0)) as port:
        thread = threading.Thread(target=lambda: asyncio.run(server.serve([port])))
        thread.start()
        address = f"http://127.0.0.1:{port.getsockname()[1]}"
        try:
            for _ in range(200):
                with contextlib.suppress(OSError):
                    urllib.request.urlopen(f"{address}/v2/health/ready").close()
                    break
                time.sleep(0.05)
            yield address
        finally:
            server.should_exit = True
            thread.join()


async def until(condition):
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError(condition)


def predict(app, name, instances, **others):
    return json_call(app, "POST", PREDICT.format(name), {"instances": instances, **others})


def batch_sizes(app):
    metric = app.state.server.metrics.batch_size.collect()[0]
    return {
        sample.name: sample.value for sample in metric.samples if sample.name.endswith(("_count", "_sum"))
    }


def tensor(name, data, datatype="BYTES", shape=None):
    return {"name": name, "datatype": datatype, "shape": shape or [len(data)], "data": data}
