/** Masked language models. */

import { InvalidInputError, range, shown } from "../errors.js";
import { WHITE_SPACE, escaped } from "../text/tokenizer.js";
import { TextPipeline, at, softmax, type CallOptions, type Outputs, type Windows } from "./texts.js";

/** A predicted piece for a mask token, as the tokenizer writes it, and its probability. */
export interface MaskPrediction {
  piece: string;
  probability: number;
}

/** An exported masked language model. */
export class FillMask extends TextPipeline<MaskPrediction[][]> {
  /** Return for each mask token of a text its predictions, the best first. */
  call(text: string | readonly string[], options: CallOptions = {}): Promise<any> {
    return this.answers({ text }, options);
  }

  protected preprocess([text]: readonly string[], truncate: boolean): [Windows, undefined] {
    const { tokenizer } = this;
    const mask: string = this.config.mask;
    const before = new RegExp(`${WHITE_SPACE}+${escaped(mask)}`, "gu");
    const parts = (tokenizer.lstripMask ? text.replace(before, () => mask) : text).split(mask);
    if (parts.length === 1) {
      throw new InvalidInputError("text", `\`text\` must contain the mask token ${shown(mask)}. Received: none`);
    }
    const ids = parts.flatMap((part, place) => [...(place > 0 ? [tokenizer.maskId] : []), ...tokenizer.tokenize(part)]);
    const windows = this.windows(ids, "text", truncate);
    if (!windows.ids[0].includes(tokenizer.maskId)) {
      throw new InvalidInputError(
        "text",
        `\`text\` must contain the mask token ${shown(mask)} in the ${windows.ids[0].length} tokens that ` +
          "truncate: true keeps. Received: none",
      );
    }
    return [windows, undefined];
  }

  protected postprocess(outputs: Outputs, { ids: [ids] }: Windows): MaskPrediction[][] {
    const places = range(ids.length).filter((place) => ids[place] === this.tokenizer.maskId);
    return places.map((place) => {
      const probabilities = softmax(at(outputs.logits, 0, place + 1)); // after the start id
      const best = range(probabilities.length).sort((id, other) => probabilities[other] - probabilities[id] || id - other);
      return best.slice(0, this.config.top).map((id) => ({
        piece: this.tokenizer.pieces[id],
        probability: probabilities[id],
      }));
    });
  }
}
