"""Pipelines that run a model once as TensorFlow functions, from strings, images or graphs to outputs."""

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from keras_transformer.text.pretokenizers import characters

Tensor = Any

_SPACES = [code for code in range(0x110000) if chr(code).isspace()]


class Windows(NamedTuple):
    """Overlapping windows of token ids that fit the model's maximum length.

    Attributes:
        ids: int32, ragged (R, None).
        owner: int32 (R,), the index of each window's text.
        start: int32 (R,), the offset of each window in its text's ids.
        places: int32, ragged (R, None), the index of each id among those of all texts.
    """

    ids: tf.RaggedTensor
    owner: Tensor
    start: Tensor
    places: tf.RaggedTensor


class Words(NamedTuple):
    """The words of texts, ragged (B, None), with the indices of their first characters and after their last ones."""

    text: tf.RaggedTensor
    start: tf.RaggedTensor
    end: tf.RaggedTensor


def class_of_text(pipeline: Any, text: Tensor, text_pair: Tensor | None = None) -> dict[str, Tensor]:
    """Classify strings (B,), or pairs of strings; see `_of_classes` for the outputs."""
    first = pipeline.tokenizer.tokenize(text)
    if text_pair is None:
        windows = cut(pipeline, first, _room(pipeline, 2))
        inputs = _inputs(pipeline, windows.ids)
    else:
        second = pipeline.tokenizer.tokenize(text_pair)
        windows = cut(pipeline, second, _room(pipeline, 3) - _lengths(first))
        inputs = _inputs(pipeline, tf.gather(first, windows.owner), windows.ids)
    found = scores(pipeline, call(pipeline.model)(inputs))
    return _of_classes(pipeline, tf.math.unsorted_segment_mean(found, windows.owner, tf.size(text)))


def vector_of_text(pipeline: Any, text: Tensor) -> dict[str, Tensor]:
    """Embed strings (B,): "embedding" (B, D)."""
    windows = cut(pipeline, pipeline.tokenizer.tokenize(text), _room(pipeline, 2))
    weights = tf.cast(_lengths(windows.ids) + 2, tf.float32)[:, None]
    vectors = weights * pipeline.vectors(_inputs(pipeline, windows.ids))
    total, tokens = (
        tf.math.unsorted_segment_sum(values, windows.owner, tf.size(text)) for values in (vectors, weights)
    )
    return {"embedding": normalized(pipeline, total / tokens)}


def normalized(pipeline: Any, vectors: Tensor) -> Tensor:
    """Normalise vectors (B, D) to length 1 if the pipeline does."""
    return (
        vectors / tf.maximum(tf.norm(vectors, axis=-1, keepdims=True), 1e-12)
        if pipeline.normalize
        else vectors
    )


def pieces_of_gaps(pipeline: Any, text: Tensor) -> dict[str, Tensor]:
    """Predict mask tokens of strings (B,): "pieces" and "probabilities" (B, G, top), padded with "" and 0."""
    tokenizer = pipeline.tokenizer
    parts = tf.strings.split(_valid(text), pipeline.mask)  # (B, None)
    ids = tokenizer.tokenize(parts.values)
    gap = tf.fill([ids.nrows(), 1], tokenizer.mask_id)
    ids = parts.with_values(tf.concat([ids, gap], axis=1)).merge_dims(1, 2)[:, :-1]
    windows = cut(pipeline, ids, _room(pipeline, 2))
    inputs = _inputs(pipeline, windows.ids)
    gaps = tf.where(inputs["token_ids"] == tokenizer.mask_id)  # (N, 2)
    found = tf.nn.softmax(tf.gather_nd(call(pipeline.model)(inputs), gaps))
    best, index = tf.math.top_k(found, pipeline.top)
    pieces = tf.constant([tokenizer.id_to_piece(id_) for id_ in range(tokenizer.vocabulary_size)])
    rows = tf.size(text, tf.int64)
    return {
        "pieces": tf.RaggedTensor.from_value_rowids(tf.gather(pieces, index), gaps[:, 0], rows).to_tensor(""),
        "probabilities": tf.RaggedTensor.from_value_rowids(best, gaps[:, 0], rows).to_tensor(0.0),
    }


