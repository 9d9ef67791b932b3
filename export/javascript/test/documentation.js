/** The code of the guide. */

import { readFileSync } from "node:fs";

const GUIDES = ["../../../docs/javascript.md", "../README.md"];

/** Return the blocks of code in a language, of all guides. */
export function codeBlocks(language) {
  const pattern = new RegExp(`^\`\`\`${language}\\n(.*?)^\`\`\``, "gms");
  return GUIDES.flatMap((guide) => {
    const text = readFileSync(new URL(guide, import.meta.url), "utf8");
    return [...text.matchAll(pattern)].map((match) => match[1]);
  });
}
