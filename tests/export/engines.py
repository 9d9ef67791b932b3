"""The engine of a pipeline that was written for CTranslate2."""

import keras_transformer_serving as serving
from keras_transformer.export.to_ctranslate2 import target


def engine_of(pipeline, folder):
    """Return the settings of a pipeline and its engine, without a comparison."""
    target.CTranslate2().write(pipeline, folder)
    files, config = serving.PartFiles.of_folder(folder), pipeline.export_config()
    return config, serving.ServedCTranslate2.engine(files, config, serving.EngineOptions())
