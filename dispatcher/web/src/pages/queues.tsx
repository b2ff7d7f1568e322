/** The tree of queues: guarantees, what is borrowed, shares and waits; quotas are edited with a look at last week's jobs. */
import { useMemo, useState } from "preact/hooks";
import { Link, useSearchParams } from "wouter-preact";
import { parse, stringify } from "yaml";
import { ApiError, call } from "../api/client.ts";
import { useResource } from "../api/resource.ts";
import type { QueueList, QueueView } from "../api/types.ts";
import { Bar, Empty, Loading, Pairs, Problem, Section, State, Title } from "../components/basics.tsx";
import { Dialog, say } from "../components/dialog.tsx";
import { Editor } from "../components/editor.tsx";
import { OverTime } from "../components/over_time.tsx";
import { type Column, Table } from "../components/table.tsx";
import { amount, count, quantity } from "../format.ts";
import { may } from "../session.ts";

/** Fields that are shown beside what is declared. */
const BESIDE = ["isLeaf", "jobs", "warnings", "usage"];

interface Row {
  queue: QueueView;
  depth: number;
  jobs: Record<string, number>;
}

export default function QueuesPage() {
  const found = useResource<QueueList>("/v1/queues", { usage: true }, ["queues", "jobs"]);
  const [search, setSearch] = useSearchParams();
  const [isNew, setNew] = useState(false);
  const chosen = search.get("queue");
  const rows = useMemo(() => rowsOf(found.data?.queues ?? []), [found.data]);
  const queue = found.data?.queues.find((one) => one.path === chosen);
  const choose = (path: string) => setSearch({ queue: path });
  return (
    <>
      <Title text="Queues">
        {may("queues.write") && (
          <button type="button" class="primary" onClick={() => setNew(true)}>
            New queue …
          </button>
        )}
      </Title>
      <Problem error={found.error} retry={found.reload} />
      {found.data?.live === false && (
        <p class="hint">The leading scheduler did not answer: shares are not known.</p>
      )}
      {found.isLoading ? (
        <Loading />
      ) : (
        <Table
          label="Queues"
          columns={columns(choose)}
          rows={rows}
          keyOf={(one) => one.queue.path}
          height={rows.length > 15 ? "55vh" : undefined}
          empty={<Empty>There is no queue that you may use.</Empty>}
        />
      )}
      {queue && <Details queue={queue} reload={found.reload} />}
      {isNew && (
        <Edit
          title="New queue"
          spec={{ kind: "Queue", path: chosen ? `${chosen}/` : "", resources: {} }}
          close={(isDone) => {
            setNew(false);
            if (isDone) found.reload();
          }}
        />
      )}
    </>
  );
}

/** Returns the queues as a tree in rows, each with the jobs of all below it. */
export function rowsOf(queues: QueueView[]): Row[] {
  const sorted = [...queues].sort((one, other) => one.path.localeCompare(other.path));
  return sorted.map((queue) => {
    const jobs: Record<string, number> = {};
    for (const one of sorted) {
      if (one.path !== queue.path && !one.path.startsWith(`${queue.path}/`)) continue;
      for (const [state, many] of Object.entries(one.jobs ?? {})) jobs[state] = (jobs[state] ?? 0) + many;
    }
    return { queue, depth: queue.path.split("/").length - 1, jobs };
  });
}

function columns(choose: (path: string) => void): Column<Row>[] {
  return [
    {
      name: "path",
      heading: "Queue",
      isMain: true,
      width: "minmax(20ch, 2fr)",
      cell: ({ queue, depth }) => (
        <button
          type="button"
          class="link"
          style={{ paddingLeft: `${depth * 1.2}rem` }}
          onClick={() => choose(queue.path)}
        >
          {queue.path.split("/").at(-1)}
        </button>
      ),
    },
    {
      name: "state",
      heading: "State",
      width: "12ch",
      isMinor: true,
      cell: ({ queue }) => <State of={queue.state ?? "open"} />,
    },
    ...["running", "queued", "held"].map((state) => ({
      name: state,
      heading: `${state[0]?.toUpperCase()}${state.slice(1)}`,
      width: "9ch",
      isNumber: true,
      cell: ({ jobs }: Row) => count((jobs[state] ?? 0) + (state === "running" ? (jobs.dispatched ?? 0) : 0)),
    })),
    {
      name: "share",
      heading: "Share",
      width: "9ch",
      isNumber: true,
      isMinor: true,
      cell: ({ queue }) => (queue.usage ? queue.usage.share.toFixed(2) : "-"),
    },
    {
      name: "use",
      heading: "In use against guarantee",
      width: "minmax(26ch, 3fr)",
      isMinor: true,
      cell: ({ queue }) => <Use of={queue} />,
    },
  ];
}

function Use({ of }: { of: QueueView }) {
  const flavors = flavorsOf(of).slice(0, 2);
  return (
    <span class="uses">
      {flavors.map((one) => (
        <span key={one.name} class="use">
          <Bar
            label={`${one.name}: ${one.text}`}
            whole={Math.max(one.guaranteed, one.limit)}
            parts={[
              { name: "guaranteed", value: Math.min(one.used, one.guaranteed || one.used) },
              { name: "borrowed", value: one.guaranteed ? Math.max(0, one.used - one.guaranteed) : 0 },
            ]}
          />
          <span class="muted">
            {one.name} {one.text}
          </span>
        </span>
      ))}
    </span>
  );
}

interface Flavor {
  name: string;
  used: number;
  guaranteed: number;
  limit: number;
  text: string;
}