def tags_of_words(pipeline: Any, text: Tensor) -> dict[str, Tensor]:
    """Label the words of strings (B,): "words", "labels", "probabilities", "starts", "ends" (B, W).

    Rows of fewer words are padded with "", -1 or 0.
    """
    words = words_of(text)
    ids = pipeline.tokenizer.tokenize(words.text.values)  # (all words, None)
    windows = cut(pipeline, words.text.with_values(ids).merge_dims(1, 2), _room(pipeline, 2))
    logits = call(pipeline.model)(_inputs(pipeline, windows.ids))
    found = tf.RaggedTensor.from_tensor(tf.nn.softmax(logits)[:, 1:], _lengths(windows.ids)).values
    # Of overlapping windows, the first in which a token is farthest from a margin.
    inside = tf.ragged.range(_lengths(windows.ids))
    depth = tf.minimum(inside, tf.expand_dims(_lengths(windows.ids), 1) - 1 - inside).values
    number = tf.cast(inside.value_rowids(), tf.int32)
    rank = depth * tf.size(windows.owner) - number
    places, count = windows.places.values, tf.size(ids.values)
    deepest = rank == tf.gather(tf.math.unsorted_segment_max(rank, places, count), places)
    found = tf.math.unsorted_segment_sum(tf.where(deepest[:, None], found, 0.0), places, count)
    known = ids.row_lengths() > 0
    of_words = tf.gather(found, tf.boolean_mask(ids.row_starts(), known))
    kept = words.text.with_values(known)
    label = named(pipeline.labels, tf.argmax(of_words, axis=-1))

    def dense(values: tf.RaggedTensor, padding_value: Any) -> Tensor:
        return tf.ragged.boolean_mask(values, kept).to_tensor(padding_value)

    def of_kept(values: Tensor, padding_value: Any) -> Tensor:
        return tf.ragged.boolean_mask(words.start, kept).with_values(values).to_tensor(padding_value)

    return {
        "words": dense(words.text, ""),
        "labels": of_kept(label, "" if label.dtype == tf.string else -1),
        "probabilities": of_kept(tf.reduce_max(of_words, axis=-1), 0.0),
        "starts": dense(words.start, -1),
        "ends": dense(words.end, -1),
    }


