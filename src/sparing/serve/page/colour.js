// Surprisal to colour: steps of half a bit up to eight bits, what a byte drawn at random carries.

export const STEPS = 16;
export const MOST_BITS = 8;

/** The step of the scale, 0 to STEPS - 1. */
export const step = (bits) => Math.min(STEPS - 1, Math.floor((bits * STEPS) / MOST_BITS));

/** The step of an attention weight. Weights are uneven, so the scale is of their square roots. */
export const weightStep = (weight, largest) =>
  largest > 0 ? Math.min(STEPS - 1, Math.floor(Math.sqrt(weight / largest) * STEPS)) : 0;

const TICKS = { bits: [0, 2, 4, 6, `${MOST_BITS}+`], weight: ["none", "most"] };

/** Draw a legend, one box for each step. */
export function drawLegend(root, kind, title) {
  root.querySelector("figcaption").textContent = title;
  root
    .querySelector(".scale")
    .replaceChildren(
      ...Array.from({ length: STEPS }, (_, at) => element(`${kind} step-${at}`, "")),
    );
  root.querySelector(".ticks").replaceChildren(...TICKS[kind].map((tick) => element("", tick)));
}

const element = (className, textContent) =>
  Object.assign(document.createElement("span"), { className, textContent });

export const percent = (bits) => {
  const share = 100 * 2 ** -bits;
  if (share >= 99.95) return "100 %";
  if (share >= 10) return `${share.toFixed(0)} %`;
  if (share >= 0.1) return `${share.toFixed(1)} %`;
  return share >= 0.001 ? `${share.toFixed(3)} %` : "< 0.001 %";
};

export const bitsText = (bits) =>
  `${bits.toFixed(bits < 10 ? 2 : 1)} ${bits === 1 ? "bit" : "bits"}`;
