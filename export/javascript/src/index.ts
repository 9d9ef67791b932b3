/** Exports of keras_transformer in JavaScript: what the entry points for Node and for browsers share. */

export type { Config, Progress, Source } from "./bundle.js";
export { InvalidInputError, ParityError } from "./errors.js";
export { uniformNoise, type Hypotheses } from "./graphs.js";
export { loadFrom, type LoadOptions, type Model, type Pipelines } from "./load.js";
export type { Precision, Runtime } from "./onnx.js";
export type { Classes, ClassificationOptions, Label } from "./pipelines/classification.js";
export type { EmbeddingOptions } from "./pipelines/embedding.js";
export type { MaskPrediction } from "./pipelines/fill-mask.js";
export type { GenerateOptions, StreamOptions } from "./pipelines/generating.js";
export type { QuestionOptions, Span } from "./pipelines/question-answering.js";
export type { RankOptions, RankedText } from "./pipelines/reranking.js";
export type { CallOptions } from "./pipelines/texts.js";
export type { TaggedWord } from "./pipelines/token-classification.js";
export { tokenizerOf, type Tokenizer } from "./text/index.js";
