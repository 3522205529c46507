// Links hold texts and settings; events are read however they are cut.

import assert from "node:assert/strict";
import { test } from "node:test";

import { events } from "../../../src/sparing/serve/page/api.js";
import { verdict } from "../../../src/sparing/serve/page/compare.js";
import { halfWithin, paintBy } from "../../../src/sparing/serve/page/heads.js";
import { LONGEST, fromFragment, toFragment, usual } from "../../../src/sparing/serve/page/share.js";

test("a link brings back what it was made of", () => {
  const settings = {
    ...usual(),
    text: "a&b=c #é\n\0👍",
    second: "+ %20",
    temperature: 0.55,
    seed: 3,
    top_k: 7,
  };
  const { fragment, complete } = toFragment(settings);
  assert.ok(complete);
  assert.deepEqual(fromFragment(`#${fragment}`), settings);
  assert.equal(toFragment(usual()).fragment, "");
});

test("a text that is too long for a link is left out", () => {
  const { fragment, complete } = toFragment({
    ...usual(),
    text: "x".repeat(LONGEST),
    model: "m",
    seed: 1,
  });
  assert.deepEqual([fragment, complete], ["model=m&seed=1", false]);
});

test("nonsense in a link is ignored or brought within bounds", () => {
  const given = fromFragment(
    "#temperature=9&top_p=-1&length=1e99&top_k=2.6&seed=x&__proto__=1&min_p=NaN&a",
  );
  assert.deepEqual(given, { ...usual(), temperature: 2, top_p: 0.05, length: 4000, top_k: 3 });
});

test("events arrive whole however the stream is cut", async () => {
  const wire = new TextEncoder().encode(
    'data: {"a":"é"}\r\n\r\n: comment\n\ndata: one\ndata: two\n\ndata: [DONE]\n\n',
  );
  for (let size = 1; size < wire.length; size++) {
    const stream = new ReadableStream({
      start(control) {
        for (let at = 0; at < wire.length; at += size) control.enqueue(wire.slice(at, at + size));
        control.close();
      },
    });
    const found = [];
    for await (const data of events(stream)) found.push(data);
    assert.deepEqual(found, ['{"a":"é"}', "one\ntwo", "[DONE]"]);
  }
});

test("the verdict names the more probable text and by how much", () => {
  assert.equal(verdict(3), "The first is 8 times as probable: 3.00 bits less.");
  assert.equal(verdict(-12), "The second is 4,100 times as probable: 12.00 bits less.");
  assert.equal(verdict(100), "The first is 2^100 times as probable: 100.00 bits less.");
  assert.equal(verdict(0), "The model finds both equally probable.");
});

test("attention is counted from the newest token back", () => {
  assert.deepEqual(
    [halfWithin([1, 0, 0]), halfWithin([0, 0, 1]), halfWithin([0.2, 0.4, 0.4])],
    [2, 0, 1],
  );
  const characters = [{ size: 1 }, { tokens: [1, 2] }, { size: 1 }, { size: 1 }];
  // One weight more than there are tokens: that of the token before the text.
  const paint = paintBy([0.4, 0, 0.1, 0.3, 0.1], characters, 3);
  assert.deepEqual(
    [0, 1, 2, 3].map((at) => paint(null, at)),
    [["weight", 0], ["weight", 15], ["weight", 8], null],
  );
});
