// Attention and the text: asks where the heads looked, and colours the text by the chosen one.

import { drawLegend } from "./colour.js";
import { Heads, paintBy } from "./heads.js";
import { scorable, textOf } from "./text.js";

export class Looking {
  constructor(panel, editor, legend) {
    [this.panel, this.editor, this.legend] = [panel, editor, legend];
    this.heads = new Heads(panel);
    this.heads.addEventListener("choose", () => this.paint());
    /** The character behind those that the heads have read. */
    this.end = 0;
  }

  /** Ask about the character at the cursor, if anybody sees the answer. */
  async ask(api, model, signal) {
    if (!this.panel.open) return;
    const end = this.editor.at;
    const before = textOf(scorable(this.editor.characters.slice(0, end)));
    if (!model.attention) this.heads.explain("This model does not show its attention.");
    else if (!before) this.heads.explain("There is nothing before the cursor to look at.");
    else {
      this.heads.show(await api.attention(model.id, before, signal));
      this.end = end;
    }
    this.paint();
  }

  /** Colour the text by surprisal again. */
  release() {
    this.heads.release();
    this.paint();
  }

  paint() {
    const head = this.panel.open ? this.heads.chosen : null;
    this.editor.colourBy(head && paintBy(head.weights, this.editor.characters, this.end));
    const title = head && `Attention of block ${head.layer}, head ${head.head}`;
    drawLegend(this.legend, head ? "weight" : "bits", title ?? "Surprisal in bits");
  }
}
