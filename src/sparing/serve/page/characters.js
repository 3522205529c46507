// Tokens become characters: bytes are read as UTF-8, and surprisals are summed.
//
// A token is {bytes, bits, top}: its bytes, -log2 of its probability, and the most probable tokens
// in its place as {bytes, bits}. A character is the smallest piece of text that begins and ends
// both between two tokens and between two of what a reader takes for characters.

const READERS = new Intl.Segmenter(undefined, { granularity: "grapheme" });
const BROKEN = "\ufffd";

/** Tokens of an answer whose log-probabilities are natural logarithms. */
export function toTokens(bytes, logprobs, top = []) {
  return bytes.map((each, at) => ({
    bytes: each,
    bits: toBits(logprobs[at]),
    top: (top[at] ?? []).map((other) => ({ bytes: other.bytes, bits: toBits(other.logprob) })),
  }));
}

const toBits = (nats) => (nats == null ? null : Math.max(0, -nats / Math.LN2));

/**
 * Read bytes as UTF-8: [{text, size, broken, open}].
 *
 * A byte that fits nowhere is broken and alone. A sequence that the end cuts off is broken and
 * open.
 */
export function decode(bytes) {
  const points = [];
  for (let at = 0; at < bytes.length; at += points.at(-1).size) points.push(pointAt(bytes, at));
  return points;
}

function pointAt(bytes, at) {
  const lead = bytes[at];
  const size =
    lead < 0x80 ? 1 : lead < 0xc2 ? 0 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : lead < 0xf5 ? 4 : 0;
  const broken = { text: BROKEN, size: 1, broken: true, open: false };
  if (size === 0) return broken;
  let code = size === 1 ? lead : lead & (0x7f >> size);
  for (let next = 1; next < size; next++) {
    if (at + next >= bytes.length) return { ...broken, size: next, open: true };
    if ((bytes[at + next] & 0xc0) !== 0x80) return broken;
    code = (code << 6) | (bytes[at + next] & 0x3f);
  }
  const least = [0, 0, 0x80, 0x800, 0x10000][size];
  if (code < least || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return broken;
  return { text: String.fromCodePoint(code), size, broken: false, open: false };
}

/** Group tokens into characters. */
export function group(tokens, written = false) {
  const points = decode(tokens.flatMap((token) => token.bytes));
  const ends = readersEnds(points);
  const characters = [];
  let inside = [];
  let [first, point, read, seen] = [0, 0, 0, 0];
  for (const token of tokens) {
    inside.push(token);
    read += token.bytes.length;
    while (point < points.length && seen + points[point].size <= read) seen += points[point++].size;
    if (seen !== read || !ends.has(read)) continue;
    characters.push(character(points.slice(first, point), inside, written));
    [inside, first] = [[], point];
  }
  if (inside.length) characters.push(character(points.slice(first), inside, written));
  return characters;
}

/** Offsets in bytes at which what a reader takes for a character ends. */
function readersEnds(points) {
  const ends = new Set();
  const whole = points.map((point) => point.text).join("");
  let [point, units, size] = [0, 0, 0];
  for (const { index, segment } of READERS.segment(whole)) {
    while (units < index + segment.length) {
      units += points[point].text.length;
      size += points[point++].size;
    }
    ends.add(size);
  }
  return ends;
}

function character(points, tokens, written) {
  const text = points.map((point) => point.text).join("");
  const known = tokens.every((token) => token.bits != null);
  return {
    text,
    shown: shown(text),
    size: tokens.reduce((sum, token) => sum + token.bytes.length, 0),
    tokens,
    bits: known ? tokens.reduce((sum, token) => sum + token.bits, 0) : null,
    readers: [...READERS.segment(text)].length,
    broken: points.some((point) => point.broken),
    open: points.some((point) => point.open),
    written,
    stale: false,
  };
}

/** Characters of a text that nobody has scored yet. */
export function unscored(text) {
  return [...READERS.segment(text)].map(({ segment }) => lump(segment));
}

/** One piece of text without a score, however long. */
export function lump(text) {
  const flags = { broken: false, open: false, written: false, stale: false };
  const size = new TextEncoder().encode(text).length;
  return { text, shown: shown(text), size, tokens: null, bits: null, readers: 1, ...flags };
}

/** What the text box can hold: control characters become the signs for them. */
export function shown(text) {
  return text.replace(/[\0-\x08\x0b-\x1f\x7f]/g, (each) =>
    each === "\x7f" ? "\u2421" : String.fromCharCode(0x2400 + each.charCodeAt(0)),
  );
}

/** How many bits each character that a reader sees carries. */
export const bitsEach = (each) => (each.bits == null ? null : each.bits / each.readers);

const SIGNS = { " ": "␣", "\n": "↵", "\t": "⇥" };
const SPOKEN = { " ": "space", "\n": "line end", "\t": "tab", "": "nothing" };
const hex = (bytes) => bytes.map((byte) => byte.toString(16).toUpperCase().padStart(2, "0"));

/** Bytes as one can see them: blanks get signs, and what is not a text gets hexadecimal digits. */
export function readable(bytes) {
  const points = decode(bytes);
  if (points.some((point) => point.broken)) return hex(bytes).join(" ");
  return shown(points.map((point) => SIGNS[point.text] ?? point.text).join(""));
}

/** Bytes as one can say them. */
export function spoken(bytes) {
  const points = decode(bytes);
  if (points.some((point) => point.broken)) return `byte ${hex(bytes).join(" ")}`;
  const text = points.map((point) => point.text).join("");
  return SPOKEN[text] ?? shown(text);
}

/** Whether bytes are a text of their own. */
export const isText = (bytes) => bytes.length > 0 && !decode(bytes).some((point) => point.broken);
