// How far each attention head looks, and where one of them looked.

import { weightStep } from "./colour.js";

const count = (number) => Math.round(number).toLocaleString("en");

export class Heads extends EventTarget {
  /** Event: "choose", when the reader chose a head or none: see `chosen`. */
  constructor(root) {
    super();
    this.list = root.querySelector(".head-list");
    this.axis = root.querySelector(".axis");
    this.fact = root.querySelector(".fact");
    this.layers = [];
    this.wanted = "";
    this.list.addEventListener("change", ({ target }) => {
      this.wanted = target.value;
      this.#describe(this.chosen);
      this.dispatchEvent(new Event("choose"));
    });
    for (const kind of ["pointerover", "pointerleave"]) {
      this.list.addEventListener(kind, ({ target }) =>
        this.#describe(this.#under(target) ?? this.chosen),
      );
    }
  }

  /** The head that colours the text, or null: {layer, head, span, weights}. */
  get chosen() {
    const value = this.list.querySelector("input:checked")?.value;
    return value ? this.#find(value) : null;
  }

  /** Colour the text by surprisal again. */
  release() {
    this.wanted = "";
    const first = this.list.querySelector("input");
    if (first) first.checked = true;
    this.#describe(null);
  }

  /** Show a hint instead of heads. */
  explain(hint) {
    this.list.replaceChildren();
    this.axis.replaceChildren();
    this.pause(hint);
  }

  /** Show a hint; the heads keep their place, because they will be back. */
  pause(hint) {
    this.layers = [];
    this.list.inert = true;
    this.fact.textContent = hint;
  }

  /** Show an answer of /attention. */
  show({ layers }) {
    const shape = (given) => given.map(({ layer, heads }) => `${layer}:${heads.length}`).join();
    const same = shape(layers) === shape(this.layers);
    this.layers = layers;
    this.list.inert = false;
    if (!same) this.#build();
    const farthest = Math.max(
      ...layers.flatMap(({ heads }) => heads.map((each) => each.span ?? each.weights.length)),
    );
    this.most = 10 ** Math.ceil(Math.log10(Math.max(10, farthest)));
    this.#drawAxis();
    for (const { layer, heads } of layers) heads.forEach((head, at) => this.#draw(layer, at, head));
    this.#describe(this.chosen);
  }

  #build() {
    const none = option("", "no head: colour by surprisal");
    none.classList.add("none");
    const rows = this.layers.map(({ layer, heads }) => {
      const row = element("div", "layer");
      row.append(Object.assign(element("span", "name"), { textContent: layer }));
      const bars = row.appendChild(element("div", "bars"));
      heads.forEach((_, head) => bars.append(option(`${layer}.${head}`, "")));
      return row;
    });
    this.list.replaceChildren(none, ...rows);
    const inputs = [...this.list.querySelectorAll("input")];
    (inputs.find(({ value }) => value === this.wanted) ?? inputs[0]).checked = true;
  }

  #draw(layer, at, head) {
    const label = this.list.querySelector(`input[value="${layer}.${at}"]`).parentElement;
    const bar = label.querySelector(".bar");
    const half = halfWithin(head.weights);
    label.querySelector(".words").textContent = describe({ layer, head: at, ...head });
    bar.style.setProperty("--span", this.#place(head.span ?? 0));
    bar.style.setProperty("--half", this.#place(half));
  }

  #place(distance) {
    return Math.log10(1 + distance) / Math.log10(1 + this.most);
  }

  #drawAxis() {
    const ticks = [];
    for (let tick = 1; tick <= this.most; tick *= 10) {
      const mark = element("span", "tick");
      mark.textContent = tick >= 1000 ? `${tick / 1000}k` : tick;
      mark.style.setProperty("--at", this.#place(tick));
      ticks.push(mark);
    }
    this.axis.replaceChildren(...ticks);
  }

  #under(target) {
    const input = target.closest?.("label")?.querySelector("input");
    return input?.value ? this.#find(input.value) : null;
  }

  #find(value) {
    const [layer, head] = value.split(".").map(Number);
    const found = this.layers.find((each) => each.layer === layer)?.heads[head];
    return found ? { layer, head, ...found } : null;
  }

  #describe(head) {
    this.fact.textContent = head ? describe(head) : "Choose a head to see where it looked.";
  }
}

function describe({ layer, head, span, weights }) {
  const reach = span == null ? "" : ` can look back ${count(span)};`;
  const half = halfWithin(weights);
  const near = half === 0 ? "on the last token itself" : `within the last ${count(half + 1)}`;
  return `Block ${layer}, head ${head}:${reach} half of its attention is ${near}`;
}

/** The distance back within which half of the attention lies. */
export function halfWithin(weights) {
  const whole = weights.reduce((sum, each) => sum + each, 0);
  let sum = 0;
  for (let distance = 0; distance < weights.length; distance++) {
    sum += weights.at(-1 - distance);
    if (sum >= whole / 2) return distance;
  }
  return 0;
}

/** What to colour a text by, whose first `end` characters the head has read. */
export function paintBy(weights, characters, end) {
  const sums = new Array(end).fill(0);
  let newest = weights.length;
  for (let at = end - 1; at >= 0 && newest > 0; at--) {
    const tokens = characters[at].tokens?.length ?? characters[at].size;
    sums[at] = weights
      .slice(Math.max(0, newest - tokens), newest)
      .reduce((sum, each) => sum + each, 0);
    newest -= tokens;
  }
  const largest = Math.max(...sums);
  return (_, at) => (at < end ? ["weight", weightStep(sums[at], largest)] : null);
}

function option(value, words) {
  const label = element("label", "option");
  const input = label.appendChild(document.createElement("input"));
  Object.assign(input, { type: "radio", name: "head", value });
  label.append(Object.assign(element("span", "words"), { textContent: words }));
  if (value) label.append(element("span", "bar"));
  return label;
}

function element(kind, name) {
  return Object.assign(document.createElement(kind), { className: name });
}
