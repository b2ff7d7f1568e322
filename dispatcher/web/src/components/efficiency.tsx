/** What runs used of what they requested, and what they should request. */
import { useState } from "preact/hooks";
import { useResource } from "../api/resource.ts";
import { money, percentText as percent } from "../format.ts";
import { Empty, Loading, Problem, Scrolls, Section } from "./basics.tsx";
import { type Column, Table } from "./table.tsx";

interface Row {
  of: string;
  runs: number;
  coreHoursRequested: number;
  coreHoursUsed: number;
  cpuPercent?: number | null;
  gpuHoursHeld: number;
  gpuHoursBusy: number;
  gpuPercent?: number | null;
  memoryP95Percent?: number | null;
  memoryPeakPercent?: number | null;
  oomKills: number;
}

interface Suggestion {
  job: string;
  queue: string;
  user?: string;
  runs: number;
  role: string;
  resource: string;
  requested: string;
  suggested: string;
  saved?: number | string | null;
  sentence: string;
}

interface Answer {
  currency: string;
  rows: Row[];
  suggestions: Suggestion[];
  tooFewRuns?: number;
}

const BY = ["queue", "user", "cluster", "job"];

const COLUMNS: Column<Row>[] = [
  {
    name: "of",
    heading: "Of",
    isMain: true,
    width: "minmax(18ch, 2fr)",
    cell: (row) => row.of,
    sortBy: (row) => row.of,
  },
  {
    name: "runs",
    heading: "Runs",
    isNumber: true,
    isMinor: true,
    cell: (row) => row.runs,
    sortBy: (row) => row.runs,
  },
  {
    name: "cores",
    heading: "Core-hours used",
    isNumber: true,
    width: "minmax(20ch, 2fr)",
    isMinor: true,
    cell: (row) => `${row.coreHoursUsed.toFixed(1)} of ${row.coreHoursRequested.toFixed(1)}`,
    sortBy: (row) => row.coreHoursRequested - row.coreHoursUsed,
  },
  {
    name: "cpu",
    heading: "CPU",
    isNumber: true,
    cell: (row) => percent(row.cpuPercent),
    sortBy: (row) => row.cpuPercent ?? -1,
  },
  {
    name: "memory",
    heading: "Memory, p95",
    isNumber: true,
    isMinor: true,
    cell: (row) => percent(row.memoryP95Percent),
    sortBy: (row) => row.memoryP95Percent ?? -1,
  },
  {
    name: "peak",
    heading: "Memory, peak",
    isNumber: true,
    isMinor: true,
    cell: (row) => percent(row.memoryPeakPercent),
    sortBy: (row) => row.memoryPeakPercent ?? -1,
  },
  {
    name: "gpus",
    heading: "GPU-hours busy",
    isNumber: true,
    isMinor: true,
    width: "minmax(18ch, 2fr)",
    cell: (row) =>
      row.gpuHoursHeld ? `${row.gpuHoursBusy.toFixed(1)} of ${row.gpuHoursHeld.toFixed(1)}` : "-",
    sortBy: (row) => row.gpuHoursHeld - row.gpuHoursBusy,
  },
  {
    name: "gpu",
    heading: "GPU",
    isNumber: true,
    cell: (row) => percent(row.gpuPercent),
    sortBy: (row) => row.gpuPercent ?? -1,
  },
  {
    name: "oom",
    heading: "OOM kills",
    isNumber: true,
    isMinor: true,
    cell: (row) => row.oomKills,
    sortBy: (row) => row.oomKills,
  },
];

export function Efficiency({ queue, begin, end }: { queue?: string; begin?: string; end?: string }) {
  const [by, setBy] = useState("queue");
  const found = useResource<Answer>("/v1/efficiency", { by, queue, begin, end, limit: 1000 });
  const data = found.data;
  return (
    <>
      <div class="toolbar">
        {BY.map((one) => (
          <button type="button" key={one} aria-pressed={by === one} onClick={() => setBy(one)}>
            By {one}
          </button>
        ))}
      </div>
      <Problem error={found.error} retry={found.reload} />
      {found.isLoading && <Loading />}
      {data && (
        <>
          <Table
            label="Used of what was requested"
            columns={COLUMNS}
            rows={data.rows}
            keyOf={(row) => row.of}
            height={data.rows.length > 14 ? "50vh" : undefined}
            empty={<Empty>Nothing is known of what runs of this time used.</Empty>}
          />
          <Section title="Suggestions for recurring jobs">
            {data.suggestions.length === 0 && (
              <Empty>
                There is none: {data.tooFewRuns ?? 0} recurring jobs have fewer than 3 runs of which the use
                is known.
              </Empty>
            )}
            {data.suggestions.length > 0 && (
              <Scrolls label="Suggestions for recurring jobs">
                <table class="plain">
                  <thead>
                    <tr>
                      {[
                        "Job",
                        "Queue",
                        "User",
                        "Resource",
                        "Requested",
                        "Suggested",
                        "Would have saved",
                        "Why",
                      ].map((one) => (
                        <th scope="col" key={one}>
                          {one}
                        </th>
                      ))}
                    </tr>
                  </thead>
                  <tbody>
                    {data.suggestions.map((one) => (
                      <tr key={`${one.job} ${one.queue} ${one.user} ${one.role} ${one.resource}`}>
                        <td>{one.job}</td>
                        <td>{one.queue}</td>
                        <td>{one.user ?? "-"}</td>
                        <td>{one.resource}</td>
                        <td class="number">{one.requested}</td>
                        <td class="number">{one.suggested}</td>
                        <td class="number">{money(one.saved, data.currency)}</td>
                        <td>{one.sentence}</td>
                      </tr>
                    ))}
                  </tbody>
                </table>
              </Scrolls>
            )}
          </Section>
        </>
      )}
    </>
  );
}
