// Light, dark, or what the system prefers. Loaded before the first paint.

const KEY = "sparing.theme";
const NEXT = { auto: "light", light: "dark", dark: "auto" };

let theme = "auto";
try {
  theme = localStorage.getItem(KEY) ?? "auto";
} catch {
  // A browser may forbid storage; then the choice lives as long as the page.
}
if (!(theme in NEXT)) theme = "auto";
document.documentElement.dataset.theme = theme;

export function bindTheme(button) {
  const label = () => (button.textContent = `Theme: ${theme}`);
  label();
  button.addEventListener("click", () => {
    theme = NEXT[theme];
    document.documentElement.dataset.theme = theme;
    label();
    try {
      localStorage.setItem(KEY, theme);
    } catch {
      // See above.
    }
  });
}
