"""SentencePiece models."""

import io

import sentencepiece

T5_IDS = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}


def sentence_piece(texts, size, **options):
    """Return the bytes of a model trained with the `sentencepiece` library, of at most `size` pieces."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_writer=model,
        vocab_size=size,
        hard_vocab_limit=False,
        minloglevel=2,
        **options,
    )
    return model.getvalue()
