"""The contrastive loss of sentence embeddings."""

from typing import Any

import keras
from keras import ops

from keras_transformer.configuration import Configured
from keras_transformer.typing import Tensor
from keras_transformer_options.arguments import check_positive


@keras.saving.register_keras_serializable(package="keras_transformer")
class InfoNCE(Configured, keras.losses.Loss):
    r"""Contrastive loss with in-batch negatives: identify the second text of a pair among all second texts of a batch.

    $$\ell_i = -\log \frac{e^{\cos(u_i, v_i) / \tau}}{\sum_{j \in N(i)} e^{\cos(u_i, v_j) / \tau}}$$

    u and v are the vectors of the first and the second texts. N(i) is i and all pairs j that have no text in common
    with pair i: a second text that also belongs to $u_i$ is not a negative. A larger batch has more negatives; each
    replica of a `tf.distribute` strategy uses the negatives in its part of the batch.

    It is the multiple-negatives ranking loss of Sentence-BERT. With pairs of equal texts, which dropout embeds
    differently, it is the loss of unsupervised SimCSE.

    Args:
        temperature: τ.
        symmetric: whether to average it with the loss of identifying the first text among all first texts.
        name: the name of the loss.
        **kwargs: arguments of `keras.losses.Loss`.

    Call arguments:
        y_true: integers (B, 2), equal for equal texts: the labels of `data.sentence_pairs`.
        y_pred: vectors (B, 2, D), the output of `models.SentenceEncoder`.
        sample_weight: weights (B,).

    References:
        van den Oord et al., "Representation Learning with Contrastive Predictive Coding" (2018); Henderson et al.,
        "Efficient Natural Language Response Suggestion for Smart Reply" (2017), section 4.4; Gao et al., "SimCSE:
        Simple Contrastive Learning of Sentence Embeddings" (2021), section 3.
    """

    def __init__(
        self, temperature: float = 0.05, symmetric: bool = False, name: str = "info_nce", **kwargs: Any
    ) -> None:
        super().__init__(name=name, **kwargs)
        check_positive(temperature=temperature)
        self.temperature = temperature
        self.symmetric = symmetric

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        """Return the loss of each pair, (B,)."""
        for argument, tensor, expected in (("y_true", y_true, "(B, 2)"), ("y_pred", y_pred, "(B, 2, D)")):
            shape = tuple(tensor.shape)
            if len(shape) != expected.count(",") + 1 or shape[1] != 2:
                raise ValueError(
                    f"`{argument}` must be of shape {expected}. Received: {argument}.shape={shape}"
                )
        vectors = ops.normalize(ops.cast(y_pred, "float32"), axis=-1)
        scores = ops.matmul(vectors[:, 0], ops.transpose(vectors[:, 1])) / self.temperature  # (B, B)
        shared = ops.any(ops.equal(y_true[:, None], y_true[None]), axis=-1)
        is_other = ops.logical_not(ops.eye(ops.shape(scores)[0], dtype="bool"))
        scores = ops.where(ops.logical_and(shared, is_other), -1e9, scores)
        losses = _losses(scores)
        return (losses + _losses(ops.transpose(scores))) / 2 if self.symmetric else losses


def _losses(scores: Tensor) -> Tensor:
    return ops.logsumexp(scores, axis=1) - ops.diagonal(scores)
