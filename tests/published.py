"""Folders of `transformers` with random weights, in place of published models."""

import json

import sentencepiece

import keras_transformer as kt
from tests.sentence_pieces import T5_IDS, sentence_piece

PUBLISHED = "Helsinki-NLP/opus-mt-es-en"


def write_hugging_face_folders(folder):
    """Write folders of `transformers` with random weights, in place of downloads."""
    texts = ["la casa es azul", "the house is blue", "el perro come pan", "a fine film about the bird"] * 3
    sizes = {"num_layers": 1, "num_heads": 2, "model_dim": 16, "hidden_dim": 32}

    def write(name, model, **files):
        path = kt.interop.to_hugging_face(model, folder / name)
        for file, content in files.items():
            (path / file.replace("_", ".")).write_bytes(content)

    pieces = sentence_piece(texts, 50)
    processor = sentencepiece.SentencePieceProcessor(model_proto=pieces)
    ids = ["</s>", "<unk>", *(processor.id_to_piece(i) for i in range(3, processor.vocab_size())), "<pad>"]
    pad_id = len(ids) - 1
    marian = kt.models.Transformer(
        len(ids), **sizes, normalization="post", activation="silu", position_layout="halves", output_bias=True,
        epsilon=1e-5, pad_id=pad_id, start_id=pad_id, end_id=0,
    )  # fmt: skip
    vocabulary = json.dumps({piece: id_ for id_, piece in enumerate(ids)}).encode()
    write("opus-mt-es-en", marian, source_spm=pieces, target_spm=pieces, vocab_json=vocabulary)

    pieces = sentence_piece(texts, 50, **T5_IDS)
    write("t5-small", kt.models.T5(200, **sizes, key_dim=8), spiece_model=pieces)

    tokenizer = kt.text.WordPieceTokenizer.train(texts, 120)
    words = "\n".join(tokenizer.vocabulary).encode()

    def encoder():
        return kt.models.BERT(tokenizer.vocabulary_size, **sizes, max_length=32)

    write("bert-base-cased", kt.models.MaskedLanguageModel(encoder()), vocab_txt=words)
    write("bert-sst2", kt.models.SequenceClassifier(encoder(), 2), vocab_txt=words)
    write("bert-ner", kt.models.TokenClassifier(encoder(), 3), vocab_txt=words)
    write("bert-squad", kt.models.SpanClassifier(encoder()), vocab_txt=words)

    write("vit-base", kt.models.ViT((16, 16), patch_size=8, num_classes=3, **sizes))

    end_of_text = dict.fromkeys(("unknown", "start", "end"), "<|endoftext|>")
    byte_pairs = kt.text.BytePairTokenizer.train(texts, 300, special_tokens=end_of_text)
    gpt2 = kt.models.GPT(
        byte_pairs.vocabulary_size, **sizes, max_length=32, pad_id=None, end_id=byte_pairs.end_id
    )
    vocabulary = json.dumps({piece: id_ for id_, piece in enumerate(byte_pairs.vocabulary)}).encode()
    merges = "\n".join(["#version: 0.2", *(" ".join(pair) for pair in byte_pairs.merges)]).encode()
    write("gpt2", gpt2, vocab_json=vocabulary, merges_txt=merges)


def publish(hub, downloads):
    """Add the translator of the pages to the stub of the hub."""
    folder = downloads / PUBLISHED.partition("/")[2]
    hub.add(PUBLISHED, {path.name: path.read_bytes() for path in folder.iterdir()})
