// The controls for sampling, as settings.

import { SETTINGS, read } from "./share.js";

const NAMES = ["temperature", "top_p", "top_k", "min_p", "length", "seed"];
const OFF = { top_p: 1, top_k: 0, min_p: 0 };

export class Controls extends EventTarget {
  /** Events: "change". */
  constructor(root) {
    super();
    this.inputs = Object.fromEntries(NAMES.map((name) => [name, root.querySelector(`#${name}`)]));
    for (const [name, input] of Object.entries(this.inputs)) {
      input.min = SETTINGS[name].least;
      input.max = SETTINGS[name].most;
      input.addEventListener("input", () => {
        this.#label(name);
        this.dispatchEvent(new Event("change"));
      });
      // A number out of bounds is corrected when the field is left.
      input.addEventListener("change", () => this.set({ [name]: this.get()[name] }));
    }
  }

  get() {
    const entries = NAMES.map((name) => [name, read(SETTINGS[name], this.inputs[name].value)]);
    return Object.fromEntries(entries);
  }

  set(settings) {
    for (const name of NAMES.filter((each) => each in settings)) {
      this.inputs[name].value = settings[name] ?? "";
      this.#label(name);
    }
  }

  /** The settings as fields of a request; without a seed, every writing gets a new one. */
  request() {
    const { length, seed, ...sampling } = this.get();
    return { ...sampling, max_tokens: length, seed: seed ?? Math.floor(Math.random() * 2 ** 31) };
  }

  #label(name) {
    const output = this.inputs[name].parentElement.querySelector("output");
    if (!output) return;
    const { value } = this.inputs[name];
    output.value = Number(value) === OFF[name] ? "off" : Number(value).toFixed(2);
  }
}
