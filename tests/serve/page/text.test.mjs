// A text is typed, scored, written and folded.

import assert from "node:assert/strict";
import { test } from "node:test";

import {
  MOST,
  Writing,
  edited,
  foldedSize,
  isScored,
  scorable,
  scored,
  shownOf,
  textOf,
} from "../../../src/sparing/serve/page/text.js";

const tokens = (text, bits = 1) =>
  [...Buffer.from(text)].map((byte) => ({ bytes: [byte], bits, top: [] }));
const score = (characters, bits = 1) =>
  scored(characters, textOf(characters), tokens(textOf(characters), bits));
const states = (characters) =>
  characters.map((each) => (each.bits == null ? "?" : each.stale ? "stale" : each.bits)).join(" ");

test("an edit keeps the scores before it, and those behind it become stale", () => {
  const before = score(edited([], "to be or"));
  const after = edited(before, "to bee or");
  assert.equal(textOf(after), "to bee or");
  assert.equal(states(after), "1 1 1 1 1 ? stale stale stale");
  assert.equal(states(edited(after, "to b or")), "1 1 1 1 stale stale stale");
  assert.equal(edited(before, "to be or"), before);
  assert.equal(states(edited(before, "")), "");
});

test("any edit of any text leaves what was typed", () => {
  let characters = [];
  let state = 11;
  const random = (most) => (state = (state * 48271) % 2147483647) % most;
  const parts = ["a", "é", "e\u0301", "👩‍👧", "\n", "\0", "b b", "\u0301", "ب"];
  for (let round = 0; round < 2000; round++) {
    const value = shownOf(characters);
    const [from, count] = [random(value.length + 1), random(3)];
    const typed = parts[random(parts.length)];
    const next = (value.slice(0, from) + typed + value.slice(from + count)).slice(-40);
    characters = edited(characters, next);
    // The signs for control characters are all that may differ; halves of pairs are mended.
    assert.equal(
      shownOf(characters).replaceAll("␀", "\0"),
      next.toWellFormed().replaceAll("␀", "\0"),
    );
    if (random(3) === 0) characters = score(characters) ?? characters;
  }
});

test("a score that comes late colours what it was asked for", () => {
  const asked = edited([], "to");
  const grown = edited(asked, "to be");
  assert.equal(states(scored(grown, "to", tokens("to"))), "1 1 ? ? ?");
  assert.equal(scored(edited(asked, "so"), "to", tokens("to")), null);
});

test("what the model wrote keeps the scores it was written with", () => {
  const writing = new Writing(edited([], "a"));
  writing.add(tokens("bc", 5));
  const after = score(writing.end(), 2);
  assert.equal(states(after), "2 5 5");
  assert.deepEqual(
    after.map((each) => each.written),
    [false, true, true],
  );
  assert.equal(states(score(edited(after, "xabc"), 2)), "2 2 2 2");
});

test("half a character waits for its other half", () => {
  const writing = new Writing([]);
  const [first, second] = tokens("é");
  assert.equal(textOf(writing.add([first])), "");
  assert.equal(textOf(writing.add([second])), "é");
  assert.equal(textOf(writing.add(tokens("e"))), "ée");
  assert.equal(textOf(writing.add(tokens("\u0301x"))), "ée\u0301x");
  writing.add([first]);
  assert.equal(textOf(writing.end()), "ée\u0301x\ufffd");
});

test("all ways to cut a stream of bytes give the same characters", () => {
  const all = [...tokens("aé€"), { bytes: [0xff], bits: 1, top: [] }, ...tokens("👩‍👧e\u0301\r\n.")];
  const whole = new Writing([]);
  whole.add(all);
  for (const size of [1, 2, 3, 5]) {
    const writing = new Writing([]);
    for (let at = 0; at < all.length; at += size) writing.add(all.slice(at, at + size));
    assert.deepEqual(writing.end(), whole.end());
  }
});

test("of a long text the end is read", () => {
  const text = "so it goes. ".repeat(10_000);
  const characters = edited([], text);
  assert.equal(textOf(characters), text);
  assert.equal(foldedSize(characters), text.length - scorable(characters).length);
  assert.ok(scorable(characters).length <= MOST);
  assert.ok(isScored(score2(characters)));
  const grown = edited(characters, `${text}!`);
  assert.equal(textOf(grown), `${text}!`);
  assert.equal(scorable(grown).length, scorable(characters).length + 1);
  assert.equal(foldedSize(edited([], "short")), 0);
});

const score2 = (characters) => {
  const part = textOf(scorable(characters));
  return scored(characters, part, tokens(part));
};
