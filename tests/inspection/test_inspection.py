import functools

import matplotlib as mpl
import numpy as np
import pytest

from keras_transformer import inspection
from keras_transformer.layers import MultiHeadAttention
from keras_transformer.models.encoder_decoder import AttentionWeights

SOURCES = np.array([[9, 8, 7, 6, 3, 0, 0], [5, 3, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0, 0]])
TARGETS = np.array([[2, 9, 8, 4], [2, 6, 3, 0], [2, 0, 0, 0]])


@pytest.fixture(scope="module", params=["pre", "post"])
def model(request, random_transformer):
    return random_transformer(6, num_layers=2, normalization=request.param)


@pytest.mark.slow_variants
@pytest.mark.parametrize("layer", [0, 1, -1, -2])
def test_rows_sum_to_one_and_padding_gets_zero(model, layer):
    weights = inspection.cross_attention_weights(model, SOURCES, TARGETS, layer)
    assert weights.shape == (3, 2, 4, 7)
    assert weights.dtype == np.float32
    np.testing.assert_allclose(weights[:2].sum(axis=-1), 1, rtol=1e-5)
    assert (weights >= 0).all()
    assert (weights[SOURCES.astype(bool).__invert__()[:, None, None, :].repeat(2, 1).repeat(4, 2)] == 0).all()


def test_a_source_of_padding_only_gets_zero_weight(model):
    assert (inspection.cross_attention_weights(model, SOURCES, TARGETS)[2] == 0).all()


def test_weights_reproduce_the_model_output(model, monkeypatch):
    """Weights are recomputed from the inputs of each layer in a normal call."""
    seen = []
    call = MultiHeadAttention.call

    @functools.wraps(call)
    def watched(self, query, value=None, *arguments, **options):
        if value is not None:
            seen.append(self.attention_weights(query, value, padding_mask=options["padding_mask"]))
        return call(self, query, value, *arguments, **options)

    monkeypatch.setattr(MultiHeadAttention, "call", watched)
    model({"source_ids": SOURCES, "target_ids": TARGETS})
    monkeypatch.undo()
    assert len(seen) == 2
    for layer, used in enumerate(seen):
        found = inspection.cross_attention_weights(model, SOURCES, TARGETS, layer)
        np.testing.assert_allclose(found, np.asarray(used), rtol=1e-4, atol=1e-5)
    assert not np.allclose(seen[0], seen[1], atol=1e-2)


@pytest.mark.slow
def test_last_layer_is_the_default(model):
    np.testing.assert_array_equal(
        inspection.cross_attention_weights(model, SOURCES, TARGETS),
        inspection.cross_attention_weights(model, SOURCES, TARGETS, layer=1),
    )


WEIGHTS = np.array([[0.1, 0.9], [0.5, 0.5], [1.0, 0.0]])


def test_plot_attention_draws_rows_for_queries_and_columns_for_keys():
    axes = inspection.plot_attention(WEIGHTS, ["a", "b", "c"], ["x", "y"], title="a title")
    assert isinstance(axes, mpl.axes.Axes)
    (image,) = axes.get_images()
    np.testing.assert_array_equal(image.get_array(), WEIGHTS)
    assert image.get_clim() == (0, 1)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b", "c"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["x", "y"]
    assert axes.get_title() == "a title"
    axes.figure.canvas.draw()


def test_plot_attention_uses_existing_axes():
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2)
    assert inspection.plot_attention(WEIGHTS.tolist(), "abc", "xy", axes=right) is right
    assert not left.get_images()
    figure.canvas.draw()


MAPS = AttentionWeights(
    *(list(np.random.default_rng(0).random((2, 3, 2, *sizes))) for sizes in ((5, 5), (4, 4), (4, 5)))
)


def test_plot_attention_weights_draws_three_maps_of_the_labelled_tokens():
    options = {"row": 1, "layer": 0, "head": 1}
    figure = inspection.plot_attention_weights(MAPS, "abc", "wxyz", **options, title="a title")
    panels = [axes for axes in figure.get_axes() if axes.get_title()]
    assert [axes.get_title() for axes in panels] == [
        "encoder self-attention",
        "masked decoder self-attention",
        "cross-attention",
    ]
    for axes, maps, (rows, columns) in zip(panels, MAPS, ((3, 3), (4, 4), (4, 3)), strict=True):
        (image,) = axes.get_images()
        np.testing.assert_array_equal(image.get_array(), maps[0][1, 1, :rows, :columns])
    assert [label.get_text() for label in panels[2].get_yticklabels()] == list("wxyz")
    assert figure.get_suptitle() == "a title"
    mean = inspection.plot_attention_weights(MAPS, "abcde", "wxyz").get_axes()[0].get_images()[0]
    np.testing.assert_allclose(mean.get_array(), MAPS.encoder[1][0].mean(axis=0))
    figure.canvas.draw()


HISTORY = {
    "learning_rate": [0.1, 0.2, 0.1],
    "token_accuracy": [0.1, 0.2, 0.3],
    "loss": [3.0, 2.0, 1.0],
    "val_loss": [3.5, 3.0],
    "val_bleu": [1.0, 5.0, float("nan")],
}


def drawn(panel):
    """Return the points of the curves of a panel, without the marker of the best epoch."""
    lines = [line for line in panel.get_lines() if not line.get_label().startswith("_")]
    return {line.get_label(): line.get_xydata().tolist() for line in lines}


@pytest.mark.parametrize("sequence", [list, np.array])
def test_plot_history_draws_a_panel_for_each_metric_with_both_curves(sequence):
    figure = inspection.plot_history({name: sequence(values) for name, values in HISTORY.items()})
    panels = figure.get_axes()
    assert [axes.get_title() for axes in panels] == ["loss", "token accuracy", "bleu", "learning rate"]
    assert drawn(panels[0]) == {"training": [[1, 3], [2, 2], [3, 1]], "validation": [[1, 3.5], [2, 3]]}
    assert list(drawn(panels[1])) == ["training"]
    assert list(drawn(panels[2])) == ["validation"]
    figure.canvas.draw()


@pytest.mark.parametrize(
    ("options", "best", "panel", "note"),
    [
        ({}, 2, 0, "3 in epoch 2"),
        ({"monitor": "val_bleu", "mode": "max"}, 2, 2, "5 in epoch 2"),
        ({"monitor": "loss"}, 3, 0, "1 in epoch 3"),
    ],
)
def test_plot_history_shows_the_best_epoch(options, best, panel, note):
    panels = inspection.plot_history(HISTORY, **options).get_axes()
    for axes in panels:
        assert [best, best] in [list(line.get_xdata()) for line in axes.get_lines()]
    assert [[text.get_text() for text in axes.texts] for axes in panels] == [
        [note] if i == panel else [] for i in range(4)
    ]


def test_plot_history_accepts_the_history_of_fit():
    import keras

    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    data = np.zeros((4, 1), "float32")
    history = model.fit(data, data, epochs=4, initial_epoch=2, validation_data=(data, data), verbose=0)
    (panel,) = inspection.plot_history(history).get_axes()
    assert {label: [x for x, _ in points] for label, points in drawn(panel).items()} == {
        "training": [3, 4],
        "validation": [3, 4],
    }
