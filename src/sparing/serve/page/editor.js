// A text box whose characters are coloured: a plain <textarea> with transparent ink, above a copy
// of its text in which every character is an element. Editing, selecting, dictating and reading
// aloud are the browser's own.

import { bitsEach } from "./characters.js";
import { step } from "./colour.js";
import { shownOf } from "./text.js";

const surprisal = (each) => (each.bits == null ? null : ["bits", step(bitsEach(each))]);

export class Editor extends EventTarget {
  /**
   * `root` holds a textarea. Events: "edit" (the reader changed `value`), "cursor" (the cursor or
   * the pointer is at another character: see `at` and `pointed`).
   */
  constructor(root) {
    super();
    this.root = root;
    this.box = root.querySelector("textarea");
    this.ink = document.createElement("div");
    this.ink.className = "ink";
    this.ink.ariaHidden = "true";
    this.box.before(this.ink);
    this.characters = [];
    this.spans = [];
    this.paint = surprisal;
    this.pointed = null;
    this.#listen();
  }

  get value() {
    return this.box.value;
  }

  /** The index of the character behind the cursor; the length of the text at its end. */
  get at() {
    return this.indexAt(this.box.selectionStart);
  }

  indexAt(offset) {
    let end = 0;
    const index = this.characters.findIndex((each) => (end += each.shown.length) > offset);
    return index < 0 ? this.characters.length : index;
  }

  /** Show characters, in the box too if it holds another text; a cursor at the end stays there. */
  show(characters) {
    this.characters = characters;
    const text = shownOf(characters);
    if (text !== this.box.value) this.#fill(text);
    this.#draw();
    this.#mark();
  }

  /** Colour by `paint(character, index)`: [kind, step] or null. Without it, by surprisal. */
  colourBy(paint) {
    this.paint = paint ?? surprisal;
    this.#draw();
    this.#mark();
  }

  select(index) {
    const offset = shownOf(this.characters.slice(0, index)).length;
    this.box.setSelectionRange(offset, offset);
  }

  /** Scroll to the end of the text, where the model writes. */
  showEnd() {
    this.root.scrollTop = this.root.scrollHeight;
  }

  #fill(text) {
    const { value, selectionStart, selectionEnd } = this.box;
    const scroller = this.root;
    const atBottom = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 24;
    const atEnd = selectionStart === value.length;
    this.box.value = text;
    if (atEnd) this.box.setSelectionRange(text.length, text.length);
    else this.box.setSelectionRange(selectionStart, selectionEnd);
    this.follow = atBottom && text.length > value.length;
  }

  #draw() {
    const count = this.characters.length;
    while (this.spans.length > count) this.spans.pop().remove();
    const fresh = document.createDocumentFragment();
    this.characters.forEach((each, at) => {
      let span = this.spans[at];
      if (!span) {
        span = fresh.appendChild(document.createElement("span"));
        span.at = at;
        this.spans.push(span);
      }
      if (span.each === each && span.paint === this.paint) return;
      Object.assign(span, { each, paint: this.paint });
      if (span.textContent !== each.shown) span.textContent = each.shown;
      const [kind, value] = this.paint(each, at) ?? [];
      span.className = [
        kind && `${kind} step-${value}`,
        each.written ? "written" : "typed",
        each.stale && "stale",
        each.shown.endsWith("\n") && "line-end",
      ]
        .filter(Boolean)
        .join(" ");
    });
    this.ink.append(fresh);
    if (this.follow) this.showEnd();
    this.follow = false;
  }

  /** Mark the character that is looked at. */
  #mark() {
    const now = this.spans[this.pointed ?? this.at];
    this.marked?.classList.remove("here", "pointed");
    now?.classList.add(this.pointed == null ? "here" : "pointed");
    this.marked = now;
  }

  #moved() {
    this.#mark();
    this.dispatchEvent(new Event("cursor"));
  }

  #point(event) {
    const under = event && document.elementsFromPoint(event.clientX, event.clientY);
    const at = under?.find((each) => each.at != null && this.ink.contains(each))?.at ?? null;
    if (at === this.pointed) return;
    this.pointed = at;
    this.#moved();
  }

  #listen() {
    this.box.addEventListener("input", () => this.dispatchEvent(new Event("edit")));
    for (const kind of ["focus", "blur"]) this.box.addEventListener(kind, () => this.#moved());
    document.addEventListener("selectionchange", () => {
      if (document.activeElement === this.box) this.#moved();
    });
    this.box.addEventListener("pointermove", (event) => {
      // A finger that scrolls does not point.
      if (event.pointerType !== "touch") this.#point(event);
    });
    this.box.addEventListener("pointerleave", () => this.#point(null));
  }
}
