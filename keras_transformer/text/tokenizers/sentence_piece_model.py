"""Serialised SentencePiece models, read and looked into."""

import sentencepiece


def read_model(model: bytes, with_padding: bool = True) -> sentencepiece.SentencePieceProcessor:
    """Reads a serialised model.

    Args:
        model: The content of a SentencePiece model file.
        with_padding: Whether it must have a padding id.

    Returns:
        The processor, for work outside of graphs.

    Raises:
        ValueError: If it is not a SentencePiece model or lacks a padding id.
    """
    if not isinstance(model, bytes) or not model:
        raise ValueError(
            "`model` must be the bytes of a SentencePiece model. "
            f"Received: model={model!r} (of type {type(model).__name__})"
        )
    try:
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    except RuntimeError as error:
        raise ValueError(
            f"`model` must be a SentencePiece model. Received: {len(model)} bytes, of which "
            f"sentencepiece says: {error}"
        ) from None
    if with_padding and processor.pad_id() < 0:
        raise ValueError(
            "`model` must have a padding id, as those of `SentencePieceTokenizer.train` do. "
            "Received: a model with pad_id=-1"
        )
    return processor


def keeps_spaces(processor: sentencepiece.SentencePieceProcessor) -> bool:
    """Whether a model adds one space in front of a text and leaves the text's own as they are.

    Args:
        processor: The model's processor.

    Returns:
        `True` for models of `SentencePieceTokenizer.train` without NMT normalisation.
    """
    return processor.normalize("  a") == "\u2581\u2581\u2581a"
