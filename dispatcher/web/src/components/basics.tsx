/** Small parts that all pages have. */
import type { ComponentChildren, JSX } from "preact";
import { Link } from "wouter-preact";
import type { ApiError } from "../api/client.ts";
import { now } from "../clock.ts";
import { duration, moment, utc } from "../format.ts";

const TONES: Record<string, string> = {
  running: "good",
  succeeded: "done",
  ready: "good",
  open: "good",
  queued: "wait",
  dispatched: "wait",
  held: "quiet",
  failed: "bad",
  unreachable: "bad",
  "never connected": "quiet",
  cancelled: "quiet",
  cancelling: "wait",
  suspending: "wait",
  draining: "wait",
  drained: "quiet",
  cordoned: "quiet",
  closed: "bad",
};
const MARKS: Record<string, string> = { good: "●", done: "✓", wait: "◌", bad: "✕", quiet: "–" };

/** A state by its word, and by a mark and a colour beside it. */
export function State({ of }: { of: string }) {
  const tone = TONES[of] ?? "quiet";
  return (
    <span class={`state state-${tone}`}>
      <span aria-hidden="true">{MARKS[tone]} </span>
      {of}
    </span>
  );
}

/** A time in the viewer's zone, with the one in UTC as its title. */
export function Time({ at }: { at: string | null | undefined }) {
  if (!at) return <>-</>;
  return (
    <time dateTime={at} title={utc(at)}>
      {moment(at)}
    </time>
  );
}

/** How long ago a time was; it goes on by itself. */
export function Ago({ at }: { at: string | null | undefined }) {
  if (!at) return <>-</>;
  return (
    <time dateTime={at} title={`${moment(at)} (${utc(at)})`}>
      {duration(Math.max(0, Math.floor((now.value - Date.parse(at)) / 1000)))} ago
    </time>
  );
}

/** A time between two moments; it goes on where the second one is missing. */
export function Lasting({ from, to }: { from: string | null | undefined; to?: string | null | undefined }) {
  if (!from) return <>-</>;
  const end = to ? Date.parse(to) : now.value;
  return <>{duration(Math.max(0, Math.round((end - Date.parse(from)) / 1000)))}</>;
}

export function JobLink({ id }: { id: string }) {
  return <Link href={`/jobs/${encodeURIComponent(id)}`}>{id}</Link>;
}

/** Why something could not be read or done. */
export function Problem({ error, retry }: { error: ApiError | undefined; retry?: () => void }) {
  if (!error) return null;
  return (
    <div class="problem" role="alert">
      <p>
        {error.message} <code>{error.code}</code>
      </p>
      {error.mistakes.length > 1 && (
        <ul>
          {error.mistakes.map((one) => (
            <li key={`${one.path} ${one.message}`}>
              <code>{one.path}</code> {one.message}
            </li>
          ))}
        </ul>
      )}
      {retry && (
        <button type="button" onClick={retry}>
          Try again
        </button>
      )}
    </div>
  );
}

export function Empty({ children }: { children: ComponentChildren }) {
  return <p class="empty">{children}</p>;
}

export function Loading() {
  return (
    <p class="empty" role="status">
      Loading …
    </p>
  );
}

/** The title of a page, in the window as well, with what can be done on it. */
export function Title({ text, children }: { text: string; children?: ComponentChildren }) {
  document.title = `${text} · Trainmaster`;
  return (
    <header class="title">
      <h1>{text}</h1>
      <div class="actions">{children}</div>
    </header>
  );
}

export function Section({
  title,
  children,
  ...more
}: { title: string; children: ComponentChildren } & JSX.HTMLAttributes<HTMLElement>) {
  return (
    <section {...more}>
      <h2>{title}</h2>
      {children}
    </section>
  );
}

/** Names with values, as a list of definitions; pairs without a value are left out. */
export function Pairs({ of }: { of: [string, ComponentChildren][] }) {
  return (
    <dl class="pairs">
      {of
        .filter(([, value]) => value !== undefined && value !== null && value !== "")
        .map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
    </dl>
  );
}

/** Shares of a whole, as a bar with a text that says the same. */
export function Bar({
  parts,
  whole,
  label,
}: {
  parts: { name: string; value: number }[];
  whole: number;
  label: string;
}) {
  const scale = Math.max(
    whole,
    parts.reduce((sum, one) => sum + one.value, 0),
  );
  return (
    <span class="bar" role="img" aria-label={label} title={label}>
      {scale > 0 &&
        parts.map((one, index) => (
          <span
            key={one.name}
            class={`bar-part bar-part-${index}`}
            style={{ width: `${(100 * one.value) / scale}%` }}
          />
        ))}
    </span>
  );
}

/** A part that scrolls sideways by itself, and is reached by the keyboard for that. */
export function Scrolls({
  label,
  isTall,
  children,
}: {
  label: string;
  isTall?: boolean;
  children: ComponentChildren;
}) {
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls has to be reached by the keyboard
    <section class={isTall ? "scrolls tall" : "scrolls"} aria-label={label} tabIndex={0}>
      {children}
    </section>
  );
}
