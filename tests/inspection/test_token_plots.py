import itertools

import matplotlib as mpl
import numpy as np
import pytest

from keras_transformer.inspection import plot_tokens

TOKENS = ["a", "token", "that", "##s", "long", "enough", "for", "a", "second", "line"]


def boxes(axes):
    return [patch for patch in axes.patches if isinstance(patch, mpl.patches.Rectangle)]


def fills(axes):
    return [patch.get_facecolor() for patch in boxes(axes)]


def test_tokens_are_read_from_left_to_right_and_line_by_line():
    axes = plot_tokens(TOKENS, width=20, title="a title")
    assert [text.get_text() for text in axes.texts] == TOKENS
    places = [text.get_position() for text in axes.texts]
    assert places == sorted(places, key=lambda place: (place[1], place[0]))
    assert len({line for _, line in places}) == 3
    assert axes.get_title(loc="left") == "a title"


@pytest.mark.parametrize("width", [6, 20, 96])
def test_each_text_is_inside_its_box_and_boxes_do_not_overlap(width):
    axes = plot_tokens(TOKENS, width=width)
    axes.figure.draw_without_rendering()
    extents = [box.get_window_extent() for box in boxes(axes)]
    for text, box in zip(axes.texts, extents, strict=True):
        written = text.get_window_extent()
        assert box.x0 - 1 <= written.x0
        assert written.x1 <= box.x1 + 1
    assert not any(one.overlaps(other) for one, other in itertools.combinations(extents, 2))


def test_text_fits_into_existing_axes():
    import matplotlib.pyplot as plt

    _, (left, right) = plt.subplots(1, 2, figsize=(4, 1))
    assert plot_tokens(TOKENS, width=30, axes=right) is right
    assert not left.texts
    right.figure.draw_without_rendering()
    frame = right.get_window_extent()
    assert all(text.get_window_extent().x1 <= frame.x1 + 1 for text in right.texts)


def test_larger_values_are_darker():
    values = np.arange(len(TOKENS), dtype="float32")
    values[3] = np.nan
    axes = plot_tokens(TOKENS, values, label="nats")
    lightness = [sum(fill[:3]) for fill in fills(axes)]
    known = [light for index, light in enumerate(lightness) if index != 3]
    assert known == sorted(known, reverse=True)
    assert fills(axes)[3] == fills(plot_tokens(["x"]))[0]
    (key,) = [other for other in axes.figure.axes if other is not axes]
    assert key.get_ylabel() == "nats"


def test_group_has_one_colour_and_name_in_the_legend():
    groups = ["noun" if index % 3 == 1 else "verb" if index % 3 == 2 else None for index in range(10)]
    axes = plot_tokens(TOKENS, groups=groups)
    of_group = {
        group: {fill for fill, name in zip(fills(axes), groups, strict=True) if name == group}
        for group in set(groups)
    }
    assert all(len(found) == 1 for found in of_group.values())
    assert len(set.union(*of_group.values())) == 3
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["noun", "verb"]


@pytest.mark.parametrize("values", [None, np.full(10, np.nan)])
def test_tokens_without_values_are_drawn_plain(values):
    axes = plot_tokens(TOKENS, values)
    assert len(set(fills(axes))) == 1
    assert len(axes.figure.axes) == 1


def test_equal_values_and_no_tokens_are_drawn():
    plot_tokens(TOKENS, np.zeros(10)).figure.canvas.draw()
    plot_tokens([]).figure.canvas.draw()
