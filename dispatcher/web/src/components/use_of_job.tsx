/** What the members of a job use, beside what was requested, now and over time. */
import { useMemo } from "preact/hooks";
import { useResource } from "../api/resource.ts";
import { bytes } from "../format.ts";
import { Ago, Empty, Lasting, Loading, Pairs, Problem, Scrolls, Section } from "./basics.tsx";
import { Chart, type Line } from "./chart.tsx";

interface Amount {
  used?: number | null;
  requested?: number | null;
  percent?: number | null;
}

interface Use {
  sampledAt?: string;
  cpu?: Amount;
  memory?: Amount;
  gpu?: Amount;
  gpuMemory?: number;
  gpusIdleSince?: string;
  peakMemory?: number;
  cpuAverage?: Amount;
  gpuAverage?: Amount;
}

interface MemberUse {
  role: string;
  index: number;
  node?: string;
  cpu?: number;
  memory?: number;
  peakMemory?: number;
  gpu?: number;
  gpuMemory?: number;
}

interface Series {
  member: string;
  metric: string;
  unit: string;
  start: string;
  step: number;
  values: (number | null)[];
}

interface Answer {
  use?: Use;
  missing?: string;
  members?: MemberUse[];
  series?: Series[];
}

const METRICS: [string, string, (value: number) => string][] = [
  ["cpu", "CPU", (value) => String(Number(value.toFixed(2)))],
  ["memory", "Memory", bytes],
  ["gpu", "GPU", (value) => String(Number(value.toFixed(1)))],
  ["gpuMemory", "GPU memory", bytes],
];

function amountText(of: Amount | undefined, format: (value: number) => string): string {
  if (!of || of.used === undefined || of.used === null) return "";
  const requested =
    of.requested === undefined || of.requested === null ? "" : ` of ${format(of.requested)} requested`;
  return `${format(of.used)}${requested}${of.percent === undefined || of.percent === null ? "" : ` (${Math.round(of.percent)}%)`}`;
}

export function UseOfJob({
  path,
  since,
  topics,
}: {
  path: string;
  since: string | null | undefined;
  topics: string[];
}) {
  const found = useResource<Answer>(`${path}/use`, since ? { since } : {}, [...topics, "jobs"]);
  if (found.isLoading) return <Loading />;
  const { use, missing, members = [], series = [] } = found.data ?? {};
  const plain = (value: number) => String(Number(value.toFixed(2)));
  return (
    <>
      <Problem error={found.error} retry={found.reload} />
      {missing && <p class="hint">{missing}</p>}
      {!use && !found.error && (
        <Empty>Nothing is known of what it uses: it has not run, or its cluster does not report it.</Empty>
      )}
      {use && (
        <Pairs
          of={[
            ["CPU", amountText(use.cpu, plain)],
            ["Memory", amountText(use.memory, bytes)],
            ["GPU", amountText(use.gpu, plain)],
            ["GPU memory", use.gpuMemory ? bytes(use.gpuMemory) : ""],
            ["GPUs idle for", use.gpusIdleSince && <Lasting from={use.gpusIdleSince} />],
            ["Peak of a member", use.peakMemory ? bytes(use.peakMemory) : ""],
            ["CPU on average", amountText(use.cpuAverage, plain)],
            ["GPU on average", amountText(use.gpuAverage, plain)],
            ["Sampled", use.sampledAt && <Ago at={use.sampledAt} />],
          ]}
        />
      )}
      {METRICS.map(([metric, title, format]) => {
        const mine = series.filter((one) => one.metric === metric);
        return mine.length ? <SeriesChart key={metric} title={title} of={mine} format={format} /> : null;
      })}
      {members.length > 0 && (
        <Section title="Members">
          <Scrolls label="Use of the members">
            <table class="plain">
              <thead>
                <tr>
                  {["Member", "Node", "CPU", "Memory", "Peak", "GPU", "GPU memory"].map((one) => (
                    <th scope="col" key={one}>
                      {one}
                    </th>
                  ))}
                </tr>
              </thead>
              <tbody>
                {members.map((one) => (
                  <tr key={`${one.role}-${one.index}`}>
                    <td>
                      {one.role}-{one.index}
                    </td>
                    <td>{one.node ?? "-"}</td>
                    <td>{one.cpu === undefined ? "-" : plain(one.cpu)}</td>
                    <td>{bytes(one.memory)}</td>
                    <td>{bytes(one.peakMemory)}</td>
                    <td>{one.gpu === undefined ? "-" : `${Math.round(one.gpu)}%`}</td>
                    <td>{bytes(one.gpuMemory)}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </Scrolls>
        </Section>
      )}
    </>
  );
}

function SeriesChart({
  title,
  of,
  format,
}: {
  title: string;
  of: Series[];
  format: (value: number) => string;
}) {
  const [times, lines] = useMemo(() => aligned(of), [of]);
  return <Chart title={title} times={times} lines={lines} unit={of[0]?.unit ?? ""} format={format} />;
}

/** Returns the times and lines of series that begin at different times. */
export function aligned(of: Series[]): [number[], Line[]] {
  const step = Math.min(...of.map((one) => one.step));
  const begin = Math.min(...of.map((one) => Date.parse(one.start) / 1000));
  const end = Math.max(...of.map((one) => Date.parse(one.start) / 1000 + one.step * (one.values.length - 1)));
  const times = Array.from(
    { length: Math.max(0, Math.round((end - begin) / step)) + 1 },
    (_, index) => begin + index * step,
  );
  const lines = of.map((one) => {
    const first = Date.parse(one.start) / 1000;
    return {
      name: one.member,
      values: times.map((at) => one.values[Math.round((at - first) / one.step)] ?? null),
    };
  });
  return [times, lines];
}
