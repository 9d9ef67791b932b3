"""Transformer models: encoders, decoders, encoder–decoders, speech recognition and graph attention networks."""

from keras_transformer.models.bert import BERT as BERT
from keras_transformer.models.bert_heads import MaskedLanguageModel as MaskedLanguageModel
from keras_transformer.models.bert_heads import Pretraining as Pretraining
from keras_transformer.models.bert_heads import SequenceClassifier as SequenceClassifier
from keras_transformer.models.bert_heads import SpanClassifier as SpanClassifier
from keras_transformer.models.bert_heads import TokenClassifier as TokenClassifier
from keras_transformer.models.causal_language_model import CausalLanguageModel as CausalLanguageModel
from keras_transformer.models.ctc import CTC as CTC
from keras_transformer.models.encoder_decoder_classifier import (
    EncoderDecoderClassifier as EncoderDecoderClassifier,
)
from keras_transformer.models.gat import GAT as GAT
from keras_transformer.models.gat_heads import GraphClassifier as GraphClassifier
from keras_transformer.models.gat_heads import LinkPredictor as LinkPredictor
from keras_transformer.models.gemma import Gemma as Gemma
from keras_transformer.models.gpt import GPT as GPT
from keras_transformer.models.gpt_heads import GPTClassifier as GPTClassifier
from keras_transformer.models.gpt_heads import GPTMultipleChoice as GPTMultipleChoice
from keras_transformer.models.llama import Llama as Llama
from keras_transformer.models.modernbert import ModernBERT as ModernBERT
from keras_transformer.models.sentence_encoder import SentenceEncoder as SentenceEncoder
from keras_transformer.models.speech_encoder import SpeechEncoder as SpeechEncoder
from keras_transformer.models.t5 import T5 as T5
from keras_transformer.models.transformer import Transformer as Transformer
from keras_transformer.models.transformer_xl import TransformerXL as TransformerXL
from keras_transformer.models.unlimiformer import Unlimiformer as Unlimiformer
from keras_transformer.models.vit import ViT as ViT
from keras_transformer.models.vit_heads import ImageSegmenter as ImageSegmenter
from keras_transformer.models.whisper import Whisper as Whisper

__all__ = [
    "BERT",
    "CTC",
    "GAT",
    "GPT",
    "T5",
    "CausalLanguageModel",
    "EncoderDecoderClassifier",
    "GPTClassifier",
    "GPTMultipleChoice",
    "Gemma",
    "GraphClassifier",
    "ImageSegmenter",
    "LinkPredictor",
    "Llama",
    "MaskedLanguageModel",
    "ModernBERT",
    "Pretraining",
    "SentenceEncoder",
    "SequenceClassifier",
    "SpanClassifier",
    "SpeechEncoder",
    "TokenClassifier",
    "Transformer",
    "TransformerXL",
    "Unlimiformer",
    "ViT",
    "Whisper",
]
