"""Packages of Argos Translate: translators for its library, its desktop programs and LibreTranslate."""

import os
import pathlib
import re
import tempfile
import zipfile
from collections.abc import Callable
from typing import Any

from keras_transformer import generation, memory, pipelines, text
from keras_transformer.export import model_card
from keras_transformer.export.bundle_writer import check_pipeline
from keras_transformer.export.parity.comparison import Texts, WithPipeline
from keras_transformer.export.tensorflow_process import on_tensorflow
from keras_transformer.export.to_ctranslate2.target import CTranslate2
from keras_transformer_options.arguments import check, check_one_of
from keras_transformer_serving import files
from keras_transformer_serving.ctranslate2_engines.loading import CTRANSLATE2
from keras_transformer_serving.graph_files import BY_DEFAULT, FLOAT32
from keras_transformer_serving.pipelines import languages

SUFFIX = ".argosmodel"
# Argos Translate's search, whatever the pipeline's.
_SEARCH = generation.Beam(4, length_penalty=0.2, normalization="length", early_stopping="num_beams")
_MAX_NEW_TOKENS = 256
_ARGOS_VERSION = "1.9"
_CODE = re.compile(r"[a-z]{2,3}")
_README = """# {from_name} to {to_name}

A translator of keras_transformer for Argos Translate: a `{model}` with {count:,} parameters, matrices in {precision}.

Install it with `argospm install {name}`, from a menu of a desktop program, or for LibreTranslate.

## Licence and origin

{license}
"""


@on_tensorflow
def argos_package(
    pipeline: Any,
    file: str | os.PathLike[str],
    *,
    from_code: str,
    to_code: str,
    precision: str = "int8",
    version: str = "1.0",
    texts: Texts | None = None,
    overwrite: bool = False,
    say: Callable[[str], None] = print,
) -> pathlib.Path:
    """Export a translator as a package of Argos Translate, which LibreTranslate and desktop programs install.

    The package has a model of CTranslate2, the SentencePiece model and the metadata. Its ids are compared with the
    pipeline's, by Argos Translate's own search: 4 beams, of hypotheses of n tokens ranked by the log-probability over
    n^0.2, and at most 256 tokens. Argos Translate splits texts into sentences, and writes a space for "_".

    Args:
        pipeline: a `TextToText` with a `SentencePieceTokenizer` and a model that CTranslate2 runs; see `bundle`.
        file: the new file, which ends in ".argosmodel".
        from_code: the code of the language of texts, such as "es".
        to_code: the code of the language of translations, such as "en".
        precision: that of the matrices: "int8", "float16" or "float32".
        version: the version of the package.
        texts: texts to compare the pipeline and the package on, as for `bundle`; by default made from the vocabulary.
        overwrite: whether to replace an existing file.
        say: a function that prints the result of the comparison.

    Returns:
        The file, which is created only when it is complete and verified.

    Raises:
        FileExistsError: if the file exists and `overwrite` is False.
        ImportError: if CTranslate2 is not installed.
        ParityError: if an output differs; in another precision than float32, if outputs differ too much.
        ValueError: if an argument is invalid, or CTranslate2 does not have a part of the model.

    Example:
        >>> argos_package(translator, "es_en.argosmodel", from_code="es", to_code="en")  # doctest: +SKIP
        PosixPath('es_en.argosmodel')
    """
    file = pathlib.Path(file)
    check(file.suffix == SUFFIX, f"end in {SUFFIX}", file=str(file))
    for name, code in (("from_code", from_code), ("to_code", to_code)):
        is_code = isinstance(code, str) and _CODE.fullmatch(code) is not None
        check(is_code, 'be the code of a language, such as "es"', **{name: code})
    check(from_code != to_code, "differ from {from_code}", to_code=to_code, from_code=from_code)
    check_one_of((FLOAT32, *BY_DEFAULT), precision=precision)
    check(isinstance(version, str) and bool(version), "be a string", version=version)
    _check_translator(pipeline)
    if file.exists() and not overwrite:
        raise FileExistsError(f"`file` must be new unless overwrite=True; `{file}` exists and is not changed")
    pipeline = pipeline.with_settings(_SEARCH, max_new_tokens=_MAX_NEW_TOKENS)
    target = CTranslate2(tuple(dict.fromkeys((FLOAT32, precision))))
    target.check(pipeline)
    name = f"{from_code}_{to_code}"
    with tempfile.TemporaryDirectory(prefix=f".{file.name}.", dir=files.nearest_folder(file)) as temporary:
        folder, report = pathlib.Path(temporary), dict[str, Any]()
        with memory.quick_collections():
            target.export(pipeline, folder, report, WithPipeline(pipeline, texts, say), say)
        figures = report["graphs"][CTRANSLATE2]
        say(
            f"compared {report['texts']} texts: {', '.join(f'{value} {key}' for key, value in figures.items())}"
        )
        place = folder if precision == FLOAT32 else folder / precision
        model = {path.name: path.read_bytes() for path in sorted(place.iterdir()) if path.is_file()}
    metadata = {
        "package_version": version,
        "argos_version": _ARGOS_VERSION,
        "from_code": from_code,
        "from_name": languages.name_of(from_code),
        "to_code": to_code,
        "to_name": languages.name_of(to_code),
    }
    readme = _README.format(
        **metadata,
        model=type(pipeline.model).__name__,
        count=pipeline.model.count_params(),
        precision=precision,
        name=file.name,
        license=model_card.license_of(pipeline.source),
    )
    contents = {
        "metadata.json": files.json_bytes(metadata),
        "README.md": readme.encode(),
        "sentencepiece.model": pipeline.tokenizer.model_bytes,
        **{f"model/{path}": content for path, content in model.items()},
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    with files.new_file(file) as stream, zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as package:
        for path, content in contents.items():
            package.writestr(f"{name}/{path}", content)
    return file


def _check_translator(pipeline: Any) -> None:
    """Raise a ValueError unless Argos Translate can run a pipeline."""
    check_pipeline(pipeline)
    if not isinstance(pipeline, pipelines.TextToText):
        raise ValueError(f"`pipeline` must be a `TextToText`. Received: a {type(pipeline).__name__}")
    if type(pipeline.tokenizer) is not text.SentencePieceTokenizer:
        received = type(pipeline.tokenizer).__name__
        raise ValueError(f"`pipeline` must have a `SentencePieceTokenizer`. Received: a {received}")
    if pipeline.constraints:
        raise ValueError(
            f"`pipeline` must be without constraints, which Argos Translate lacks. Received: {pipeline.constraints}"
        )
    if pipeline.languages:
        raise ValueError(
            f"`pipeline` must translate from one language to another. Received: {len(pipeline.languages)} languages"
        )
    limit = getattr(pipeline.model, "max_length", None)
    if limit is not None and limit <= _MAX_NEW_TOKENS:
        raise ValueError(
            f"`pipeline` must have a model for more than {_MAX_NEW_TOKENS} tokens, those of Argos Translate's outputs. "
            f"Received: max_length={limit}"
        )
