/** A metric of the installation over time, by `/v1/series`. */
import { useMemo } from "preact/hooks";
import type { Query } from "../api/client.ts";
import { useResource } from "../api/resource.ts";
import { amount, bytes, duration } from "../format.ts";
import { Problem } from "./basics.tsx";
import { Chart, type Line } from "./chart.tsx";

interface Answer {
  metric: string;
  unit: string;
  step: number;
  start: string;
  series?: { labels: Record<string, string>; values: (number | null)[] }[];
}

export const SPANS: [string, number][] = [
  ["1 hour", 3600],
  ["6 hours", 6 * 3600],
  ["1 day", 86_400],
  ["1 week", 7 * 86_400],
  ["1 month", 30 * 86_400],
];
const MOST_LINES = 8;
const ROUND_SECONDS = 60;

/** Shows a metric, one line for each value of `by`; `seconds`: the length of time until now. */
export function OverTime({
  title,
  metric,
  by,
  seconds,
  filter = {},
  isStacked = false,
}: {
  title: string;
  metric: string;
  by: string[];
  seconds: number;
  filter?: Query;
  isStacked?: boolean;
}) {
  // To the minute, so that the address stays the same while a page is drawn again.
  const since = new Date(
    Math.floor((Date.now() / 1000 - seconds) / ROUND_SECONDS) * ROUND_SECONDS * 1000,
  ).toISOString();
  const found = useResource<Answer>("/v1/series", { metric, by, since, ...filter }, ["series"]);
  const [times, lines] = useMemo(() => linesOf(found.data), [found.data]);
  if (found.error?.status === 403 || found.error?.status === 404) return null;
  const unit = found.data?.unit ?? "";
  return (
    <>
      <Problem error={found.error} retry={found.reload} />
      <Chart
        title={title}
        times={times}
        lines={lines}
        unit={unit === "bytes" || unit === "seconds" ? "" : unit}
        format={formatOf(unit)}
        isStacked={isStacked}
      />
    </>
  );
}

function formatOf(unit: string): (value: number) => string {
  if (unit === "bytes") return bytes;
  if (unit === "seconds") return duration;
  return (value) => amount("", value);
}

/** Returns the times and lines of an answer: the largest ones, named by their labels. */
export function linesOf(answer: Answer | undefined): [number[], Line[]] {
  const series = answer?.series ?? [];
  const length = Math.max(0, ...series.map((one) => one.values.length));
  const begin = answer ? Date.parse(answer.start) / 1000 : 0;
  const times = Array.from({ length }, (_, index) => begin + index * (answer?.step ?? 0));
  const sum = (values: (number | null)[]) => values.reduce<number>((total, one) => total + (one ?? 0), 0);
  const sorted = [...series].sort((one, other) => sum(other.values) - sum(one.values));
  const lines = sorted
    .slice(0, MOST_LINES)
    .map((one) => ({ name: Object.values(one.labels).join(" ") || "all", values: one.values }));
  return [times, lines];
}
