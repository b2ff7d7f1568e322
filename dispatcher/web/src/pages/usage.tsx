/** Usage and cost by queue, user, class, cluster or label, stacked over time. */
import { useMemo } from "preact/hooks";
import { useResource } from "../api/resource.ts";
import { Empty, Loading, Problem, Title } from "../components/basics.tsx";
import { Chart, type Line } from "../components/chart.tsx";
import { Efficiency } from "../components/efficiency.tsx";
import { type Field, Filters, useFilters } from "../components/filters.tsx";
import { type Column, Table } from "../components/table.tsx";
import { Tabs } from "../components/tabs.tsx";
import { money } from "../format.ts";

interface Row {
  since: string;
  of: Record<string, string>;
  runs: number;
  cpu: number;
  memory: number;
  devices: Record<string, number>;
  members: number;
  cost: number | string;
  charge?: number | string | null;
}

interface Answer {
  currency: string;
  begin: string;
  end: string;
  rows: Row[];
  total: Row;
}

const BY = ["queue", "user", "cluster", "priorityClass"];
const SHOWN = ["cost", "charge", "cpu", "memory", "runs"];
const FIELDS: Field[] = [
  { name: "by", label: "By", hint: "queue, label:team", isMany: true },
  { name: "per", label: "Split", choices: ["hour", "day", "month", "all"], usual: "day" },
  { name: "queue", label: "Queue" },
  { name: "show", label: "Shown", choices: SHOWN, usual: "cost" },
  { name: "begin", label: "From", type: "datetime-local" },
  { name: "end", label: "Until", type: "datetime-local" },
];
const MOST_LINES = 8;
const UNITS: Record<string, string> = { cpu: "core-hours", memory: "GiB-hours", runs: "runs" };

export default function UsagePage() {
  const [values, change] = useFilters(FIELDS);
  const by = values.by?.length ? values.by : ["queue"];
  const per = values.per?.[0] ?? "day";
  const show = values.show?.[0] ?? "cost";
  const time = (name: string) =>
    values[name]?.[0] ? new Date(values[name]?.[0] ?? "").toISOString() : undefined;
  const query = { by, per, queue: values.queue, begin: time("begin"), end: time("end") };
  const found = useResource<Answer>("/v1/usage", query);
  const data = found.data;
  const [times, lines] = useMemo(() => linesOf(data?.rows ?? [], by, show), [data, show]);
  const format = (value: number) =>
    show === "cost" || show === "charge" ? value.toFixed(2) : String(Number(value.toFixed(2)));
  const name = (row: Row) => by.map((one) => row.of[one] || "-").join(" / ");
  const currency = data?.currency ?? "";
  const sums = useMemo(() => sumsOf(data?.rows ?? [], by), [data]);
  const columns: Column<Row>[] = [
    {
      name: "of",
      heading: by.join(" / "),
      isMain: true,
      width: "minmax(20ch, 3fr)",
      cell: name,
      sortBy: name,
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
      name: "cpu",
      heading: "Core-hours",
      isNumber: true,
      cell: (row) => row.cpu.toFixed(2),
      sortBy: (row) => row.cpu,
    },
    {
      name: "memory",
      heading: "GiB-hours",
      isNumber: true,
      isMinor: true,
      cell: (row) => row.memory.toFixed(2),
      sortBy: (row) => row.memory,
    },
    {
      name: "devices",
      heading: "Device-hours",
      isMinor: true,
      width: "minmax(14ch, 2fr)",
      cell: (row) =>
        Object.entries(row.devices)
          .map(([device, hours]) => `${device} ${hours.toFixed(1)}`)
          .join(", ") || "-",
    },
    {
      name: "cost",
      heading: "Cost",
      isNumber: true,
      cell: (row) => money(row.cost, currency),
      sortBy: (row) => Number(row.cost),
    },
    {
      name: "charge",
      heading: "Charge",
      isNumber: true,
      isMinor: true,
      cell: (row) => money(row.charge ?? row.cost, currency),
      sortBy: (row) => Number(row.charge ?? row.cost),
    },
  ];
  const cost = (
    <>
      <div class="toolbar">
        {BY.map((one) => (
          <button
            type="button"
            key={one}
            aria-pressed={by.length === 1 && by[0] === one}
            onClick={() => change({ by: [one] })}
          >
            By {one === "priorityClass" ? "class" : one}
          </button>
        ))}
      </div>
      <Problem error={found.error} retry={found.reload} />
      {found.isLoading && <Loading />}
      {data && (
        <>
          <p>
            In all <strong>{money(data.total.cost, currency)}</strong>, {data.total.cpu.toFixed(2)}{" "}
            core-hours, {data.total.runs} runs.
          </p>
          <Chart
            title={`${show} by ${by.join(" and ")}`}
            times={times}
            lines={lines}
            unit={UNITS[show] ?? currency}
            format={format}
            isStacked
            isBars
          />
          <Table
            label="Usage"
            columns={columns}
            rows={sums}
            keyOf={name}
            height={sums.length > 14 ? "50vh" : undefined}
            empty={<Empty>Nothing ran in this time.</Empty>}
          />
        </>
      )}
    </>
  );
  return (
    <>
      <Title text="Usage and cost">
        <button type="button" disabled={!data} onClick={() => data && save(data, by)}>
          Export CSV
        </button>
      </Title>
      <Filters fields={FIELDS} values={values} change={change} label="Filters of usage" />
      <Tabs
        label="Reports"
        of={[
          { name: "cost", title: "Usage and cost", body: () => cost },
          {
            name: "efficiency",
            title: "Requested against used",
            body: () => <Efficiency queue={values.queue?.[0]} begin={time("begin")} end={time("end")} />,
          },
        ]}
      />
    </>
  );
}

