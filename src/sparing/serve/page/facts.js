// Facts in a line: about a model, and about a text.

import { foldedSize, scorable } from "./text.js";

const plain = (number) => number.toLocaleString("en");

/** What a model is; `named` where the page does not name it elsewhere. */
export function modelFacts({ id, parameters, vocabulary, bits_per_byte: bits }, named) {
  const size = parameters >= 1e6 ? `${(parameters / 1e6).toFixed(1)}M` : plain(parameters);
  const figure = bits == null ? [] : [`${bits.toFixed(4)} bits per byte`];
  return [...(named ? [id] : []), `${size} parameters`, `reads ${vocabulary}`, ...figure].join(
    " · ",
  );
}

/** How long a text is, and how well the model predicts it. */
export function textFacts(characters) {
  if (!characters.length) return "";
  const read = scorable(characters);
  const known = read.filter((each) => each.bits != null);
  const bits = known.reduce((sum, each) => sum + each.bits, 0);
  const size = known.reduce((sum, each) => sum + each.size, 0);
  const count = foldedSize(characters) + read.reduce((sum, each) => sum + each.readers, 0);
  const parts = [`${plain(count)} ${count === 1 ? "character" : "characters"}`];
  if (size) parts.push(`${(bits / size).toFixed(2)} bits per byte`);
  if (foldedSize(characters))
    parts.push(`only the last ${plain(read.length)} are read, as if the text began there`);
  return parts.join(" · ");
}
