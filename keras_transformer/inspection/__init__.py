"""Pictures of what a model does. Needs matplotlib."""

from keras_transformer.inspection.attention_maps import cross_attention_weights as cross_attention_weights
from keras_transformer.inspection.attention_maps import plot_attention as plot_attention
from keras_transformer.inspection.curves import plot_history as plot_history

__all__ = ["cross_attention_weights", "plot_attention", "plot_history"]
