// The page: what happens when the reader types, points, and lets the model continue.

import { Alternatives, sayCharacter } from "./alternatives.js";
import { Api, Unreachable } from "./api.js";
import { group } from "./characters.js";
import { Compare } from "./compare.js";
import { Controls } from "./controls.js";
import { Editor } from "./editor.js";
import { modelFacts, textFacts } from "./facts.js";
import { Looking } from "./looking.js";
import { Notice, askToken } from "./notice.js";
import { later } from "./pacing.js";
import { fromFragment, toFragment } from "./share.js";
import { edited, isScored, scorable, scored, textOf } from "./text.js";
import { bindTheme } from "./theme.js";
import { Writer } from "./writer.js";

const PAUSE = 400;
const ALTERNATIVES = 8;
const UNDO = 100;

const $ = (id) => document.getElementById(id);
const notice = new Notice($("notice"));
const api = new Api({
  askToken: (wrong) => askToken($("token"), wrong),
  waiting: (seconds) =>
    seconds == null
      ? notice.hide()
      : notice.count("The server is busy. Trying again", `in ${seconds} s`),
});
const editor = new Editor($("sheet"));
const controls = new Controls($("sampling"));
const alternatives = new Alternatives($("alternatives"));
const looking = new Looking($("heads"), editor, $("legend"));
const writer = new Writer(api);
const compare = new Compare($("compare"));

let models = [];
let model = null;
let wanted = "";
let next = { text: null, top: [] };
const past = [];

const soon = (task, milliseconds = PAUSE) => later(task, milliseconds, complain);

function complain(problem) {
  if (problem instanceof Unreachable) {
    notice.show("The server does not answer. Is it still running?", "Try again", start);
  } else {
    notice.show(problem.message, "Close", () => notice.hide());
  }
}

async function start() {
  notice.hide();
  try {
    models = await api.models();
  } catch (problem) {
    $("facts").textContent = "No model.";
    complain(problem);
    return;
  }
  $("model").replaceChildren(...models.map(({ id }) => new Option(id, id)));
  $("model").hidden = models.length < 2;
  $("go").disabled = false;
  choose(model?.id ?? wanted);
}

function choose(id) {
  const known = models.find((each) => each.id === id) ?? models[0];
  const changed = model && model.id !== known.id;
  model = known;
  $("model").value = model.id;
  $("facts").textContent = modelFacts(model, models.length < 2);
  if (changed) {
    stop();
    next.text = null;
    editor.show(editor.characters.map((each) => ({ ...each, stale: true })));
    compare.forget();
    looking.release();
  }
  refresh();
  judge();
}

// Links

function settings() {
  const [first, second] = compare.texts;
  const id = models.length === 1 ? "" : (model?.id ?? wanted);
  return { text: textOf(editor.characters), first, second, model: id, ...controls.get() };
}

const share = soon(async () => {
  history.replaceState(null, "", `#${toFragment(settings()).fragment}`);
});

function restore() {
  const given = fromFragment(location.hash);
  stop();
  controls.set(given);
  change(edited([], given.text));
  compare.set([given.first, given.second]);
  wanted = given.model;
  if (models.length) choose(wanted);
}

async function copyLink() {
  const { fragment, complete } = toFragment(settings());
  history.replaceState(null, "", `#${fragment}`);
  const left = complete ? "" : " The text is too long for a link: it holds the settings only.";
  const copied = await navigator.clipboard?.writeText(location.href).then(
    () => true,
    () => false,
  );
  const done = copied ? "The link is copied." : "Copy the link from the address bar.";
  notice.show(done + left, "Close", () => notice.hide());
}

// The text

/** Show another text, which `undo` takes back. */
function change(characters) {
  if (editor.characters.length) past.push(editor.characters);
  past.splice(0, past.length - UNDO);
  editor.show(characters);
  editor.select(characters.length);
  refresh();
}

function undo() {
  stop();
  if (!past.length) return;
  editor.show(past.pop());
  refresh();
}

/** Bring all that belongs to the text up to date. */
function refresh() {
  showFacts();
  showCharacter();
  rescore();
  look();
  share();
}

const rescore = soon(async (signal) => {
  if (!model) return;
  const part = textOf(scorable(editor.characters));
  if (part && !isScored(editor.characters)) {
    const [{ tokens }] = await api.score(model.id, [part], ALTERNATIVES, signal);
    signal.throwIfAborted();
    if (writer.active) writer.score(part, tokens);
    editor.show(scored(editor.characters, part, tokens) ?? editor.characters);
    showFacts();
    showCharacter();
  }
  expect();
});

