"""Attention weights and attributions, and plots of attention, embeddings, relations, tokens and training curves."""

from keras_transformer.inspection.attention_maps import plot_attention as plot_attention
from keras_transformer.inspection.attention_maps import plot_attention_weights as plot_attention_weights
from keras_transformer.inspection.attention_weights import attention_weights as attention_weights
from keras_transformer.inspection.attention_weights import cross_attention_weights as cross_attention_weights
from keras_transformer.inspection.attention_weights import self_attention_weights as self_attention_weights
from keras_transformer.inspection.attributions import attention_attributions as attention_attributions
from keras_transformer.inspection.curves import plot_history as plot_history
from keras_transformer.inspection.embeddings import nearest_tokens as nearest_tokens
from keras_transformer.inspection.embeddings import plot_embeddings as plot_embeddings
from keras_transformer.inspection.relations import plot_relation as plot_relation
from keras_transformer.inspection.tokens import plot_tokens as plot_tokens

__all__ = [
    "attention_attributions",
    "attention_weights",
    "cross_attention_weights",
    "nearest_tokens",
    "plot_attention",
    "plot_attention_weights",
    "plot_embeddings",
    "plot_history",
    "plot_relation",
    "plot_tokens",
    "self_attention_weights",
]
