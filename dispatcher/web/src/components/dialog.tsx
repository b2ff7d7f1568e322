/** Dialogs and short messages. */
import { signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";

/** A dialog over the page; Escape closes it, and the focus returns to where it was. */
export function Dialog({
  title,
  close,
  children,
}: {
  title: string;
  close: () => void;
  children: ComponentChildren;
}) {
  const root = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const before = document.activeElement;
    const dialog = root.current;
    dialog?.showModal();
    return () => {
      dialog?.close();
      if (before instanceof HTMLElement) before.focus();
    };
  }, []);
  return (
    <dialog ref={root} aria-labelledby="dialog-title" onCancel={close} onClose={close}>
      <h2 id="dialog-title">{title}</h2>
      {children}
    </dialog>
  );
}

interface Message {
  id: number;
  text: string;
  isBad: boolean;
}

const SHOWN_MILLISECONDS = 6000;
const messages = signal<Message[]>([]);
let last = 0;

/** Shows a message for a while. */
export function say(text: string, isBad = false): void {
  last += 1;
  const mine = last;
  messages.value = [...messages.value, { id: mine, text, isBad }];
  setTimeout(() => {
    messages.value = messages.value.filter((one) => one.id !== mine);
  }, SHOWN_MILLISECONDS);
}

export function Messages() {
  return (
    <div class="messages" role="status" aria-live="polite">
      {messages.value.map((one) => (
        <p key={one.id} class={one.isBad ? "message bad" : "message"}>
          {one.text}
        </p>
      ))}
    </div>
  );
}
