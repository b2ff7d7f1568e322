/** Dark or light: as the system says, unless the viewer has chosen. */
import { signal } from "@preact/signals";

const KEY = "trainmaster.theme";

function wanted(): "dark" | "light" {
  const chosen = localStorage.getItem(KEY);
  if (chosen === "dark" || chosen === "light") return chosen;
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

export const theme = signal<"dark" | "light">("light");

export function applyTheme(): void {
  theme.value = wanted();
  document.documentElement.dataset.theme = theme.value;
}

export function toggleTheme(): void {
  localStorage.setItem(KEY, theme.value === "dark" ? "light" : "dark");
  applyTheme();
}
