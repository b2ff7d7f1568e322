/** What a page reads: cached by its address, and read again when something has changed. */
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { watch } from "../live.ts";
import { ApiError, addressOf, get, type Query } from "./client.ts";

const LEAST_MILLISECONDS = 1500;
/** The least time between two reads of a resource, however much changes. */
const MOST_CACHED = 100;

const cache = new Map<string, unknown>();

function remember(address: string, data: unknown): void {
  cache.delete(address);
  cache.set(address, data);
  while (cache.size > MOST_CACHED) cache.delete(cache.keys().next().value as string);
}

/** Forgets all that was read: somebody else has signed in. */
export function forget(): void {
  cache.clear();
}

export interface Resource<Data> {
  /** What was read last, also where reading it again has failed. */
  data: Data | undefined;
  error: ApiError | undefined;
  isLoading: boolean;
  reload: () => void;
}

/** Reads an address and returns its answer; null reads nothing. `topics`: see `live.ts`. */
export function useResource<Data>(
  path: string | null,
  query: Query = {},
  topics: string[] = [],
): Resource<Data> {
  const address = path === null ? null : addressOf(path, query);
  const [state, setState] = useState<{ address: string | null; data?: Data; error?: ApiError }>({
    address: null,
  });
  const turn = useRef(0);
  const read = useCallback(async () => {
    if (address === null) return;
    turn.current += 1;
    const mine = turn.current;
    try {
      const data = await get<Data>(address);
      remember(address, data);
      if (mine === turn.current) setState({ address, data });
    } catch (error) {
      if (mine === turn.current && error instanceof ApiError) {
        setState((before) => ({
          address,
          data: before.address === address ? before.data : undefined,
          error,
        }));
      }
    }
  }, [address]);
  const listed = topics.join(" ");
  useEffect(() => {
    read();
    let timer: ReturnType<typeof setTimeout> | undefined;
    let last = Date.now();
    const changed = () => {
      if (timer) return;
      timer = setTimeout(
        () => {
          timer = undefined;
          last = Date.now();
          read();
        },
        Math.max(0, last + LEAST_MILLISECONDS - Date.now()),
      );
    };
    const end = watch(listed ? listed.split(" ") : [], changed);
    return () => {
      turn.current += 1;
      clearTimeout(timer);
      end();
    };
  }, [read, listed]);
  const isMine = state.address === address;
  const data = isMine ? state.data : address === null ? undefined : (cache.get(address) as Data | undefined);
  return {
    data,
    error: isMine ? state.error : undefined,
    isLoading: address !== null && data === undefined && !(isMine && state.error),
    reload: read,
  };
}
