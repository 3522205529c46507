// Bytes become characters by UTF-8.

import assert from "node:assert/strict";
import { test } from "node:test";

import {
  bitsEach,
  decode,
  group,
  isText,
  readable,
  shown,
  spoken,
  toTokens,
} from "../../../src/sparing/serve/page/characters.js";

const bytes = (text) => [...Buffer.from(text)];
const each = (data, bits = 1) => data.map((byte) => ({ bytes: [byte], bits, top: [] }));
const texts = (characters) => characters.map((one) => one.text);

test("natural logarithms become bits", () => {
  const [token] = toTokens([[97]], [-Math.LN2 * 3], [[{ bytes: [98], logprob: -Math.LN2 }]]);
  assert.deepEqual(token, { bytes: [97], bits: 3, top: [{ bytes: [98], bits: 1 }] });
  assert.equal(toTokens([[97]], [null])[0].bits, null);
});

test("the bits of the bytes of a character are summed", () => {
  const characters = group(each(bytes("aé€👍")));
  assert.deepEqual(texts(characters), ["a", "é", "€", "👍"]);
  assert.deepEqual(
    characters.map((one) => one.bits),
    [1, 2, 3, 4],
  );
  assert.deepEqual(
    characters.map((one) => one.size),
    [1, 2, 3, 4],
  );
});

test("what a reader takes for one character is one", () => {
  const family = "👩‍👩‍👧";
  assert.deepEqual(texts(group(each(bytes(`e\u0301${family}🇩🇪\r\n`)))), [
    "e\u0301",
    family,
    "🇩🇪",
    "\r\n",
  ]);
});

test("decoding agrees with the browser's decoder about what is UTF-8", () => {
  const strict = new TextDecoder("utf-8", { fatal: true });
  let state = 7;
  const random = (most) => (state = (state * 48271) % 2147483647) % most;
  const likely = [
    0x41, 0x80, 0xbf, 0xc2, 0xe0, 0xa0, 0xed, 0x9f, 0xf0, 0x90, 0xf4, 0x8f, 0xff, 0xe2, 0x82, 0xac,
  ];
  for (let round = 0; round < 4000; round++) {
    const data = Array.from({ length: 1 + random(6) }, () => likely[random(likely.length)]);
    const points = decode(data);
    assert.equal(
      points.reduce((sum, point) => sum + point.size, 0),
      data.length,
    );
    let wanted = null;
    try {
      wanted = strict.decode(Uint8Array.from(data));
    } catch {
      // Not UTF-8.
    }
    const broken = points.some((point) => point.broken);
    assert.equal(broken, wanted === null, String(data));
    if (!broken) assert.equal(points.map((point) => point.text).join(""), wanted);
  }
});

test("bytes that fit nowhere stand alone and are marked", () => {
  const characters = group(each([0x61, 0xff, 0xc3, 0x62]));
  assert.deepEqual(texts(characters), ["a", "\ufffd", "\ufffd", "b"]);
  assert.deepEqual(
    characters.map((one) => one.broken),
    [false, true, true, false],
  );
  assert.equal(group(each([0xe2, 0x82]))[0].open, true);
});

test("a token of several characters stays whole, and its bits are shared", () => {
  const [word, rest] = group([
    { bytes: bytes("the"), bits: 6, top: [] },
    { bytes: bytes("m"), bits: 1, top: [] },
  ]);
  assert.deepEqual([word.text, word.bits, bitsEach(word)], ["the", 6, 2]);
  assert.equal(rest.text, "m");
});

test("tokens that cut characters in two are grouped with them", () => {
  const [first, second] = bytes("é");
  const tokens = [[97, first], [second], [98]].map((one) => ({ bytes: one, bits: 1, top: [] }));
  assert.deepEqual(texts(group(tokens)), ["aé", "b"]);
});

test("signs stand for what cannot be seen", () => {
  assert.equal(shown("a\0\r\n\t\x7f"), "a␀␍\n\t␡");
  assert.deepEqual(
    [" ", "\n", "é"].map((text) => readable(bytes(text))),
    ["␣", "↵", "é"],
  );
  assert.deepEqual([readable([0xc3]), spoken([0xc3]), spoken([32])], ["C3", "byte C3", "space"]);
  assert.deepEqual([isText([0xc3]), isText(bytes("é")), isText([])], [false, true, false]);
});
