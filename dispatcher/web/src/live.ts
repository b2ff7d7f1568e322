/** Changes as they happen: one stream of the page, and the topics by which resources are read again. */

interface Changes {
  jobs?: { id: string; queue: string }[];
  more?: boolean;
  queues?: string[];
  clusters?: string[];
  kinds?: string[];
}

type Listener = () => void;

const POLL_SECONDS = 10;
const listeners = new Map<string, Set<Listener>>();
let source: EventSource | undefined;
let poll: ReturnType<typeof setInterval> | undefined;
let missed = false;

/** Calls a listener after changes of any of these topics; returns what ends that. */
export function watch(topics: string[], listener: Listener): () => void {
  for (const topic of topics) {
    const found = listeners.get(topic) ?? new Set();
    found.add(listener);
    listeners.set(topic, found);
  }
  if (topics.length) connect();
  return () => {
    for (const topic of topics) listeners.get(topic)?.delete(listener);
  };
}

function tell(topics: Iterable<string>): void {
  const called = new Set<Listener>();
  for (const topic of topics) for (const one of listeners.get(topic) ?? []) called.add(one);
  for (const one of called) one();
}

function tellAll(): void {
  tell(listeners.keys());
}

function connect(): void {
  if (source || poll) return;
  source = new EventSource("/v1/changes?every=2");
  source.addEventListener("changes", (event) => {
    if (document.hidden) {
      missed = true;
      return;
    }
    tell(topicsOf(JSON.parse((event as MessageEvent<string>).data) as Changes));
  });
  source.addEventListener("reset", tellAll);
  source.addEventListener("error", () => {
    // A browser that tries again by itself is still connecting; one that has given up got an answer of another kind.
    if (source?.readyState !== EventSource.CLOSED) return;
    disconnect();
    poll = setInterval(() => {
      if (!document.hidden) tellAll();
    }, POLL_SECONDS * 1000);
  });
}

/** Ends the stream: nobody is signed in any more. */
export function disconnect(): void {
  source?.close();
  source = undefined;
  clearInterval(poll);
  poll = undefined;
}

/** Returns the topics of what has changed. */
export function topicsOf(changes: Changes): string[] {
  const topics = new Set<string>();
  if (changes.more || changes.jobs?.length) topics.add("jobs");
  for (const one of changes.jobs ?? []) topics.add(`job:${one.id}`);
  if (changes.more) topics.add("job:*");
  if (changes.queues?.length) topics.add("queues");
  if (changes.clusters?.length) topics.add("clusters");
  for (const kind of changes.kinds ?? []) topics.add(kind);
  return [...topics];
}

if (typeof document !== "undefined") {
  document.addEventListener("visibilitychange", () => {
    if (document.hidden || !missed) return;
    missed = false;
    tellAll();
  });
}
