"""Write parts of an export by several targets, in one commit."""

import pathlib
from collections.abc import Sequence
from typing import Any

from keras_transformer import memory
from keras_transformer.export.bundle_writer import new_parts, with_shortlist
from keras_transformer.export.parity.comparison import Texts, WithPipeline
from keras_transformer.export.targets import ExportTarget, Say


def write_parts(
    pipeline: Any,
    folder: pathlib.Path,
    targets: Sequence[ExportTarget],
    texts: Texts | None,
    vocabulary_shortlist: Sequence[int] | None,
    signature_key: bytes | None,
    say: Say,
) -> list[str]:
    """Write the parts of targets; the arguments are those of `bundle`.

    Returns:
        The folders of the parts, relative to `folder`.
    """
    pipeline = with_shortlist(pipeline, vocabulary_shortlist)
    for target in targets:
        target.check(pipeline)
    parts = [target.part(folder) for target in targets]
    if len({*parts}) < len(parts):
        raise ValueError(f"`targets` must write different folders. Received: {', '.join(parts)}")
    compare = WithPipeline(pipeline, texts, say)
    with memory.quick_collections(), new_parts(pipeline, folder, parts, signature_key) as written:
        for number, (target, part) in enumerate(zip(targets, parts, strict=True), 1):
            if len(targets) > 1:
                say(f"[{number}/{len(targets)}] {target.title(part)}")
            target.export(pipeline, *written[part], compare, say)
    return parts
