// Two texts, scored against each other.

import { factOf } from "./alternatives.js";
import { readable } from "./characters.js";
import { Editor } from "./editor.js";
import { edited, scorable, scored, shownOf, textOf } from "./text.js";

export class Compare extends EventTarget {
  /** Event: "change", when one of the texts has changed and needs a score. */
  constructor(root) {
    super();
    this.verdict = root.querySelector("#verdict");
    this.sides = [...root.querySelectorAll(".side")].map((side) => this.#open(side));
    root.querySelector("#example").addEventListener("click", () => {
      this.set(["She went to their house.", "She went to there house."]);
      this.dispatchEvent(new Event("change"));
    });
  }

  get texts() {
    return this.sides.map(({ editor }) => textOf(editor.characters));
  }

  set(texts) {
    this.sides.forEach((side, at) => side.editor.show(edited(side.editor.characters, texts[at])));
    this.#judge();
  }

  /** Forget the scores: another model is asked. */
  forget() {
    for (const { editor } of this.sides) {
      editor.show(editor.characters.map((each) => ({ ...each, stale: true })));
    }
  }

  /** Score both texts in one request. */
  async score(api, model, signal) {
    const parts = this.sides.map(({ editor }) => textOf(scorable(editor.characters)));
    if (parts.every((part) => part)) {
      const answers = await api.score(model, parts, 0, signal);
      this.sides.forEach(({ editor }, at) => {
        const found = scored(editor.characters, parts[at], answers[at].tokens);
        if (found) editor.show(found);
      });
    }
    this.#judge();
  }

  #open(side) {
    const editor = new Editor(side.querySelector(".editor"));
    const [readout, fact, bar] = [".readout", ".fact", ".bar"].map((each) =>
      side.querySelector(each),
    );
    editor.addEventListener("edit", () => {
      editor.show(edited(editor.characters, editor.value));
      this.dispatchEvent(new Event("change"));
    });
    editor.addEventListener("cursor", () => {
      const focused = editor.pointed != null || document.activeElement === editor.box;
      const each = focused ? editor.characters[editor.pointed ?? editor.at] : null;
      const name = each && readable([...new TextEncoder().encode(each.text)]);
      readout.textContent = each?.bits == null ? "" : `${name}  ${factOf(each)}`;
    });
    return { editor, fact, bar };
  }

  #judge() {
    const sums = this.sides.map(({ editor }) => sumOf(editor.characters));
    const most = Math.max(...sums.map((sum) => sum?.bits ?? 0));
    this.sides.forEach(({ fact, bar }, at) => {
      const sum = sums[at];
      bar.style.setProperty("--share", sum && most ? sum.bits / most : 0);
      fact.textContent = sum
        ? `${sum.bits.toFixed(2)} bits · ${(sum.bits / sum.size).toFixed(3)} bits per byte`
        : "";
    });
    this.verdict.textContent = sums.every(Boolean) ? verdict(sums[1].bits - sums[0].bits) : "";
  }
}

/** Bits and bytes of a text that is scored; null for others. */
function sumOf(characters) {
  const part = scorable(characters);
  if (!shownOf(part) || part.some((each) => each.bits == null || each.stale)) return null;
  const bits = part.reduce((sum, each) => sum + each.bits, 0);
  return { bits, size: part.reduce((sum, each) => sum + each.size, 0) };
}

/** What the difference of two surprisals says; positive bits speak for the first text. */
export function verdict(bits) {
  const by = Math.abs(bits);
  if (by < 0.005) return "The model finds both equally probable.";
  const times =
    by < 20 ? `${(2 ** by).toPrecision(3).replace(/e\+?/, "e")} times` : `2^${by.toFixed(0)} times`;
  const better = bits > 0 ? "first" : "second";
  return `The ${better} is ${plain(times)} as probable: ${by.toFixed(2)} bits less.`;
}

const plain = (times) => times.replace(/^[\d.e]+/, (number) => Number(number).toLocaleString("en"));
