// Attention and the text: asks where the heads looked, and colours the text by the chosen one.

import { drawLegend } from "./colour.js";
import { Heads, paintBy } from "./heads.js";
import { scorable, textOf } from "./text.js";

export class Looking {
  constructor(panel, editor, legend) {
    [this.panel, this.editor, this.legend] = [panel, editor, legend];
    this.heads = new Heads(panel);
    this.heads.addEventListener("choose", () => this.paint());
    /** What the heads have read, and the character behind it. */
    [this.read, this.end] = ["", 0];
  }

  /** Ask about the character at the cursor, if anybody sees the answer. */
  async ask(api, model, signal) {
    if (!this.panel.open) return;
    const end = this.editor.at;
    const before = this.#before(end);
    if (!model.attention) this.heads.explain("This model does not show its attention.");
    else if (!before) this.heads.pause("There is nothing before the cursor to look at.");
    else {
      this.heads.show(await api.attention(model.id, before, signal));
      [this.read, this.end] = [before, end];
    }
    this.paint();
  }

  /** Colour the text by surprisal again. */
  release() {
    this.heads.release();
    this.paint();
  }

  paint() {
    // The text may have been edited since; the next answer is about what it is now.
    const known = this.#before(this.end) === this.read;
    const head = this.panel.open && known ? this.heads.chosen : null;
    this.editor.colourBy(head && paintBy(head.weights, this.editor.characters, this.end));
    const title = head && `Attention of block ${head.layer}, head ${head.head}`;
    drawLegend(this.legend, head ? "weight" : "bits", title ?? "Surprisal in bits");
  }

  #before(end) {
    return textOf(scorable(this.editor.characters.slice(0, end)));
  }
}