/** Ask what may come next, where that is shown. */
const expect = soon(async (signal) => {
  const text = textOf(scorable(editor.characters));
  const wanted = model && !writer.active && editor.at === editor.characters.length;
  if (!wanted || next.text === text) return;
  next = { text, top: await api.next(model.id, text, ALTERNATIVES, signal) };
  showCharacter();
}, 50);

function showFacts() {
  const { characters } = editor;
  $("undo").disabled = !past.length;
  $("clear").disabled = !characters.length;
  $("examples").hidden = Boolean(characters.length);
  $("text").parentElement.classList.toggle("empty", !characters.length);
  $("count").textContent = writer.active ? "Writing…" : textFacts(characters);
}

/** Show the alternatives at the pointer or the cursor. */
function showCharacter() {
  const each = editor.characters[editor.pointed ?? editor.at];
  if (each) alternatives.show(each);
  else if (next.text === textOf(scorable(editor.characters)) && next.top.length)
    alternatives.showNext(next.top);
  else if (writer.active) alternatives.explain("Writing…");
  else alternatives.wait();
}

const say = soon(async () => {
  const each = editor.characters[editor.at];
  if (each && !writer.active && document.activeElement === editor.box)
    $("spoken").textContent = sayCharacter(each);
}, 700);

// Writing

/** Let the model continue, from `given` where it is another text than the one shown. */
async function goOn(given) {
  if (!model) return;
  writer.stop();
  notice.hide();
  past.push(editor.characters);
  if (given) editor.show(given);
  editor.select(editor.characters.length);
  editor.showEnd();
  const request = { model: model.id, logprobs: ALTERNATIVES, ...controls.request() };
  try {
    const written = await writer.write(editor.characters, request);
    if (written === "") past.pop();
    if (written !== null)
      $("spoken").textContent = written
        ? `Written: ${written.slice(-600)}`
        : "Nothing was written.";
  } catch (problem) {
    complain(problem);
  }
}

function stop() {
  if (!writer.stop()) return;
  notice.hide();
  $("spoken").textContent = "Stopped.";
}

writer.addEventListener("progress", () => {
  editor.show(writer.characters);
  showCharacter();
});
writer.addEventListener("change", () => {
  document.body.classList.toggle("writing", writer.active);
  $("go").textContent = writer.active ? "Stop" : "Continue";
  if (writer.active) $("spoken").textContent = "Writing.";
  refresh();
});

const look = soon(async (signal) => {
  if (model && !writer.active) await looking.ask(api, model, signal);
}, 250);

const judge = soon(async (signal) => {
  if (model) await compare.score(api, model.id, signal);
});

// Events

editor.addEventListener("edit", () => {
  const { value } = editor;
  writer.stop();
  editor.show(edited(editor.characters, value));
  refresh();
});
editor.addEventListener("cursor", () => {
  showCharacter();
  if (editor.pointed != null) return;
  say();
  look();
  expect();
});
alternatives.addEventListener("take", ({ detail }) => {
  const at = editor.pointed ?? editor.at;
  goOn([...editor.characters.slice(0, at), ...group(detail.tokens)]);
  // The button is gone; a finger does not want the keyboard of the screen.
  if (detail.byKeyboard) editor.box.focus({ preventScroll: true });
});
compare.addEventListener("change", () => {
  judge();
  share();
});
$("heads").addEventListener("toggle", () => {
  looking.paint();
  look();
});
controls.addEventListener("change", share);
$("model").addEventListener("change", () => choose($("model").value));
for (const example of $("examples").querySelectorAll("button"))
  example.addEventListener("click", () => goOn(edited([], example.value)));
$("go").addEventListener("click", () => (writer.active ? stop() : goOn()));
$("undo").addEventListener("click", undo);
$("clear").addEventListener("click", () => {
  stop();
  change([]);
  editor.box.focus();
});
$("link").addEventListener("click", copyLink);
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") stop();
  const elsewhere = $("token").open || $("compare").contains(document.activeElement);
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !elsewhere) {
    event.preventDefault();
    goOn();
  }
});
addEventListener("hashchange", restore);
bindTheme($("theme"));
looking.paint();
restore();
start();
