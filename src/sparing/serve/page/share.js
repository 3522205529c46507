// What a link holds: texts and settings in the fragment of the address, which no server sees.

/** Settings with their defaults; numbers have bounds. */
export const SETTINGS = {
  text: { kind: "text", usual: "" },
  first: { kind: "text", usual: "" },
  second: { kind: "text", usual: "" },
  model: { kind: "text", usual: "" },
  temperature: { kind: "number", usual: 0.9, least: 0, most: 2 },
  top_p: { kind: "number", usual: 0.95, least: 0.05, most: 1 },
  top_k: { kind: "whole", usual: 0, least: 0, most: 1000 },
  min_p: { kind: "number", usual: 0, least: 0, most: 0.5 },
  length: { kind: "whole", usual: 200, least: 1, most: 4000 },
  seed: { kind: "whole", usual: null, least: 0, most: 2 ** 31 - 1 },
};

/** Longest fragment; programs that pass links on cut longer ones. */
export const LONGEST = 8000;

export const usual = () =>
  Object.fromEntries(Object.entries(SETTINGS).map(([name, setting]) => [name, setting.usual]));

/** The fragment for some settings, without the usual ones. Texts that are too long are left out. */
export function toFragment(settings) {
  const parts = new URLSearchParams();
  const texts = [];
  for (const [name, setting] of Object.entries(SETTINGS)) {
    const value = settings[name];
    if (value == null || value === setting.usual) continue;
    parts.set(name, value);
    if (setting.kind === "text") texts.push(name);
  }
  const complete = parts.toString().length <= LONGEST;
  if (!complete) texts.forEach((name) => name !== "model" && parts.delete(name));
  return { fragment: parts.toString(), complete };
}

/** The settings of a fragment. What is unknown, no number or out of bounds is ignored. */
export function fromFragment(fragment) {
  const settings = usual();
  for (const [name, value] of new URLSearchParams(fragment.replace(/^#/, ""))) {
    if (!Object.hasOwn(SETTINGS, name)) continue;
    settings[name] = read(SETTINGS[name], value);
  }
  return settings;
}

/** A setting from a string: the nearest value within its bounds, and the usual one for nonsense. */
export function read(setting, value) {
  if (setting.kind === "text") return value;
  if (value.trim() === "" || !Number.isFinite(Number(value))) return setting.usual;
  const number = setting.kind === "whole" ? Math.round(Number(value)) : Number(value);
  return Math.min(setting.most, Math.max(setting.least, number));
}
