/** Calls of the public API, with the session of this browser. */

export interface Mistake {
  path: string;
  message: string;
}

interface ProblemBody {
  code?: string;
  detail?: string;
  title?: string;
  mistakes?: Mistake[];
}

/** An answer that is a problem, or the lack of one: `code` is then `unreachable`. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    detail: string,
    readonly mistakes: Mistake[] = [],
  ) {
    super(detail);
  }
}

export type Query = Record<string, string | number | boolean | string[] | undefined | null>;

export interface CallTerms {
  query?: Query;
  body?: unknown;
  /** Another content type of the body than JSON, which is text then. */
  bodyType?: string;
  signal?: AbortSignal;
  headers?: Record<string, string>;
}

const listeners = { signedOut: () => {} };
let csrfToken = "";

/** Sets what changes of this browser's session need, and what is done once the session has ended. */
export function configure(terms: { csrfToken?: string; signedOut?: () => void }): void {
  if (terms.csrfToken !== undefined) csrfToken = terms.csrfToken;
  if (terms.signedOut) listeners.signedOut = terms.signedOut;
}

/** Returns an address with its query; fields without a value are left out, lists are repeated. */
export function addressOf(path: string, query: Query = {}): string {
  const found = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== undefined && one !== null && one !== "") found.append(name, String(one));
    }
  }
  const text = found.toString();
  return text ? `${path}?${text}` : path;
}

/** Returns an answer. Throws ApiError for a problem. */
export async function send(method: string, path: string, terms: CallTerms = {}): Promise<Response> {
  const headers: Record<string, string> = { Accept: "application/json", ...terms.headers };
  if (method !== "GET") headers["X-Trainmaster-CSRF"] = csrfToken;
  let body: string | undefined;
  if (terms.body !== undefined) {
    headers["Content-Type"] = terms.bodyType ?? "application/json";
    body = terms.bodyType ? String(terms.body) : JSON.stringify(terms.body);
  }
  let answer: Response;
  try {
    const address = addressOf(path, terms.query);
    answer = await fetch(address, {
      method,
      headers,
      body,
      signal: terms.signal,
      credentials: "same-origin",
    });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiError(0, "unreachable", "The dispatcher does not answer; the page tries again.");
  }
  if (answer.ok) return answer;
  throw await problemOf(answer);
}

async function problemOf(answer: Response): Promise<ApiError> {
  let found: ProblemBody = {};
  try {
    found = await answer.json();
  } catch {
    // An answer of a proxy, which is no problem of the API.
  }
  const error = new ApiError(
    answer.status,
    found.code ?? `http-${answer.status}`,
    found.detail ?? found.title ?? `The dispatcher answered ${answer.status}.`,
    found.mistakes ?? [],
  );
  if (answer.status === 401) listeners.signedOut();
  return error;
}

/** Returns the JSON of an answer; nothing for one without a body. Throws ApiError. */
export async function call<Answer>(method: string, path: string, terms: CallTerms = {}): Promise<Answer> {
  const answer = await send(method, path, terms);
  return answer.status === 204 ? (undefined as Answer) : await answer.json();
}

export const get = <Answer>(path: string, query?: Query, signal?: AbortSignal): Promise<Answer> =>
  call<Answer>("GET", path, { query, signal });

/** Yields the lines of an answer as they come, each one JSON value. Throws ApiError. */
export async function* lines<Line>(path: string, query: Query, signal: AbortSignal): AsyncGenerator<Line> {
  const answer = await send("GET", path, { query, signal, headers: { Accept: "application/x-ndjson" } });
  const reader = answer.body?.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  while (reader) {
    const { done, value } = await reader.read();
    if (done) break;
    const parts = (rest + value).split("\n");
    rest = parts.pop() ?? "";
    for (const part of parts) if (part) yield JSON.parse(part) as Line;
  }
  if (rest) yield JSON.parse(rest) as Line;
}
