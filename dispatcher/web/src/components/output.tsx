/** The output of a job's members, followed live. */
import { useEffect, useRef, useState } from "preact/hooks";
import { pieces } from "../ansi.ts";
import { ApiError, lines } from "../api/client.ts";
import { Problem } from "./basics.tsx";

interface LogLine {
  role?: string;
  index?: number;
  data?: string;
  missed?: number;
  note?: string;
  problem?: string;
  end?: string;
}

interface Shown {
  id: number;
  who: string;
  text: string;
  isNote: boolean;
}

const MOST_SHOWN = 5000;
const TAIL_BYTES = 256 * 1024;
const COLOURS = ["#8b949e", "#ff7b72", "#7ee787", "#e3b341", "#79c0ff", "#d2a8ff", "#76e3ea", "#e6edf3"];

export interface Source {
  role?: string;
  index?: number;
  attempt?: number;
}

/** Shows the output of a job, or of one member; `job` is its id. */
export function Output({ job, source, isOver }: { job: string; source: Source; isOver: boolean }) {
  const [shown, setShown] = useState<Shown[]>([]);
  const [error, setError] = useState<ApiError>();
  const [follows, setFollows] = useState(true);
  const [turn, setTurn] = useState(0);
  const box = useRef<HTMLPreElement>(null);
  const wanted = JSON.stringify(source);
  useEffect(() => {
    const abort = new AbortController();
    setShown([]);
    setError(undefined);
    let next = 0;
    let waiting: Shown[] = [];
    const flush = () => {
      if (!waiting.length) return;
      const more = waiting;
      waiting = [];
      setShown((before) => [...before, ...more].slice(-MOST_SHOWN));
    };
    const timer = setInterval(flush, 150);
    const read = async () => {
      const query = { ...source, follow: isOver ? undefined : true, tailBytes: TAIL_BYTES };
      for await (const line of lines<LogLine>(
        `/v1/jobs/${encodeURIComponent(job)}/logs`,
        query,
        abort.signal,
      )) {
        const note = line.note ?? line.problem ?? (line.end ? `the job has ended: ${line.end}` : undefined);
        const who = line.role === undefined ? "" : `${line.role}-${line.index}`;
        if (line.missed)
          waiting.push({ id: next++, who, text: `${line.missed} bytes are not available\n`, isNote: true });
        if (note) waiting.push({ id: next++, who: "", text: `${note}\n`, isNote: true });
        if (line.data) waiting.push({ id: next++, who, text: line.data, isNote: false });
      }
    };
    read()
      .catch((problem) => {
        if (problem instanceof ApiError) setError(problem);
      })
      .finally(flush);
    return () => {
      abort.abort();
      clearInterval(timer);
    };
  }, [job, wanted, isOver, turn]);
  useEffect(() => {
    if (follows && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [shown, follows]);
  const areMany = new Set(shown.map((one) => one.who).filter(Boolean)).size > 1;
  return (
    <>
      <div class="toolbar">
        <label>
          <input
            type="checkbox"
            checked={follows}
            onChange={(event) => setFollows(event.currentTarget.checked)}
          />{" "}
          Follow
        </label>
        <a
          class="button"
          href={`/v1/jobs/${encodeURIComponent(job)}/logs?tailBytes=1073741824`}
          download={`${job}.ndjson`}
        >
          Download
        </a>
      </div>
      <Problem error={error} retry={() => setTurn(turn + 1)} />
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls has to be reached by the keyboard */}
      <pre class="output" ref={box} tabIndex={0} role="log" aria-label="Output">
        {shown.length === 0 && !error && <span class="note">no output yet</span>}
        {shown.map((one) => (
          <span key={one.id} class={one.isNote ? "note" : undefined}>
            {areMany && one.who && <span class="who">{one.who} | </span>}
            {pieces(one.text).map((piece, index) => (
              <span
                key={index}
                style={
                  piece.colour === undefined && !piece.isBold
                    ? undefined
                    : { color: COLOURS[(piece.colour ?? 7) % 8], fontWeight: piece.isBold ? 700 : undefined }
                }
              >
                {piece.text}
              </span>
            ))}
          </span>
        ))}
      </pre>
    </>
  );
}
