"""The loop of every search as one ONNX graph, as in exports."""

import keras
import numpy as np
import pytest

from keras_transformer import generation, relations
from keras_transformer.generation import Beam, Sample
from keras_transformer.ops import GrowingCache

from .reference import random_transformer, translator

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="exports need TensorFlow"),
]

SOURCES = np.array([[4, 5, 4, 3], [5, 3, 0, 0], [4, 6, 7, 5]], np.int32)
MOST = 6


def plain(**block):
    return translator(3, 12, **block)


CASES = {
    "beam": (plain, Beam(3, num_return=2), ()),
    "bias of logits": (lambda: random_transformer(3, output_bias=True), generation.Greedy(), ()),
    "rolling": (lambda: plain(relation=relations.SlidingWindow(1)), Beam(3, num_return=2), ()),
    "sample": (plain, Sample(1.2, top_k=9, top_p=0.9, min_p=0.01, seed=0, num_return=2), ()),
    "constraints": (
        plain,
        Beam(2),
        (
            generation.NoRepeatNGram(2),
            generation.BannedWords([[5, 6], [7]]),
            generation.ForcedPrefix([8]),
            generation.MinNewTokens(2),
            generation.RepetitionPenalty(1.2),
        ),
    ),
    "forced last token": (
        plain,
        Beam(3, 2.0, "length", "heuristic", num_return=2),
        (generation.RepetitionPenalty(3.0), generation.ForcedLastToken([3])),
    ),
}


@pytest.mark.parametrize(("make", "sampler", "constraints"), CASES.values(), ids=CASES)
@pytest.mark.filterwarnings("ignore")
def test_the_onnx_graph_gives_equal_ids(make, sampler, constraints):
    import onnxruntime
    import tensorflow as tf

    from keras_transformer.export.to_onnx import conversion

    model = make()
    noise = np.random.default_rng(0).random((3, sampler.hypotheses, MOST)).astype("float32")
    sampling = isinstance(sampler, Sample)
    given = {"input_ids": SOURCES, **({"noise": noise} if sampling else {})}

    def loop(input_ids, noise=None):
        return generation.generate_ids(
            model, input_ids, MOST, GrowingCache(), sampler=sampler, constraints=constraints, noise=noise
        )

    signature = [
        tf.TensorSpec([None, *([None] if values.ndim == 2 else values.shape[1:])], values.dtype, name=name)
        for name, values in given.items()
    ]
    traced = tf.function(loop, input_signature=signature, autograph=False)
    expected = {name: value.numpy() for name, value in traced(*given.values()).items()}
    graph = conversion.convert("loop", loop, signature, {"input_ids": [None, None]}, model.weights)
    session = onnxruntime.InferenceSession(graph.SerializeToString())
    names = [output.name for output in session.get_outputs()]
    found = dict(zip(names, session.run(None, given), strict=True))
    np.testing.assert_array_equal(found["ids"], expected["ids"])
    np.testing.assert_array_equal(found["lengths"], expected["lengths"])
    np.testing.assert_allclose(found["scores"], expected["scores"], rtol=1e-4, atol=1e-4)
