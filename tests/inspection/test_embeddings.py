import itertools

import keras
import matplotlib as mpl
import numpy as np
import pytest

from keras_transformer import inspection
from keras_transformer.layers import TokenEmbedding

RANDOM = np.random.default_rng(0)
TOKENS = ["<pad>", "king", "queen", "man", "woman", "apple"]
MATRIX = np.array([[0, 0, 0], [5, 1, 1], [5, -1, 1], [0, 1, 1], [0, -1, 1], [0, 0, -2]], "float32")


class TestNearestTokens:
    def test_neighbours_are_sorted_by_cosine_and_exclude_the_query(self):
        found = inspection.nearest_tokens(MATRIX, TOKENS, "king")
        assert [token for token, _ in found] == ["queen", "man", "<pad>", "woman", "apple"]
        similarities = dict(found)
        assert similarities["queen"] == pytest.approx(25 / 27)
        assert similarities["man"] == pytest.approx(2 / np.sqrt(27 * 2))
        assert similarities["<pad>"] == 0
        assert all(isinstance(similarity, float) for _, similarity in found)

    def test_vector_length_does_not_change_the_neighbours(self):
        lengths = RANDOM.uniform(0.1, 9, size=(6, 1))
        matrix = RANDOM.normal(size=(6, 3))
        plain = inspection.nearest_tokens(matrix, TOKENS, "woman")
        scaled = inspection.nearest_tokens(matrix * lengths, TOKENS, "woman")
        assert [token for token, _ in plain] == [token for token, _ in scaled]
        np.testing.assert_allclose([s for _, s in plain], [s for _, s in scaled], atol=1e-6)

    def test_ids_and_tokens_give_the_same_neighbours(self):
        for id_ in (2, np.int64(2)):
            assert inspection.nearest_tokens(MATRIX, TOKENS, id_) == inspection.nearest_tokens(
                MATRIX, TOKENS, "queen"
            )

    def test_a_vector_query_excludes_no_token(self):
        king, man, woman = MATRIX[[1, 3, 4]]
        ((token, similarity),) = inspection.nearest_tokens(MATRIX, TOKENS, king - man + woman, k=1)
        assert (token, similarity) == ("queen", pytest.approx(1))

    def test_k_limits_the_number_of_tokens(self):
        assert len(inspection.nearest_tokens(MATRIX, TOKENS, "king", k=2)) == 2
        assert len(inspection.nearest_tokens(MATRIX, TOKENS, "king", k=99)) == 5

    @pytest.mark.parametrize("dtype", ["float32", "mixed_float16"])
    def test_an_embedding_layer_is_accepted(self, dtype):
        for layer in (TokenEmbedding(6, 3, dtype=dtype), keras.layers.Embedding(6, 3, dtype=dtype)):
            layer.build((None, None))
            layer.set_weights([MATRIX])
            assert inspection.nearest_tokens(layer, TOKENS, "king") == inspection.nearest_tokens(
                MATRIX, TOKENS, "king"
            )


def points_of(axes):
    return np.concatenate([np.asarray(collection.get_offsets()) for collection in axes.collections])


class TestPlotEmbeddings:
    def test_points_are_the_first_two_principal_components(self):
        scores = RANDOM.normal(size=(30, 2)) * [5, 2]
        scores -= scores.mean(0)
        directions = np.linalg.qr(RANDOM.normal(size=(8, 2)))[0].T
        noise = RANDOM.normal(size=(30, 8)) * 1e-3
        axes = inspection.plot_embeddings(3 + scores @ directions + noise, [str(i) for i in range(30)])
        points = points_of(axes)

        def distances(x):
            return np.linalg.norm(x[:, None] - x[None], axis=-1)

        np.testing.assert_allclose(distances(points), distances(scores), atol=0.02)
        assert points[:, 0].std() > points[:, 1].std()
        np.testing.assert_allclose(points.mean(0), 0, atol=1e-9)

    def test_axes_show_the_explained_variance(self):
        square = np.array([[3, 0, 0], [-3, 0, 0], [0, 1, 0], [0, -1, 0]])
        axes = inspection.plot_embeddings(square, "abcd", title="a square")
        assert axes.get_xlabel() == "component 1 (90% of the variance)"
        assert axes.get_ylabel() == "component 2 (10% of the variance)"
        assert axes.get_title() == "a square"

    def test_signs_of_components_are_deterministic(self):
        matrix = RANDOM.normal(size=(6, 4))
        axes, again = (inspection.plot_embeddings(m, TOKENS) for m in (matrix, np.asfortranarray(matrix)))
        np.testing.assert_allclose(points_of(axes), points_of(again), atol=1e-9)

    def test_labels_do_not_overlap_or_leave_the_figure(self):
        labels = [f"token {i}" for i in range(40)]
        axes = inspection.plot_embeddings(RANDOM.normal(size=(40, 16)), labels)
        axes.figure.canvas.draw()
        boxes = [mpl.text.Text.get_window_extent(text) for text in axes.texts]
        assert sorted(text.get_text() for text in axes.texts) == sorted(labels)
        hidden = sum(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))
        assert hidden <= 2
        assert all(axes.figure.bbox.fully_overlaps(box) for box in boxes)

    def test_each_group_has_a_colour_and_legend_entry(self):
        groups = ["special", "person", "person", "person", "person", "fruit"]
        axes = inspection.plot_embeddings(MATRIX, TOKENS, groups=groups)
        assert [text.get_text() for text in axes.get_legend().get_texts()] == ["special", "person", "fruit"]
        assert [len(collection.get_offsets()) for collection in axes.collections] == [1, 4, 1]
        assert len({tuple(collection.get_facecolor()[0]) for collection in axes.collections}) == 3

    def test_existing_axes_are_used(self):
        import matplotlib.pyplot as plt

        figure, (left, right) = plt.subplots(1, 2)
        assert inspection.plot_embeddings(MATRIX, TOKENS, axes=right) is right
        assert not left.collections
        figure.canvas.draw()

    def test_equal_rows_are_drawn(self):
        axes = inspection.plot_embeddings(np.ones((3, 4)), "abc")
        assert axes.get_xlabel() == "component 1 (0% of the variance)"
        axes.figure.canvas.draw()
