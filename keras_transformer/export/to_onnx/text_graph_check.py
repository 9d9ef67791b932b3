"""Check a graph from strings to strings, in a process that must not import TensorFlow.

    python -P text_graph_check.py GRAPH < CASES

CASES is JSON: "texts" and their "answers", and "tokenizer", texts with their ids. An output that differs is an error.
"""

import itertools
import json
import sys

import numpy as np
import onnxruntime
import onnxruntime_extensions


def main(path: str) -> None:
    """Compare the graph with the cases."""
    cases = json.load(sys.stdin)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.register_custom_ops_library(onnxruntime_extensions.get_library_path())
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def run(texts: list[str], *names: str) -> list[np.ndarray]:
        return session.run([*names], {"text": np.array(texts, object)})

    texts, expected = cases["tokenizer"]["texts"], cases["tokenizer"]["ids"]
    tokens, offsets = run(texts, "tokens", "token_offsets")
    for text, ids, (start, end) in zip(texts, expected, itertools.pairwise(offsets), strict=True):
        if tokens[start:end].tolist() != ids:
            raise SystemExit(f"{text!r}: expected ids {ids}. Received: {tokens[start:end].tolist()}")
    (answers,) = run(cases["texts"], "generated_text")
    for text, answer, found in zip(cases["texts"], cases["answers"], answers, strict=True):
        if found != answer:
            raise SystemExit(f"{text!r}: expected {answer!r}. Received: {found!r}")


if __name__ == "__main__":
    main(sys.argv[1])