def answer_in_context(pipeline: Any, question: Tensor, context: Tensor) -> dict[str, Tensor]:
    """Answer questions in contexts, strings (B,): "answer", "start", "end", "probability" (B,), or "" and 0."""
    asked, words = pipeline.tokenizer.tokenize(question), words_of(context)
    of_words = pipeline.tokenizer.tokenize(words.text.values)
    ids = words.text.with_values(of_words).merge_dims(1, 2)
    windows = cut(pipeline, ids, _room(pipeline, 3) - _lengths(asked))
    asked = tf.gather(asked, windows.owner)
    starts, ends = tf.unstack(call(pipeline.model)(_inputs(pipeline, asked, windows.ids)), axis=1)
    places = tf.range(tf.shape(starts)[1])
    first = (_lengths(asked) + 2)[:, None]
    inside = (places >= first) & (places < first + _lengths(windows.ids)[:, None])
    length = places - places[:, None] + 1
    allowed = inside[:, :, None] & inside[:, None] & (length >= 1) & (length <= pipeline.max_answer_tokens)
    sums = tf.where(allowed, starts[:, :, None] + ends[:, None], starts.dtype.min)
    size = tf.size(places)
    sums = tf.reshape(sums, [tf.size(windows.owner), size * size])
    best, place = tf.reduce_max(sums, axis=1), tf.argmax(sums, axis=1, output_type=tf.int32)
    probability = 1 / tf.reduce_sum(tf.exp(sums - best[:, None]), axis=1)
    rows = tf.size(question)
    # The window with the largest logits.
    largest = best == tf.gather(tf.math.unsorted_segment_max(best, windows.owner, rows), windows.owner)
    number = tf.where(largest, tf.range(tf.size(windows.owner)), 0)
    number = tf.math.unsorted_segment_max(number, windows.owner, rows)  # (B,)
    offset = tf.gather(windows.start - first[:, 0], number) + tf.cast(ids.row_starts(), tf.int32)
    known = _lengths(ids) > 0

    def character(token: Tensor, of: tf.RaggedTensor) -> Tensor:
        word = tf.gather(tf.concat([of_words.value_rowids(), [0]], axis=0), tf.where(known, token, 0))
        return tf.where(known, tf.gather(tf.concat([of.values, [0]], axis=0), word), 0)

    start = character(tf.gather(place // size, number) + offset, words.start)
    end = character(tf.gather(place % size, number) + offset, words.end)
    return {
        "answer": tf.strings.substr(_valid(context), start, end - start, unit="UTF8_CHAR"),
        "start": start,
        "end": end,
        "probability": tf.where(known, tf.gather(probability, number), 0.0),
    }


def class_of_image(pipeline: Any, pixel_values: Tensor) -> dict[str, Tensor]:
    """Classify images (B, height, width, channels); see `_of_classes` for the outputs."""
    low, high = pipeline.model.value_range
    inside = tf.reduce_all((pixel_values >= low) & (pixel_values <= high))
    tf.debugging.Assert(inside, [f"an image has values that are not from {low} to {high}"])
    if pipeline.resize:
        pixel_values = pipeline.resized(pixel_values)
    return _of_classes(pipeline, scores(pipeline, pipeline.model(pixel_values, training=False)))


def class_of_nodes(pipeline: Any, nodes: Tensor, edges: Tensor) -> dict[str, Tensor]:
    """Classify nodes (B, T, D) with edges (B, E, 2), padded with -1: "label" (B, T), "probabilities" (B, T, C)."""
    count = tf.shape(nodes, tf.int64)[1]
    joined = tf.reduce_all((edges >= -1) & (edges < count))
    tf.debugging.Assert(joined, ["an edge joins a node that is not there"])
    tf.debugging.Assert(tf.reduce_all(tf.math.is_finite(nodes)), ["a node has features that are not finite"])
    return _best(pipeline, tf.nn.softmax(logits_of_nodes(pipeline, nodes, edges)))


def logits_of_nodes(pipeline: Any, nodes: Tensor, edges: Tensor) -> Tensor:
    """Return the float32 logits (B, T, C) of nodes."""
    # The kernel needs at least one edge; −1 is padding.
    edges = tf.pad(tf.cast(edges, tf.int32), [[0, 0], [0, 1], [0, 0]], constant_values=-1)
    return pipeline.model({"nodes": nodes, "edges": edges}, training=False)


def scores(pipeline: Any, logits: Tensor) -> Tensor:
    """Return the probabilities of logits (B, C), or the numbers of a regression."""
    functions = {"multi_label_classification": tf.sigmoid, "regression": tf.identity}
    return functions.get(pipeline.problem_type, tf.nn.softmax)(logits)


def _of_classes(pipeline: Any, found: Tensor) -> dict[str, Tensor]:
    """Return the outputs of a classifier for scores (B, C).

    These are "label" (B,) and "probabilities" (B, C); for multi-label classification "labels" (B, L) above the
    threshold, padded with "" or −1, in place of "label"; for a regression only "values" (B, C).
    """
    if pipeline.problem_type == "regression":
        return {"values": found}
    if pipeline.problem_type != "multi_label_classification":
        return _best(pipeline, found)
    classes = tf.broadcast_to(tf.range(tf.shape(found)[1]), tf.shape(found))
    chosen = tf.ragged.boolean_mask(classes, found > pipeline.threshold)
    labels = named(pipeline.labels, chosen.values)
    padding_value = "" if labels.dtype == tf.string else -1
    return {"labels": chosen.with_values(labels).to_tensor(padding_value), "probabilities": found}


def _best(pipeline: Any, probabilities: Tensor) -> dict[str, Tensor]:
    return {
        "label": named(pipeline.labels, tf.argmax(probabilities, axis=-1)),
        "probabilities": probabilities,
    }


def named(labels: list[Any], index: Tensor) -> Tensor:
    """Return the labels of classes: int64 if all are integers, otherwise strings."""
    if all(isinstance(label, int) for label in labels):
        return tf.gather(tf.constant(labels, tf.int64), index)
    return tf.gather(tf.constant([str(label) for label in labels]), index)


def call(model: Any) -> Callable[[Any], Tensor]:
    """Return the model, or its `classify` method, as a function without dropout."""
    return lambda inputs: getattr(model, "classify", model)(inputs, training=False)


def words_of(text: Tensor) -> Words:
    """Split texts (B,) into words at white space."""
    codes = tf.strings.unicode_decode(text, "UTF-8")  # (B, None)
    rows = codes.value_rowids()
    place = tf.cast(tf.range(tf.size(rows, tf.int64)) - tf.gather(codes.row_starts(), rows), tf.int32)
    space = tf.reduce_any(codes.values[:, None] == tf.constant(_SPACES), axis=1)
    new_row = characters.row_starts(rows)
    starts = ~space & (new_row | characters.shifted(space, 1, True))
    ends = ~space & (characters.shifted(new_row, -1, True) | characters.shifted(space, -1, True))
    kept = (tf.boolean_mask(values, ~space) for values in (codes.values, rows, starts))
    words = characters.cut(*kept, codes.nrows())
    return Words(
        words,
        words.with_values(tf.boolean_mask(place, starts)),
        words.with_values(tf.boolean_mask(place, ends) + 1),
    )


def cut(pipeline: Any, ids: tf.RaggedTensor, room: Tensor) -> Windows:
    """Split ids into windows of at most `room` (B,) ids that overlap by half, or raise if the pipeline refuses."""
    lengths = _lengths(ids)
    room = tf.broadcast_to(room, tf.shape(lengths))
    beyond = tf.maximum(lengths - room, 0)
    short = beyond == 0
    fits = short | (room >= 2) if pipeline.long_texts == "window" else short
    message = f"a text is longer than the {pipeline.encoder.max_length} positions of the model"
    with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(fits), [message])]):
        lengths = tf.identity(lengths)  # so that nothing reads the ids before the check
    stride = tf.maximum(room - room // 2, 1)
    count = 1 + (beyond + stride - 1) // stride
    owner = tf.repeat(tf.range(tf.size(count)), count)
    number = tf.ragged.range(count).values
    start = tf.minimum(number * tf.gather(stride, owner), tf.gather(beyond, owner))
    begin = tf.gather(tf.cast(ids.row_starts(), tf.int32), owner) + start
    places = tf.ragged.range(begin, begin + tf.gather(tf.minimum(lengths, room), owner))
    return Windows(places.with_values(tf.gather(ids.values, places.values)), owner, start, places)


def _room(pipeline: Any, special: int) -> Tensor:
    """Return the number of ids that fit in addition to the special ids."""
    return tf.constant((pipeline.encoder.max_length or 2**30) - special)


def _inputs(
    pipeline: Any, first: tf.RaggedTensor, second: tf.RaggedTensor | None = None
) -> dict[str, Tensor]:
    """Return the model's inputs for rows of ids, with special ids added."""
    model, tokenizer = pipeline.model, pipeline.tokenizer
    special_tokens = getattr(model, "special_ids", None)
    if special_tokens is None:
        before = _joined(tokenizer.start_id, first, tokenizer.end_id)
        after = before[:, :0] if second is None else _joined(second, tokenizer.end_id)
        segments = tf.concat([tf.zeros_like(before), tf.ones_like(after)], axis=1)
        rows = tf.concat([before, after], axis=1)
        return {"token_ids": rows.to_tensor(tokenizer.padding_value), "segment_ids": segments.to_tensor(0)}
    start, delimiter, extract = special_tokens
    if second is None:
        return {"token_ids": _joined(start, first, extract).to_tensor(tokenizer.padding_value)}
    orders = [(first, second), (second, first)] if model.symmetric else [(first, second)]
    rows = [
        _joined(start, one, delimiter, other, extract).to_tensor(tokenizer.padding_value)
        for one, other in orders
    ]
    return {"token_ids": tf.stack(rows, axis=1) if model.symmetric else rows[0]}


def _joined(*parts: int | tf.RaggedTensor) -> tf.RaggedTensor:
    """Concatenate ragged rows and columns of single ids."""
    rows = next(part for part in parts if isinstance(part, tf.RaggedTensor)).nrows()
    return tf.concat(
        [part if isinstance(part, tf.RaggedTensor) else tf.fill([rows, 1], part) for part in parts], axis=1
    )


def _lengths(rows: tf.RaggedTensor) -> Tensor:
    return tf.cast(rows.row_lengths(), tf.int32)


def _valid(text: Tensor) -> Tensor:
    return tf.strings.unicode_transcode(text, "UTF-8", "UTF-8", errors="replace")
