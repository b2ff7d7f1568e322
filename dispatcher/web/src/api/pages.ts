/** A long list that is read page by page as it is scrolled, newest first. */
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { watch } from "../live.ts";
import { ApiError, addressOf, get, type Query } from "./client.ts";

interface PageOf<Row> {
  cursor: string | null;
  rows: Row[];
  next: string | null;
}

interface Answer {
  next?: string | null;
  [member: string]: unknown;
}

const PAGE_ROWS = 200;
const LEAST_MILLISECONDS = 2000;

export interface LongList<Row> {
  rows: Row[];
  error: ApiError | undefined;
  isLoading: boolean;
  hasMore: boolean;
  more: () => void;
  reload: () => void;
}

/**
 * Reads a list whose answers have `member` and `next`.
 *
 * A cursor stands for all that is older than a row, so that pages but the first always have the same rows: after a change, the first page
 * is read again, and the others when they are next scrolled to.
 */
export function useLongList<Row>(
  path: string,
  member: string,
  query: Query,
  topics: string[],
): LongList<Row> {
  const address = addressOf(path, query);
  const [pages, setPages] = useState<PageOf<Row>[]>([]);
  const [error, setError] = useState<ApiError>();
  const [isLoading, setLoading] = useState(true);
  const state = useRef({ turn: 0, isReading: false, pages });
  state.current.pages = pages;

  const read = useCallback(
    async (cursor: string | null, known: PageOf<Row>[]) => {
      const turn = state.current.turn;
      state.current.isReading = true;
      try {
        const found = await get<Answer>(path, { ...query, cursor, limit: PAGE_ROWS });
        if (turn !== state.current.turn) return;
        const page = { cursor, rows: (found[member] ?? []) as Row[], next: found.next ?? null };
        setPages([...known, page]);
        setError(undefined);
      } catch (problem) {
        if (turn === state.current.turn && problem instanceof ApiError) setError(problem);
      } finally {
        if (turn === state.current.turn) {
          state.current.isReading = false;
          setLoading(false);
        }
      }
    },
    [address],
  );

  const reload = useCallback(() => {
    state.current.turn += 1;
    read(null, []);
  }, [read]);

  useEffect(() => {
    setPages([]);
    setLoading(true);
    reload();
  }, [reload]);

  const listed = topics.join(" ");
  useEffect(() => {
    let timer: ReturnType<typeof setTimeout> | undefined;
    let last = 0;
    const changed = () => {
      if (timer) return;
      timer = setTimeout(
        () => {
          timer = undefined;
          last = Date.now();
          if (!state.current.isReading) refresh();
        },
        Math.max(0, last + LEAST_MILLISECONDS - Date.now()),
      );
    };
    const refresh = async () => {
      const [first, ...others] = state.current.pages;
      if (!first) return reload();
      const turn = state.current.turn;
      try {
        const found = await get<Answer>(path, { ...query, limit: PAGE_ROWS });
        if (turn !== state.current.turn) return;
        const page = { cursor: null, rows: (found[member] ?? []) as Row[], next: found.next ?? null };
        // Rows that new ones have pushed out of the first page are in none of the others.
        setPages(page.next === first.next ? [page, ...others] : [page]);
        setError(undefined);
      } catch (problem) {
        if (turn === state.current.turn && problem instanceof ApiError) setError(problem);
      }
    };
    const end = watch(listed ? listed.split(" ") : [], changed);
    return () => {
      clearTimeout(timer);
      end();
    };
  }, [address, listed]);

  const next = pages.at(-1)?.next ?? null;
  const more = useCallback(() => {
    if (next !== null && !state.current.isReading) read(next, state.current.pages);
  }, [next, read]);
  return { rows: pages.flatMap((one) => one.rows), error, isLoading, hasMore: next !== null, more, reload };
}
