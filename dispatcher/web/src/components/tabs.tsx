/** Parts of a page, one at a time; the address keeps which. */
import type { ComponentChildren } from "preact";
import { useRef } from "preact/hooks";
import { useSearchParams } from "wouter-preact";

export interface Tab {
  name: string;
  title: string;
  body: () => ComponentChildren;
}

export function Tabs({ of, label }: { of: Tab[]; label: string }) {
  const [search, setSearch] = useSearchParams();
  const list = useRef<HTMLDivElement>(null);
  const chosen = of.find((one) => one.name === search.get("tab")) ?? of[0];
  const choose = (name: string) =>
    setSearch(
      (before) => {
        const next = new URLSearchParams(before);
        next.set("tab", name);
        return next;
      },
      { replace: true },
    );
  const move = (event: KeyboardEvent) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step || !chosen) return;
    const next = of[(of.indexOf(chosen) + step + of.length) % of.length];
    if (!next) return;
    choose(next.name);
    list.current?.querySelector<HTMLElement>(`[data-tab="${next.name}"]`)?.focus();
  };
  return (
    <>
      <div class="tabs" role="tablist" aria-label={label} ref={list} onKeyDown={move}>
        {of.map((one) => (
          <button
            type="button"
            role="tab"
            key={one.name}
            id={`tab-${one.name}`}
            data-tab={one.name}
            aria-selected={one === chosen}
            aria-controls="tab-body"
            tabIndex={one === chosen ? 0 : -1}
            onClick={() => choose(one.name)}
          >
            {one.title}
          </button>
        ))}
      </div>
      <div role="tabpanel" id="tab-body" aria-labelledby={`tab-${chosen?.name}`}>
        {chosen?.body()}
      </div>
    </>
  );
}
