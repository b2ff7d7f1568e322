/** The fleet: clusters with their contact and capacity, what runs and what waits. */

import { useSearchParams } from "wouter-preact";
import { useResource } from "../api/resource.ts";
import type { ClusterList, ClusterView, QueueList } from "../api/types.ts";
import { Ago, Empty, Loading, Problem, Section, State, Title } from "../components/basics.tsx";
import { IdleGpus } from "../components/idle_gpus.tsx";
import { OverTime, SPANS } from "../components/over_time.tsx";
import { type Column, Table } from "../components/table.tsx";
import { amount, count, quantity, wholeAmount } from "../format.ts";
import { may } from "../session.ts";

const COLUMNS: Column<ClusterView>[] = [
  { name: "name", heading: "Cluster", cell: (one) => one.name, sortBy: (one) => one.name },
  {
    name: "state",
    heading: "State",
    width: "16ch",
    cell: (one) => <State of={one.state} />,
    sortBy: (one) => one.state,
  },
  {
    name: "kind",
    heading: "Kind",
    width: "10ch",
    isMinor: true,
    cell: (one) => one.clusterKind,
    sortBy: (one) => one.clusterKind ?? "",
  },
  {
    name: "nodes",
    heading: "Nodes",
    width: "9ch",
    isNumber: true,
    cell: (one) => count(one.nodes ?? 0),
    sortBy: (one) => one.nodes ?? 0,
  },
  {
    name: "runs",
    heading: "Live runs",
    width: "10ch",
    isNumber: true,
    cell: (one) => count(one.liveRuns ?? 0),
    sortBy: (one) => one.liveRuns ?? 0,
  },
  {
    name: "capacity",
    heading: "Capacity",
    width: "minmax(22ch, 3fr)",
    isMinor: true,
    cell: (one) => <Capacity of={one} />,
  },
  { name: "trouble", heading: "Trouble", width: "minmax(12ch, 1.5fr)", isMinor: true, cell: trouble },
  {
    name: "contact",
    heading: "Contact",
    width: "12ch",
    isMinor: true,
    cell: (one) => <Ago at={one.lastContact} />,
  },
];

/** Returns what is wrong with nodes of a cluster, in words. */
function trouble(of: ClusterView): string {
  const health = (of as { health?: Record<string, unknown> }).health ?? {};
  const words: [string, string][] = [
    ["notReady", "not ready"],
    ["flapping", "flapping"],
    ["deviceErrors", "with device errors"],
  ];
  return words
    .filter(([name]) => Number(health[name] ?? 0) > 0)
    .map(([name, text]) => `${health[name]} ${text}`)
    .join(", ");
}

function Capacity({ of }: { of: ClusterView }) {
  const found = Object.entries(of.capacity ?? {});
  return <>{found.map(([name, text]) => `${name} ${text}`).join(", ") || "-"}</>;
}

export default function FleetPage() {
  const clusters = useResource<ClusterList>("/v1/clusters", {}, ["clusters", "jobs"]);
  const queues = useResource<QueueList>(may("queues.read") ? "/v1/queues" : null, {}, ["queues", "jobs"]);
  const found = clusters.data?.clusters ?? [];
  return (
    <>
      <Title text="Fleet" />
      <Problem error={clusters.error} retry={clusters.reload} />
      {clusters.isLoading ? <Loading /> : <Sums clusters={found} queues={queues.data} />}
      {may("jobs.list") && <IdleGpus />}
      <History />
      <Section title="Clusters">
        <Table
          label="Clusters"
          columns={COLUMNS}
          rows={found}
          keyOf={(one) => one.name}
          empty={<Empty>There is no cluster that your jobs may go to.</Empty>}
        />
        {found
          .filter((one) => one.closed)
          .map((one) => (
            <p class="problem" key={one.name}>
              <strong>{one.name}</strong> takes no new jobs: {one.closed}
            </p>
          ))}
      </Section>
      <Section title="Nodes">
        <Groups clusters={found} />
      </Section>
    </>
  );
}

const METRICS: [string, string, string][] = [
  ["cpu", "CPU", "cluster"],
  ["memory", "Memory", "cluster"],
  ["gpu", "Devices", "product"],
];

