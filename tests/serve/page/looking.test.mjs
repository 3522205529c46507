// The text is coloured by where a head looked, as long as it is the text that the head read.

import assert from "node:assert/strict";
import { test } from "node:test";

import { Looking } from "../../../src/sparing/serve/page/looking.js";
import { edited } from "../../../src/sparing/serve/page/text.js";

const part = () => ({
  addEventListener() {},
  replaceChildren() {},
  querySelector: () => ({ value: "0.0" }),
});
globalThis.document = { createElement: part };

async function looked(text) {
  const editor = {
    characters: edited([], text),
    at: text.length,
    colourBy: (paint) => (editor.paint = paint),
  };
  const looking = new Looking({ open: true, querySelector: part }, editor, { querySelector: part });
  looking.heads.show = ({ layers }) => (looking.heads.layers = layers);
  const weights = [...text].map((_, at) => at);
  const answer = { layers: [{ layer: 0, heads: [{ span: null, weights }] }] };
  await looking.ask({ attention: async () => answer }, { attention: true });
  return { editor, looking };
}

test("the text that a head has read is coloured by its attention", async () => {
  const { editor } = await looked("abcd");
  assert.deepEqual(editor.paint(null, 3), ["weight", 15]);
  assert.equal(editor.paint(null, 4), null);
});

for (const now of ["ab", "", "axcd"]) {
  test(`a text that has become "${now}" is coloured by surprisal again`, async () => {
    const { editor, looking } = await looked("abcd");
    editor.characters = edited(editor.characters, now);
    looking.paint();
    assert.equal(editor.paint, null);
  });
}

test("a text that has only grown keeps the colours of its beginning", async () => {
  const { editor, looking } = await looked("abcd");
  editor.characters = edited(editor.characters, "abcde");
  looking.paint();
  assert.deepEqual(editor.paint(null, 3), ["weight", 15]);
});
