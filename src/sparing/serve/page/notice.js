// What the page has to say to the reader: a banner, and the question for a token.

export class Notice {
  constructor(root) {
    this.root = root;
    [this.words, this.aside] = root.querySelectorAll("p span");
    this.button = root.querySelector("button");
    this.button.addEventListener("click", () => this.action?.());
  }

  /** Show a message, with a button that does `action` where one is given. */
  show(message, label, action) {
    this.#say(message, "");
    this.button.hidden = !action;
    this.button.textContent = label ?? "";
    this.action = action;
    this.root.hidden = false;
  }

  /** Show a message with an aside that changes often, and is not read aloud. */
  count(message, aside) {
    this.#say(message, aside);
    this.button.hidden = true;
    this.root.hidden = false;
  }

  #say(message, aside) {
    // What is set anew is read aloud anew.
    if (this.words.textContent !== message) this.words.textContent = message;
    this.aside.textContent = aside;
  }

  hide() {
    this.root.hidden = true;
  }
}

/** Ask for a token: a promise of it, or of null when the reader does not give one. */
export function askToken(dialog, wrong) {
  const [field, hint] = [dialog.querySelector("input"), dialog.querySelector(".hint")];
  hint.textContent = wrong ? "The server did not accept this token." : "";
  field.value = "";
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    const close = () => resolve(dialog.returnValue === "enter" ? field.value.trim() : null);
    dialog.addEventListener("close", close, { once: true });
  });
}
