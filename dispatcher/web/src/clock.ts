/** The time of the page: a signal that moves once a second while the page is visible. */
import { signal } from "@preact/signals";

export const now = signal(Date.now());
setInterval(() => {
  if (!document.hidden) now.value = Date.now();
}, 1000);
