/** Who changed what, and what was refused. */
import { useLongList } from "../api/pages.ts";
import { Empty, Problem, Time, Title } from "../components/basics.tsx";
import { type Field, Filters, useFilters } from "../components/filters.tsx";
import { type Column, Table } from "../components/table.tsx";

interface Entry {
  at: string;
  actor: string;
  action: string;
  target: string;
  requestId?: string;
  address?: string;
  details?: Record<string, unknown>;
}

const FIELDS: Field[] = [
  { name: "actor", label: "Actor" },
  { name: "action", label: "Action", hint: "put queue" },
  { name: "target", label: "Target" },
  { name: "since", label: "Since", type: "datetime-local" },
  { name: "until", label: "Until", type: "datetime-local" },
];

const COLUMNS: Column<Entry>[] = [
  { name: "at", heading: "Time", width: "19ch", cell: (one) => <Time at={one.at} /> },
  { name: "actor", heading: "Actor", cell: (one) => one.actor || "-" },
  { name: "action", heading: "Action", cell: (one) => one.action },
  { name: "target", heading: "Target", isMain: true, width: "minmax(16ch, 2fr)", cell: (one) => one.target },
  { name: "address", heading: "Address", isMinor: true, cell: (one) => one.address || "-" },
  {
    name: "details",
    heading: "Change",
    isMinor: true,
    width: "minmax(20ch, 4fr)",
    cell: (one) => <Change of={one.details} />,
  },
];

function Change({ of }: { of: Record<string, unknown> | undefined }) {
  const text = of && Object.keys(of).length ? JSON.stringify(of) : "";
  return <code title={text}>{text}</code>;
}

export default function AuditPage() {
  const [values, change] = useFilters(FIELDS);
  const time = (name: string) =>
    values[name]?.[0] ? new Date(values[name]?.[0] ?? "").toISOString() : undefined;
  const query = {
    actor: values.actor?.[0],
    action: values.action?.[0],
    target: values.target?.[0],
    since: time("since"),
    until: time("until"),
  };
  const list = useLongList<Entry>("/v1/audit", "audit", query, ["queues"]);
  return (
    <>
      <Title text="Audit" />
      <Filters fields={FIELDS} values={values} change={change} label="Filters of the audit" />
      <Problem error={list.error} retry={list.reload} />
      <Table
        label="Audit"
        columns={COLUMNS}
        rows={list.rows}
        keyOf={(one) => `${one.at} ${one.requestId} ${one.action} ${one.target}`}
        height="calc(100dvh - 14rem)"
        reachEnd={list.more}
        empty={<Empty>{list.isLoading ? "Loading …" : "There is nothing that matches."}</Empty>}
      />
    </>
  );
}