/** What the clusters have and what runs use of it, over time, and what waits. */
function History() {
  const [search, setSearch] = useSearchParams();
  const name = search.get("resource") ?? "cpu";
  const span = search.get("span") ?? SPANS[1]?.[0];
  const [metric, title, by] = METRICS.find((one) => one[0] === name) ?? ["cpu", "CPU", "cluster"];
  const seconds = SPANS.find((one) => one[0] === span)?.[1] ?? 6 * 3600;
  const choose = (field: string, value: string) =>
    setSearch(
      (before) => {
        const next = new URLSearchParams(before);
        next.set(field, value);
        return next;
      },
      { replace: true },
    );
  return (
    <Section title="Over time">
      <div class="filters">
        <label class="field">
          <span>Resource</span>
          <select value={metric} onChange={(event) => choose("resource", event.currentTarget.value)}>
            {METRICS.map(([one, text]) => (
              <option key={one} value={one}>
                {text}
              </option>
            ))}
          </select>
        </label>
        <label class="field">
          <span>Time</span>
          <select value={span ?? ""} onChange={(event) => choose("span", event.currentTarget.value)}>
            {SPANS.map(([one]) => (
              <option key={one}>{one}</option>
            ))}
          </select>
        </label>
      </div>
      <div class="split">
        <OverTime
          title={`${title} in use by ${by}`}
          metric={`cluster.${metric}.used`}
          by={[by]}
          seconds={seconds}
          isStacked
        />
        <OverTime
          title={`${title} capacity by ${by}`}
          metric={`cluster.${metric}.capacity`}
          by={[by]}
          seconds={seconds}
          isStacked
        />
        <OverTime
          title="Jobs that wait, by queue"
          metric="queue.jobs.queued"
          by={["queue"]}
          seconds={seconds}
          isStacked
        />
        <OverTime
          title="Longest wait, by queue"
          metric="queue.wait.oldest"
          by={["queue"]}
          seconds={seconds}
        />
      </div>
    </Section>
  );
}

function Sums({ clusters, queues }: { clusters: ClusterView[]; queues: QueueList | undefined }) {
  const sums = new Map<string, number>();
  for (const cluster of clusters) {
    for (const [name, text] of Object.entries(cluster.capacity ?? {}))
      sums.set(name, (sums.get(name) ?? 0) + quantity(text));
  }
  const states = new Map<string, number>();
  for (const queue of queues?.queues ?? []) {
    for (const [state, many] of Object.entries(queue.jobs ?? {}))
      states.set(state, (states.get(state) ?? 0) + many);
  }
  const ready = clusters.filter((one) => one.state === "ready").length;
  return (
    <div class="cards">
      <Card name="Clusters ready" value={`${ready} of ${clusters.length}`} />
      {["running", "dispatched", "queued", "held"].map((state) => (
        <Card key={state} name={`Jobs ${state}`} value={count(states.get(state) ?? 0)} />
      ))}
      {[...sums].map(([name, value]) => (
        <Card key={name} name={`Capacity ${name}`} value={amount(name, value)} />
      ))}
    </div>
  );
}

function Card({ name, value }: { name: string; value: string }) {
  return (
    <div class="card">
      <span class="muted">{name}</span>
      <strong>{value}</strong>
    </div>
  );
}

interface Group {
  cluster: string;
  name: string;
  count: number;
  free: Record<string, string | number>;
  labels: Record<string, string>;
}

function Groups({ clusters }: { clusters: ClusterView[] }) {
  const rows: Group[] = clusters.flatMap((cluster) =>
    (cluster.groups ?? []).map((group, index) => ({
      cluster: cluster.name,
      name: `${cluster.name} ${index}`,
      count: group.count,
      free: (group.free ?? {}) as Record<string, string | number>,
      labels: (group.labels ?? {}) as Record<string, string>,
    })),
  );
  const columns: Column<Group>[] = [
    { name: "cluster", heading: "Cluster", cell: (one) => one.cluster, sortBy: (one) => one.cluster },
    {
      name: "count",
      heading: "Nodes",
      width: "9ch",
      isNumber: true,
      cell: (one) => count(one.count),
      sortBy: (one) => one.count,
    },
    {
      name: "free",
      heading: "Of each node",
      width: "minmax(24ch, 3fr)",
      cell: (one) =>
        Object.entries(one.free)
          .map(([name, value]) => `${name} ${wholeAmount(name, Number(value))}`)
          .join(", "),
    },
    {
      name: "labels",
      heading: "Labels",
      width: "minmax(20ch, 3fr)",
      isMinor: true,
      cell: (one) =>
        Object.entries(one.labels)
          .map(([name, value]) => `${name}=${value}`)
          .join(", ") || "-",
    },
  ];
  return (
    <Table
      label="Groups of equivalent nodes"
      columns={columns}
      rows={rows}
      keyOf={(one) => one.name}
      height={rows.length > 12 ? "50vh" : undefined}
      empty={<Empty>No agent has reported nodes.</Empty>}
    />
  );
}
