"""Problem types of classifiers, named as in `transformers`."""

from keras_transformer_options.arguments import check_one_of, check_positive_integer

PROBLEM_TYPES = ("single_label_classification", "multi_label_classification", "regression")


def check_problem_type(problem_type: str | None, num_classes: int) -> str:
    """Return `problem_type`, by default regression for one class and single-label classification for several.

    Args:
        problem_type: one of `PROBLEM_TYPES`, or None for the default.
        num_classes: C, the number of logits.
    """
    check_positive_integer(num_classes=num_classes)
    single = PROBLEM_TYPES[0]
    if problem_type is None:
        return single if num_classes > 1 else "regression"
    check_one_of(PROBLEM_TYPES, problem_type=problem_type)
    if problem_type == single and num_classes == 1:
        raise ValueError(
            f"`problem_type` must not be {single!r} for one class. "
            f"Received: problem_type={problem_type!r}, num_classes={num_classes}"
        )
    return problem_type
