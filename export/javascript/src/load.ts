/** Loading of exports. */

import type { InferenceSession } from "onnxruntime-common";

import { Bundle, type Config, type Progress, type Source } from "./bundle.js";
import { Graphs } from "./graphs.js";
import { Sessions, type Precision, type Runtime } from "./onnx.js";
import { TextClassification } from "./pipelines/classification.js";
import { Embedding } from "./pipelines/embedding.js";
import { FillMask } from "./pipelines/fill-mask.js";
import { TextGeneration, TextToText } from "./pipelines/generating.js";
import { QuestionAnswering } from "./pipelines/question-answering.js";
import { Reranking } from "./pipelines/reranking.js";
import { TokenClassification } from "./pipelines/token-classification.js";
import { compareTokenizers, tokenizerOf, type TokenizerExamples } from "./text/index.js";
import { shown } from "./errors.js";

/** The options of `load`. */
export interface LoadOptions {
  /** "float32", or "float16" or "int8" if the export has them. */
  precision?: Precision;
  /** Called while files are read, with the number of bytes so far and of all that `load` reads. */
  onProgress?: (progress: Progress) => void;
  /** Whether to read the graphs of a call now, or those of `stream` if the export can stream; the others when used. */
  graphs?: "loop" | "steps";
  /** The key that the export must be signed with; by default any signature is ignored. */
  signatureKey?: Uint8Array<ArrayBuffer>;
  /** Options of ONNX Runtime's sessions, such as `executionProviders`. */
  session?: InferenceSession.SessionOptions;
  /** ONNX Runtime, by default the package `onnxruntime-node` in Node and `onnxruntime-web` elsewhere. */
  runtime?: Runtime;
}

const FORWARD = { Embedding, FillMask, QuestionAnswering, Reranking, TextClassification, TokenClassification };
const GENERATING = { TextGeneration, TextToText };

/** The classes of pipelines, by name. */
export interface Pipelines {
  Embedding: Embedding;
  FillMask: FillMask;
  QuestionAnswering: QuestionAnswering;
  Reranking: Reranking;
  TextClassification: TextClassification;
  TextGeneration: TextGeneration;
  TextToText: TextToText;
  TokenClassification: TokenClassification;
}

/** An exported pipeline: a function from texts to answers, with the methods of its class. */
export type Model<Name extends keyof Pipelines = keyof Pipelines> = Pipelines[Name]["call"] & Pipelines[Name];

/** Load an export from a source of its files; see `load`. */
export async function loadFrom(source: Source, runtime: Runtime, options: LoadOptions): Promise<any> {
  const bundle = await Bundle.open(source, options.signatureKey, options.onProgress);
  const config = await bundle.readJson<Config>("config.json");
  const { pipeline, tokenizer_class: tokenizerClass, tokenizer_file: tokenizerFile } = config;
  const known = [...Object.keys(FORWARD), ...Object.keys(GENERATING)];
  if (!known.includes(pipeline)) {
    throw new Error(`\`pipeline\` must be one of ${known.join(", ")}. Received: an export of ${shown(pipeline)}`);
  }
  if (config.aggregation === "simple") {
    throw new Error('`aggregation` must be "first", "average" or "max" in JavaScript. Received: "simple"');
  }
  const parity = await bundle.readJson<any>("parity.json");
  if (!parity.onnx) throw new Error("an export must have ONNX graphs. Export with `keras_transformer.export.onnx`");
  const { precision = "float32", graphs = "loop" } = options;
  const sessions = new Sessions(bundle, runtime, parity.onnx.signatures ?? {}, precision, options.session ?? {});
  const tokenizer = tokenizerOf(tokenizerClass, await bundle.read(`tokenizer/${tokenizerFile}`));
  compareTokenizers(tokenizer, await bundle.readJson<TokenizerExamples>("tokenizer/examples.json"));
  let loaded: Pipelines[keyof Pipelines];
  let names: string[];
  if (Object.hasOwn(GENERATING, pipeline)) {
    const model = new GENERATING[pipeline as keyof typeof GENERATING](new Graphs(sessions, config), config, tokenizer);
    [loaded, names] = [model, model.graphNames[model.cannotStream ? "loop" : graphs]];
  } else {
    const model = new FORWARD[pipeline as keyof typeof FORWARD](sessions, config, tokenizer);
    [loaded, names] = [model, model.graphNames];
  }
  bundle.expect(names.flatMap((name) => sessions.files(name)));
  for (const name of names) await sessions.get(name);
  return callable(loaded);
}

/** Return a pipeline as a function that calls it, with its properties and methods. */
function callable<P extends { call: (...args: any[]) => any }>(pipeline: P): P["call"] & P {
  const call = (...args: unknown[]): unknown => pipeline.call(...args);
  return Object.setPrototypeOf(call, pipeline);
}
