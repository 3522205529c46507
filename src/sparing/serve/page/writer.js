// The model goes on from a text, until it is done or somebody stops it.

import { paced } from "./pacing.js";
import { Writing, scorable, scored, textOf } from "./text.js";

export class Writer extends EventTarget {
  /** Events: "change" (it begins, or ends), "progress" (there are more `characters`). */
  constructor(api) {
    super();
    this.api = api;
    this.now = null;
  }

  get active() {
    return this.now !== null;
  }

  /** The text with what is written so far. */
  get characters() {
    return this.now.characters;
  }

  /** Continue from some characters. Returns what was written, or null if it was stopped. */
  async write(characters, request) {
    this.stop();
    const [mine, control] = [new Writing(characters), new AbortController()];
    const change = (now) => {
      this.now = now;
      this.control = control;
      this.dispatchEvent(new Event("change"));
    };
    const progress = paced(() => this.now === mine && this.dispatchEvent(new Event("progress")));
    change(mine);
    try {
      const body = { ...request, prompt: textOf(scorable(characters)) };
      for await (const tokens of this.api.write(body, control.signal)) {
        if (this.now !== mine) return null;
        mine.add(tokens);
        progress();
      }
    } catch (problem) {
      if (!control.signal.aborted) throw problem;
    } finally {
      if (this.now === mine) {
        mine.end();
        this.dispatchEvent(new Event("progress"));
        change(null);
      }
    }
    return control.signal.aborted ? null : textOf(mine.characters).slice(textOf(characters).length);
  }

  /** End the writing; what is written stays. */
  stop() {
    if (!this.active) return false;
    this.now = null;
    this.control.abort();
    this.dispatchEvent(new Event("change"));
    return true;
  }

  /** Use a score of the text before that came while it was gone on from. */
  score(read, tokens) {
    this.now.settled = scored(this.now.settled, read, tokens) ?? this.now.settled;
  }
}