function value(row: Row, show: string): number {
  return Number((row as unknown as Record<string, unknown>)[show] ?? 0);
}

const keyOf = (row: Row, by: string[]) => by.map((one) => row.of[one] || "-").join(" / ");

/** Returns the rows of each value of the dimensions, added up over time, the largest cost first. */
export function sumsOf(rows: Row[], by: string[]): Row[] {
  const sums = new Map<string, Row>();
  for (const row of rows) {
    const key = keyOf(row, by);
    const sum = sums.get(key);
    if (!sum) {
      sums.set(key, { ...row, devices: { ...row.devices } });
      continue;
    }
    sum.runs += row.runs;
    sum.cpu += row.cpu;
    sum.memory += row.memory;
    sum.members += row.members;
    sum.cost = Number(sum.cost) + Number(row.cost);
    sum.charge = Number(sum.charge ?? 0) + Number(row.charge ?? row.cost);
    for (const [name, hours] of Object.entries(row.devices))
      sum.devices[name] = (sum.devices[name] ?? 0) + hours;
  }
  return [...sums.values()].sort(
    (one, other) => Number(other.cost) - Number(one.cost) || other.cpu - one.cpu,
  );
}

/** Returns a line for each of the largest values of the dimensions, and one for the rest. */
export function linesOf(rows: Row[], by: string[], show: string): [number[], Line[]] {
  const times = [...new Set(rows.map((row) => Date.parse(row.since) / 1000))].sort((a, b) => a - b);
  const totals = new Map<string, number>();
  for (const row of rows) totals.set(keyOf(row, by), (totals.get(keyOf(row, by)) ?? 0) + value(row, show));
  const largest = [...totals].sort((one, other) => other[1] - one[1]).map(([name]) => name);
  const names = largest.slice(0, MOST_LINES);
  if (largest.length > MOST_LINES) names.push("others");
  const lines = names.map((name) => ({ name, values: times.map(() => 0) }));
  for (const row of rows) {
    const key = keyOf(row, by);
    const line = lines.find((one) => one.name === key) ?? lines.at(-1);
    const at = times.indexOf(Date.parse(row.since) / 1000);
    if (line) line.values[at] = (line.values[at] ?? 0) + value(row, show);
  }
  return [times, lines];
}

/** Lets the browser save the rows as CSV, in which no cell begins as a formula does. */
function save(data: Answer, by: string[]): void {
  const cell = (text: unknown) => {
    const plain = String(text ?? "");
    const safe = /^[=+\-@\t\r]/.test(plain) && Number.isNaN(Number(plain)) ? `'${plain}` : plain;
    return /[",\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };
  const head = ["since", ...by, "runs", "cpu", "memory", "members", "cost", "charge", "currency"];
  const rows = data.rows.map((row) => [
    row.since,
    ...by.map((one) => row.of[one]),
    row.runs,
    row.cpu,
    row.memory,
    row.members,
    row.cost,
    row.charge,
    data.currency,
  ]);
  const text = [head, ...rows].map((row) => row.map(cell).join(",")).join("\n");
  const address = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  const link = document.createElement("a");
  link.href = address;
  link.download = "usage.csv";
  link.click();
  URL.revokeObjectURL(address);
}
