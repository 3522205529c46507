// A text as a list of characters, and what happens to it: typed, scored, written, folded.
// Lists and characters are never changed in place, so that the past can be kept for undoing.

import { group, lump, unscored } from "./characters.js";

/** Most bytes that the model reads, scores and colours; the text before them is one piece. */
export const MOST = 6000;

export const textOf = (characters) => characters.map((each) => each.text).join("");
export const shownOf = (characters) => characters.map((each) => each.shown).join("");

/** The characters after the box was edited to hold `given`. What follows the edit becomes stale. */
export function edited(characters, given) {
  const value = given.toWellFormed();
  const before = shownOf(characters);
  if (value === before) return characters;
  const shared = sharedStart(before, value);
  const most = Math.min(before.length, value.length) - shared;
  const kept = upTo(characters, shared);
  const rest = after(characters, before.length - sharedEnd(before, value, most));
  const from = shownOf(kept).length;
  const typed = value.slice(from, value.length - shownOf(rest).length);
  return folded([...joined(kept, typed), ...rest.map((each) => ({ ...each, stale: true }))]);
}

function sharedStart(one, other) {
  let at = 0;
  while (at < one.length && one[at] === other[at]) at++;
  return at;
}

function sharedEnd(one, other, most) {
  let at = 0;
  while (at < most && one.at(-1 - at) === other.at(-1 - at)) at++;
  return at;
}

function upTo(characters, offset) {
  let end = 0;
  const stop = characters.findIndex((each) => (end += each.shown.length) > offset);
  return stop < 0 ? characters : characters.slice(0, stop);
}

function after(characters, offset) {
  let start = 0;
  const first = characters.findIndex((each) => {
    const here = start;
    start += each.shown.length;
    return here >= offset;
  });
  return first < 0 ? [] : characters.slice(first);
}

/** An accent typed after a letter changes the letter. */
function joined(kept, typed) {
  if (typed.length > 4 * MOST) {
    const cut = typed.length - 2 * MOST;
    return [lump(textOf(kept) + typed.slice(0, cut)), ...unscored(typed.slice(cut))];
  }
  const last = kept.at(-1);
  if (!last || last.shown.length > 64) return [...kept, ...unscored(typed)];
  const anew = unscored(last.text + typed);
  return anew[0]?.text === last.text
    ? [...kept, ...anew.slice(1)]
    : [...kept.slice(0, -1), ...anew];
}

/** A text that is too long keeps its beginning as one piece that is not read. */
export function folded(characters) {
  if (scorable(characters).reduce((sum, each) => sum + each.size, 0) <= MOST) return characters;
  let cut = characters.length;
  // Room to grow, so that not every key folds anew.
  for (let left = 0.75 * MOST; (left -= characters[cut - 1].size) >= 0;) cut--;
  return [lump(textOf(characters.slice(0, cut))), ...characters.slice(cut)];
}

/** The part that the model reads: everything but a folded beginning. */
export function scorable(characters) {
  return characters.slice(foldedSize(characters) ? 1 : 0);
}

/** How many units of text the folded beginning has; 0 where nothing is folded. */
export function foldedSize(characters) {
  const first = characters[0];
  return first && !first.tokens && first.text.length > 64 ? first.text.length : 0;
}

/** Whether each character has a score that belongs to the text before it. */
export const isScored = (characters) =>
  scorable(characters).every((each) => each.bits != null && !each.stale);

/**
 * The characters with the scores of `tokens`, which are those of the text `read`.
 *
 * The text may have grown since. What the model wrote keeps the scores it was written with. Null
 * where the text no longer begins with `read`.
 */
export function scored(characters, read, tokens) {
  const [skipped, part] = [characters.length - scorable(characters).length, scorable(characters)];
  const text = textOf(part);
  if (!text.startsWith(read)) return null;
  const starts = new Map();
  let offset = 0;
  for (const each of part) {
    starts.set(offset, each);
    offset += each.text.length;
  }
  const fresh = [];
  offset = 0;
  for (const each of group(tokens)) {
    const old = starts.get(offset);
    const own = old?.written && !old.stale && old.bits != null && old.text === each.text;
    fresh.push(own ? old : { ...each, written: old?.written ?? false });
    offset += each.text.length;
  }
  const rest = after(part, shownOf(fresh).length);
  if (textOf(fresh) + textOf(rest) !== text) return null;
  return [...characters.slice(0, skipped), ...fresh, ...rest];
}

/** The characters once the model has written `tokens` after them. */
export class Writing {
  constructor(characters) {
    this.characters = characters;
    this.settled = characters;
    this.open = [];
  }

  /** Add tokens. The last character stays open: bytes or accents that belong to it may follow. */
  add(tokens) {
    this.open.push(...tokens);
    const grouped = group(this.open, true);
    // The bytes that are half a character may be an accent of the one before.
    const last = grouped.at(-1)?.open ? -2 : -1;
    const settled = grouped.slice(0, last);
    if (settled.length) {
      this.settled = folded(this.settled.concat(settled));
      this.open = this.open.slice(settled.reduce((sum, each) => sum + each.tokens.length, 0));
    }
    this.characters = this.settled.concat(grouped.slice(last).filter((each) => !each.open));
    return this.characters;
  }

  /** Show what is left, even if it is half a character. */
  end() {
    this.characters = this.settled.concat(group(this.open, true));
    return this.characters;
  }
}
