// What the model expected in place of a character, or expects after the text.

import { isText, readable, spoken } from "./characters.js";
import { bitsText, percent } from "./colour.js";

export class Alternatives extends EventTarget {
  /** Event: "take"; `detail.tokens` are the start of a character and what to put there. */
  constructor(root) {
    super();
    this.title = root.querySelector(".what");
    this.fact = root.querySelector(".fact");
    this.lists = root.querySelector(".lists");
  }

  /** Show a hint instead of a character. */
  explain(hint) {
    if (!this.#isNew(hint)) return;
    this.#head(hint, "", "what next");
    this.lists.replaceChildren();
  }

  /** An answer is on its way: what was shown stays, faded, so that typing does not flicker. */
  wait() {
    if (!this.#isNew(null)) return;
    this.#head("…", "", "what next");
    this.lists.inert = true;
  }

  /** Show a character and what else it might have been. */
  show(character) {
    if (!this.#isNew(character)) return;
    const name = nameOf(character);
    if (character.bits == null) {
      const far = character.shown.length > 64;
      this.#head(name, far ? "too far back to be scored" : "not scored yet");
      this.lists.replaceChildren();
      return;
    }
    this.#head(name, factOf(character));
    const { tokens } = character;
    this.lists.replaceChildren(
      ...tokens.flatMap((token, part) => {
        const parts = tokens.length > 1 ? [this.#part(token, part, tokens.length)] : [];
        return [...parts, this.#list(token.top, token, tokens.slice(0, part))];
      }),
    );
  }

  /** Show what may follow the text. */
  showNext(top) {
    if (!this.#isNew(top)) return;
    this.#head("next", "most probable after this text", "what next");
    this.lists.replaceChildren(this.#list(top, null, []));
  }

  /** What is shown already stays, so that a button is still there when the finger leaves it. */
  #isNew(what) {
    const fresh = this.now !== what;
    this.now = what;
    return fresh;
  }

  #head(title, fact, kind = "what") {
    Object.assign(this.title, { textContent: title, className: kind });
    this.fact.textContent = fact;
    this.lists.inert = false;
  }

  #part(token, part, count) {
    const line = document.createElement("p");
    line.className = "part";
    const kind = token.bytes.length === 1 ? "byte" : "token";
    const name = `${kind} ${part + 1} of ${count}`;
    line.textContent = `${name}: ${readable(token.bytes)}, ${bitsText(token.bits)}`;
    return line;
  }

  #list(top, chosen, before) {
    const list = document.createElement("ol");
    const rows = [...top];
    // What stands there may be none of the most probable.
    if (chosen && !rows.some((each) => same(each.bytes, chosen.bytes)))
      rows.push({ ...chosen, far: true });
    list.append(...rows.map((each) => this.#row(each, { chosen, before, top })));
    return list;
  }

  #row(each, { chosen, before, top }) {
    const here = chosen && same(each.bytes, chosen.bytes);
    const row = document.createElement("li");
    row.classList.toggle("chosen", Boolean(here));
    row.classList.toggle("far", Boolean(each.far));
    const bytes = [...before.flatMap((token) => token.bytes), ...each.bytes];
    const able = isText(bytes) && !here;
    const inner = row.appendChild(document.createElement(able ? "button" : "div"));
    const [sign, bar, share] = ["code", "meter-bar", "share"].map((kind) => {
      const part = inner.appendChild(document.createElement("span"));
      part.className = kind;
      return part;
    });
    sign.textContent = readable(each.bytes);
    bar.style.setProperty("--share", 2 ** -each.bits);
    share.textContent = percent(each.bits);
    if (able) {
      inner.type = "button";
      inner.title = "Put it there and continue";
      inner.ariaLabel = `${spoken(each.bytes)}, ${percent(each.bits)}: put it there and continue`;
      const tokens = [...before, { bytes: each.bytes, bits: each.bits, top }];
      inner.addEventListener("click", (event) => {
        const detail = { tokens, byKeyboard: event.detail === 0 };
        this.dispatchEvent(new CustomEvent("take", { detail }));
      });
    }
    return row;
  }
}

/** A character as one can see it. */
function nameOf({ text, shown, tokens }) {
  const short = shown.length > 24 ? `${shown.slice(0, 12)}…` : text;
  const bytes = tokens?.flatMap((token) => token.bytes);
  return readable(bytes ?? [...new TextEncoder().encode(short)]);
}

/** One line about a character, which is also what is read aloud. */
export function factOf(character) {
  const parts = [`${bitsText(character.bits)}, ${percent(character.bits)}`];
  if (character.written) parts.push("written by the model");
  if (character.broken) parts.push("not UTF-8");
  if (character.stale) parts.push("before the last edit");
  return parts.join(" · ");
}

/** A character with its surprisal and its best alternatives, to be read aloud. */
export function sayCharacter(character) {
  if (character.bits == null) return "";
  const { tokens } = character;
  const best = tokens[0].top
    .slice(0, 3)
    .map((each) => `${spoken(each.bytes)} ${percent(each.bits)}`);
  const name = spoken(tokens.flatMap((token) => token.bytes));
  return `${name}: ${factOf(character)}. Expected: ${best.join(", ")}.`;
}

const same = (one, other) =>
  one.length === other.length && one.every((byte, at) => byte === other[at]);
