import numpy as np
import pytest

from keras_transformer.models import GAT, ViT
from keras_transformer.pipelines import (
    ImageClassification,
    NodeClassification,
    TextClassification,
    TokenClassification,
)
from keras_transformer.pipelines.classification import labels_of
from tests.laws.cases import randomise
from tests.laws.pipelines import SIZES

RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.integers(0, 256, (5, 8, 8, 3)).astype("uint8")
NODES = RANDOM.normal(size=(4, 5)).astype("float32")
EDGES = np.array([[0, 1], [1, 2], [2, 2], [0, 1]])  # with a self-loop and one listed twice; 3 is isolated


@pytest.fixture(scope="module")
def vit():
    model = randomise(ViT(8, 4, num_classes=3, **SIZES), 1)
    model.head.bias.assign_sub(np.asarray(model(IMAGES)).mean(0))  # so that no class always wins
    return model


@pytest.fixture(scope="module")
def gat():
    return randomise(GAT(5, 3, num_heads=(2, 1), head_dim=4), 1, seed=3)


@pytest.mark.parametrize("keys", ["01", ("LABEL_0", "LABEL_1")])
def test_labels_of_a_folder_are_in_the_order_of_their_ids(keys):
    assert labels_of({"id2label": dict(zip(keys[::-1], "ba", strict=True))}) == ["a", "b"]
    assert labels_of({}) is None


@pytest.mark.parametrize("names", [{"1": "a", "2": "b"}, {"0": "a", "2": "b"}, {"a": "0"}], ids=str)
def test_labels_of_other_ids_are_rejected_unless_labels_are_given(names):
    config = {"id2label": names}
    with pytest.raises(ValueError, match="must name the classes 0 to . in id2label, unless `labels`"):
        labels_of(config)
    for pipeline in (TextClassification, TokenClassification):
        assert pipeline.hugging_face_arguments(None, config, None, {"labels": ["a", "b"]}) == {}


class TestImages:
    def test_labels_have_the_largest_logit(self, vit):
        classifier = ImageClassification(vit, ["a", "b", "c"])
        logits = np.asarray(vit(IMAGES))
        assert classifier(IMAGES) == [classifier.labels[i] for i in logits.argmax(1)]
        assert len(set(classifier(IMAGES))) > 1
        expected = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        for batch_size in (1, 2, 64):
            np.testing.assert_allclose(classifier.probabilities(IMAGES, batch_size), expected, rtol=1e-4)

    @pytest.mark.slow
    def test_images_are_resized_only_on_request(self, vit):
        plain = np.broadcast_to(IMAGES[:, :1, :1], IMAGES.shape)  # each image has one colour
        larger = plain.repeat(2, axis=1).repeat(3, axis=2)
        with pytest.raises(ValueError, match=r"`images` must have the size \(8, 8\).*Received: .*16, 24"):
            ImageClassification(vit)(larger)
        found = ImageClassification(vit, resize=True).probabilities(larger)
        np.testing.assert_allclose(found, ImageClassification(vit).probabilities(plain), rtol=1e-3)

    @pytest.mark.parametrize(
        ("images", "message"),
        [
            (IMAGES / 255, "`images` must have values from 0.0 to 255.0; these look like values up to 1"),
            (IMAGES * 1.0 - 1, "`images` must have values from 0.0 to 255.0. Received: values from -1"),
            (IMAGES * np.nan, "`images` must have values from 0.0 to 255.0. Received: values from nan"),
            (IMAGES * 300.0, "`images` must have values from 0.0 to 255.0. Received: values from"),
            (IMAGES[..., :1], r"`images` must be \(n, height, width, 3\).*Received: .*8, 8, 1"),
            (IMAGES[0, 0], r"`images` must be .*Received: .*\(8, 3\)"),
        ],
    )
    def test_invalid_ranges_and_shapes_are_rejected(self, vit, images, message):
        with pytest.raises(ValueError, match=message):
            ImageClassification(vit)(images)

    def test_black_images_are_accepted(self, vit):
        black = np.zeros((1, 8, 8, 3), "float32")
        np.testing.assert_allclose(
            ImageClassification(vit).probabilities(black),
            ImageClassification(vit).probabilities(black.astype("uint8")),
        )

    def test_the_number_of_labels_must_equal_the_number_of_classes(self, vit):
        with pytest.raises(ValueError, match="`labels` must have a name for each of the model's 3 classes"):
            ImageClassification(vit, ["a", "b"])
        headless = ViT(8, 4, None, **SIZES)
        with pytest.raises(ValueError, match="`model` must have a head"):
            ImageClassification(headless)


class TestNodes:
    def test_labels_have_the_largest_logit(self, gat):
        classifier = NodeClassification(gat, ["a", "b", "c"])
        logits = np.asarray(gat({"nodes": NODES[None], "edges": EDGES[None]}))[0]
        assert classifier(NODES, EDGES) == [classifier.labels[i] for i in logits.argmax(1)]
        np.testing.assert_allclose(classifier.probabilities(NODES, EDGES).sum(1), 1, rtol=1e-5)
        assert len(set(classifier(NODES, EDGES))) > 1

    @pytest.mark.slow
    def test_a_graph_may_have_no_edges(self, gat):
        classifier = NodeClassification(gat)
        single = [classifier(NODES[i : i + 1], []) for i in range(4)]
        assert classifier(NODES, np.zeros((0, 2), int)) == [label for (label,) in single]

    @pytest.mark.parametrize(
        ("nodes", "edges", "message"),
        [
            (NODES, [[0, 4]], r"`edges` must connect nodes from 0 to 3. Received: edges\[0\]=\[0, 4\]"),
            (NODES, [[0, 1], [-1, 2]], r"Received: edges\[1\]=\[-1, 2\], and 0 more out of range"),
            (NODES, [[0.5, 1]], r"`edges` must be integers \(E, 2\).*float64"),
            (NODES, [[0, 1, 2]], r"`edges` must be integers \(E, 2\).*\(1, 3\)"),
            (NODES[:, :4], EDGES, r"`nodes` must be \(T, 5\), T > 0. Received: .*\(4, 4\)"),
            (NODES[:0], [], r"`nodes` must be \(T, 5\), T > 0. Received: .*\(0, 5\)"),
            (NODES * np.inf, EDGES, "`nodes` must be finite. Received: 20 values"),
        ],
    )
    def test_invalid_graphs_are_rejected(self, gat, nodes, edges, message):
        with pytest.raises(ValueError, match=message):
            NodeClassification(gat)(nodes, edges)
