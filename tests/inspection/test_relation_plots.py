import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import FancyArrowPatch

from keras_transformer import inspection
from keras_transformer.relations import (
    Adjacency,
    Bipartite,
    Causal,
    Dilated,
    Full,
    GlobalTokens,
    PrefixLM,
    SlidingWindow,
    Strided,
)

GRAPH = Adjacency([(0, 1), (1, 2), (2, 0), (3, 4), (4, 3), (3, 3)], 6)


def drawn(figure):
    """Return the axes of the graph, the displayed matrix, and the lines of the graph."""
    figure.canvas.draw()
    matrix_axes, graph_axes = figure.get_axes()
    (image,) = matrix_axes.get_images()
    lines = [patch for patch in graph_axes.patches if isinstance(patch, FancyArrowPatch)]
    return graph_axes, np.asarray(image.get_array()) > 0, lines


@pytest.mark.slow_variants
@pytest.mark.parametrize(
    "relation",
    [
        Full(),
        Causal(),
        SlidingWindow(2, 1),
        PrefixLM(3),
        Strided(2),
        Dilated(1, 2),
        SlidingWindow(1, 1) | GlobalTokens([0]),
        GRAPH,
        ~GRAPH,
        Causal() & ~Causal(),
    ],
    ids=repr,
)
def test_the_plot_has_the_matrix_and_a_line_for_each_related_pair(relation):
    graph_axes, shown, lines = drawn(inspection.plot_relation(relation, 7))
    matrix = relation.matrix(7)
    np.testing.assert_array_equal(shown, matrix)
    assert [text.get_text() for text in graph_axes.texts] == list("0123456")
    between = matrix & ~np.eye(7, dtype=bool)
    on_a_line = relation.edges() is None and relation.bandwidth() != (None, None)
    assert len(lines) == (between.sum() if on_a_line else np.triu(between | between.T).sum())
    (nodes,) = graph_axes.collections
    self_loops = [to_hex(colour) != "#ffffff" for colour in nodes.get_facecolors()]
    assert (np.broadcast_to(self_loops, 7) == matrix.diagonal()).all()


def test_arrows_go_from_keys_to_queries():
    """A cycle 0 → 1 → 2 → 0, and a bidirectional pair, which has no arrowhead."""
    graph_axes, _, lines = drawn(inspection.plot_relation(GRAPH, 6))
    (nodes,) = graph_axes.collections
    places = nodes.get_offsets()

    def node(place):
        return int(np.linalg.norm(places - np.array(place), axis=1).argmin())

    ends = {tuple(map(node, line._posA_posB)): type(line.get_arrowstyle()).__name__ for line in lines}
    assert ends == {(0, 1): "CurveFilledB", (1, 2): "CurveFilledB", (2, 0): "CurveFilledB", (3, 4): "Curve"}


@pytest.mark.parametrize(
    ("relation", "num_queries", "num_keys"),
    [
        (Bipartite(), 3, 5),
        (Bipartite(), 4, None),
        (Causal(), 4, 4),
        (SlidingWindow(1, 1), 2, 6),
        ("full", 1, 1),
    ],
    ids=str,
)
def test_queries_and_keys_are_drawn_in_two_columns(relation, num_queries, num_keys):
    graph_axes, shown, lines = drawn(inspection.plot_relation(relation, num_queries, num_keys))
    assert shown.shape == (num_queries, num_keys or num_queries)
    assert len(lines) == shown.sum()
    keys, queries = graph_axes.collections
    assert (len(queries.get_offsets()), len(keys.get_offsets())) == shown.shape
    assert {"keys", "queries"} <= {text.get_text() for text in graph_axes.texts}


def test_existing_axes_are_used_with_the_title():
    figure, axes = plt.subplots(1, 3)
    assert inspection.plot_relation("causal", 3, axes=axes[1:], title="order") is figure
    assert not axes[0].get_images()
    assert len(axes[1].get_images()) == 1
    assert len(axes[2].patches) == 3
    assert figure.get_suptitle() == "order"
    figure.canvas.draw()


@pytest.mark.slow
@pytest.mark.parametrize("relation", [Full(), SlidingWindow(8) | Strided(8)], ids=repr)
def test_many_positions_have_no_labels(relation):
    graph_axes, _, _ = drawn(inspection.plot_relation(relation, np.int64(24)))
    assert not graph_axes.texts


def test_a_single_axes_is_rejected():
    _, axes = plt.subplots()
    with pytest.raises(ValueError, match="`axes` must be two"):
        inspection.plot_relation("causal", 3, axes=axes)
