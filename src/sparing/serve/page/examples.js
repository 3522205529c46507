// Beginnings of texts to start from, in the style of what the models have read.

const EXAMPLES = [
  "'''Ada Lovelace''' was an English ",
  "== Early life ==\n",
  "The capital of [[France]] is ",
];

/** Fill `root` with a button for each; `begin` gets the text of the one that is chosen. */
export function drawExamples(root, begin) {
  for (const text of EXAMPLES) {
    const button = document.createElement("button");
    Object.assign(button, { type: "button", textContent: text.trim() });
    button.addEventListener("click", () => begin(text));
    root.append(button);
  }
}