export function flavorsOf(queue: QueueView): Flavor[] {
  const used = queue.usage?.used ?? {};
  const quotas = queue.resources ?? {};
  return [...new Set([...Object.keys(quotas), ...Object.keys(used)])].sort().map((name) => {
    const [has, guaranteed, limit] = [used[name], quotas[name]?.guaranteed, quotas[name]?.limit].map(
      quantity,
    ) as [number, number, number];
    const resource = name.split("@")[0] ?? name;
    const parts = [amount(resource, has)];
    if (guaranteed) parts.push(`of ${amount(resource, guaranteed)} guaranteed`);
    if (limit) parts.push(`limit ${amount(resource, limit)}`);
    return { name, used: has, guaranteed, limit, text: parts.join(", ") };
  });
}

function Details({ queue, reload }: { queue: QueueView; reload: () => void }) {
  const [isEditing, setEditing] = useState(false);
  const declared = Object.fromEntries(Object.entries(queue).filter(([name]) => !BESIDE.includes(name)));
  return (
    <Section title={queue.path}>
      <div class="toolbar">
        <Link class="button" href={`/jobs?queue=${encodeURIComponent(queue.path)}`}>
          Jobs
        </Link>
        {may("usage.read") && (
          <Link class="button" href={`/usage?queue=${encodeURIComponent(queue.path)}`}>
            Usage
          </Link>
        )}
        {may("queues.write") && (
          <button type="button" onClick={() => setEditing(true)}>
            Edit …
          </button>
        )}
      </div>
      {queue.warnings?.map((one) => (
        <p class="hint" key={one}>
          {one}
        </p>
      ))}
      <Pairs
        of={[
          ["Weight", queue.weight],
          ["Order", queue.orderBy ? `${queue.order}, by ${queue.orderBy}` : queue.order],
          ["Preemption", queue.preemption],
          ["Actions on jobs", queue.jobActions],
          ["Beyond guarantee", queue.usage?.shareBeyondGuarantee.toFixed(3)],
          ["Description", queue.description],
          ...flavorsOf(queue).map((one): [string, string] => [one.name, one.text]),
        ]}
      />
      <div class="split">
        <OverTime
          title="CPU in use"
          metric="queue.cpu.used"
          by={["queue"]}
          seconds={86_400}
          filter={{ queue: queue.path, depth: 1 }}
        />
        <OverTime
          title="Jobs that wait"
          metric="queue.jobs.queued"
          by={["queue"]}
          seconds={86_400}
          filter={{ queue: queue.path, depth: 1 }}
        />
        <OverTime
          title="Median wait of jobs that started"
          metric="queue.wait.p50"
          by={["queue"]}
          seconds={86_400}
          filter={{ queue: queue.path, depth: 1 }}
        />
      </div>
      {isEditing && (
        <Edit
          title={`Edit ${queue.path}`}
          spec={declared}
          close={(isDone) => {
            setEditing(false);
            if (isDone) reload();
          }}
        />
      )}
    </Section>
  );
}

function Edit({
  title,
  spec,
  close,
}: {
  title: string;
  spec: Record<string, unknown>;
  close: (isDone: boolean) => void;
}) {
  const [text, setText] = useState(() => stringify(spec));
  const [error, setError] = useState<ApiError>();
  const [preview, setPreview] = useState<{
    objects?: { outcome: string; fields?: { field: string; before?: unknown; after?: unknown }[] }[];
    warnings?: { message: string }[];
  }>();
  const [simulation, setSimulation] = useState<number>();
  const attempt = async (work: () => Promise<void>) => {
    setError(undefined);
    try {
      await work();
    } catch (problem) {
      setError(problem instanceof ApiError ? problem : new ApiError(0, "malformed-yaml", String(problem)));
    }
  };
  const documents = () => [{ ...parse(text), kind: "Queue" }];
  const applied = (isDry: boolean) =>
    call<typeof preview>("POST", "/v1/apply", {
      body: { documents: documents(), dryRun: isDry, force: true },
    });
  return (
    <Dialog title={title} close={() => close(false)}>
      <Editor
        label="Declaration of the queue"
        value={text}
        change={setText}
        model="QueueSpec"
        mistakes={error?.mistakes ?? []}
      />
      <Problem error={error} />
      {preview && (
        <div class="hint" role="status">
          {preview.objects?.map((one) => (
            <div key={one.outcome}>
              It would be {one.outcome}
              {one.fields?.map((field) => (
                <div key={field.field}>
                  <code>{field.field}</code>: {JSON.stringify(field.before) ?? "-"} →{" "}
                  {JSON.stringify(field.after) ?? "-"}
                </div>
              ))}
            </div>
          ))}
          {preview.warnings?.map((one) => (
            <div key={one.message}>{one.message}</div>
          ))}
        </div>
      )}
      {simulation !== undefined && (
        <p class="hint">
          Last week's jobs are replayed with the present and with the edited quotas:{" "}
          <Link href={`/simulations?id=${simulation}`}>simulation {simulation}</Link>
        </p>
      )}
      <div class="actions">
        <button type="button" onClick={() => close(false)}>
          Back
        </button>
        {may("simulations.run") && (
          <button
            type="button"
            onClick={() =>
              attempt(async () => {
                const spec = documents()[0] as { path: string };
                const path = spec.path.split("/").map(encodeURIComponent).join("/");
                const made = await call<{ id: number }>("POST", `/v1/queues/${path}/what-if`, {
                  body: { queues: [spec] },
                });
                setSimulation(made.id);
              })
            }
          >
            What if, last week
          </button>
        )}
        <button type="button" onClick={() => attempt(async () => setPreview(await applied(true)))}>
          Preview
        </button>
        <button
          type="button"
          class="primary"
          onClick={() =>
            attempt(async () => {
              await applied(false);
              say("The queue is saved");
              close(true);
            })
          }
        >
          Save
        </button>
      </div>
    </Dialog>
  );
}
