/** Jobs: found by filters that the address keeps, and changed one by one, as a selection, or all that match. */
import { useState } from "preact/hooks";
import { Link } from "wouter-preact";
import { ApiError, call } from "../api/client.ts";
import { useLongList } from "../api/pages.ts";
import type { BulkAnswer, JobView } from "../api/types.ts";
import { Ago, Empty, JobLink, Lasting, Problem, State, Title } from "../components/basics.tsx";
import { Dialog, say } from "../components/dialog.tsx";
import { type Field, Filters, useFilters, type Values } from "../components/filters.tsx";
import { type Column, Table } from "../components/table.tsx";
import { count } from "../format.ts";
import { may } from "../session.ts";

const STATES = [
  "held",
  "queued",
  "dispatched",
  "running",
  "cancelling",
  "suspending",
  "succeeded",
  "failed",
  "cancelled",
];

export const FIELDS: Field[] = [
  { name: "search", label: "Search", hint: "id, name…, user, key=value" },
  { name: "name", isRare: true, label: "Name", hint: "train*" },
  { name: "state", label: "State", choices: STATES, isMany: true },
  { name: "queue", label: "Queue", hint: "research/vision" },
  { name: "submittedBy", label: "User" },
  { name: "cluster", isRare: true, label: "Cluster" },
  { name: "label", label: "Labels", hint: "team=vision", isMany: true },
  { name: "group", isRare: true, label: "Group" },
  { name: "priorityClass", isRare: true, label: "Class" },
  { name: "since", isRare: true, label: "Since", type: "datetime-local" },
  { name: "until", isRare: true, label: "Until", type: "datetime-local" },
];

const COLUMNS: Column<JobView>[] = [
  {
    name: "id",
    heading: "Job",
    isMain: true,
    width: "minmax(18ch, 2fr)",
    cell: (job) => <JobLink id={job.id} />,
    sortBy: (job) => job.name,
  },
  {
    name: "state",
    heading: "State",
    width: "13ch",
    cell: (job) => <State of={job.shownState} />,
    sortBy: (job) => job.shownState,
  },
  { name: "queue", heading: "Queue", cell: (job) => job.queue, sortBy: (job) => job.queue, isMinor: true },
  {
    name: "user",
    heading: "User",
    cell: (job) => job.submittedBy ?? "-",
    sortBy: (job) => job.submittedBy ?? "",
    isMinor: true,
  },
  {
    name: "cluster",
    heading: "Cluster",
    cell: (job) => job.cluster ?? "-",
    sortBy: (job) => job.cluster ?? "",
    isMinor: true,
  },
  {
    name: "submitted",
    heading: "Submitted",
    width: "12ch",
    isNumber: true,
    cell: (job) => <Ago at={job.submittedAt} />,
    sortBy: (job) => Date.parse(job.submittedAt),
  },
  {
    name: "time",
    heading: "Ran",
    width: "10ch",
    isNumber: true,
    isMinor: true,
    cell: (job) => <Ran job={job} />,
  },
  {
    name: "message",
    heading: "Message",
    width: "minmax(10ch, 2fr)",
    isMinor: true,
    cell: (job) => <span title={job.message ?? ""}>{job.message ?? ""}</span>,
  },
];

function Ran({ job }: { job: JobView }) {
  return job.startedAt ? <Lasting from={job.startedAt} to={job.endedAt} /> : <>-</>;
}

/** Returns the query of the list for filters as the page has them: times are of the viewer's zone there. */
export function queryOf(values: Values): Values {
  const times = ["since", "until"].map((name) => [
    name,
    (values[name] ?? []).map((one) => new Date(one).toISOString()),
  ]);
  return { ...values, ...Object.fromEntries(times) };
}

/** Returns the filter of an action on all jobs that match. */
export function bulkFilter(values: Values): Record<string, unknown> {
  const query = queryOf(values);
  const labels = Object.fromEntries(
    (query.label ?? []).map((one) => [one.split("=")[0], one.slice(one.indexOf("=") + 1)]),
  );
  const single = ["name", "queue", "submittedBy", "cluster", "group", "priorityClass", "since", "until"];
  const found: Record<string, unknown> = {};
  for (const name of single) if (query[name]?.[0]) found[name] = query[name]?.[0];
  if (query.state?.length) found.states = query.state;
  if (query.label?.length) found.labels = labels;
  return found;
}

type Action = "cancel" | "suspend" | "resume" | "retry" | "reprioritise";
const ACTIONS: [Action, string][] = [
  ["cancel", "Cancel"],
  ["suspend", "Suspend"],
  ["resume", "Resume"],
  ["retry", "Retry"],
  ["reprioritise", "Change priority"],
];

export default function JobsPage() {
  const [values, change] = useFilters(FIELDS);
  const list = useLongList<JobView>("/v1/jobs", "jobs", queryOf(values), ["jobs"]);
  const [chosen, choose] = useState<ReadonlySet<string>>(new Set());
  const [action, setAction] = useState<{ action: Action; isAll: boolean } | null>(null);
  const isFiltered = Object.entries(values).some(([name, one]) => name !== "search" && one.length);
  const isSearched = isFiltered || (values.search?.length ?? 0) > 0;
  const mayChange = may("jobs.change");
  return (
    <>
      <Title text="Jobs">
        {may("jobs.submit") && (
          <Link class="button primary" href="/submit">
            Submit
          </Link>
        )}
      </Title>
      <Filters fields={FIELDS} values={values} change={change} label="Filters of jobs" />
      <div class="toolbar">
        <span class="muted" role="status">
          {count(list.rows.length)}
          {list.hasMore ? "+" : ""} jobs{chosen.size > 0 && `, ${count(chosen.size)} selected`}
        </span>
        {mayChange &&
          ACTIONS.map(([name, title]) => (
            <button
              type="button"
              key={name}
              disabled={chosen.size === 0 && (!isFiltered || (values.search?.length ?? 0) > 0)}
              title={
                chosen.size ? `${title} the selected jobs` : "Select jobs, or narrow the list by a filter"
              }
              onClick={() => setAction({ action: name, isAll: chosen.size === 0 })}
            >
              {title}
              {chosen.size === 0 && isFiltered ? " all that match" : ""} …
            </button>
          ))}
      </div>
      <Problem error={list.error} retry={list.reload} />
      <Table
        label="Jobs"
        columns={COLUMNS}
        rows={list.rows}
        keyOf={(job) => job.id}
        height="calc(100dvh - 17rem)"
        selection={mayChange ? { chosen, choose } : undefined}
        reachEnd={list.more}
        empty={
          list.isLoading ? (
            <Empty>Loading …</Empty>
          ) : (
            <Empty>{isSearched ? "No job matches these filters." : "There are no jobs yet."}</Empty>
          )
        }
      />
      {action && (
        <ActionDialog
          {...action}
          ids={[...chosen]}
          filter={bulkFilter(values)}
          close={(isDone) => {
            setAction(null);
            if (isDone) choose(new Set());
          }}
        />
      )}
    </>
  );
}

function ActionDialog({
  action,
  isAll,
  ids,
  filter,
  close,
}: {
  action: Action;
  isAll: boolean;
  ids: string[];
  filter: Record<string, unknown>;
  close: (isDone: boolean) => void;
}) {
  const [counted, setCounted] = useState<BulkAnswer>();
  const [error, setError] = useState<ApiError>();
  const [isBusy, setBusy] = useState(false);
  const [priority, setPriority] = useState("0");
  const title = ACTIONS.find(([name]) => name === action)?.[1] ?? action;
  const patch = action === "reprioritise" ? { patch: { priority: Number(priority) } } : {};
  const bulk = (isDry: boolean) =>
    call<BulkAnswer>("POST", `/v1/jobs/${action}`, { body: { filter, dryRun: isDry, ...patch } });

  const countAll = async () => {
    try {
      setCounted(await bulk(true));
    } catch (problem) {
      if (problem instanceof ApiError) setError(problem);
    }
  };
  if (isAll && !counted && !error) countAll();

  const run = async () => {
    setBusy(true);
    setError(undefined);
    try {
      if (isAll) {
        const done = await bulk(false);
        say(`${title}: ${count(done.changed)} of ${count(done.matched)} jobs changed`);
      } else {
        await each(ids, action, patch);
      }
      close(true);
    } catch (problem) {
      if (problem instanceof ApiError) setError(problem);
      setBusy(false);
    }
  };
  const number = isAll ? counted?.matched : ids.length;
  return (
    <Dialog title={`${title} jobs`} close={() => close(false)}>
      {isAll ? (
        <p>
          {counted ? (
            <>
              <strong>{count(counted.matched)}</strong> jobs match the filters
              {counted.refused
                ? `; ${count(counted.refused)} of them are of others and stay as they are`
                : ""}
              .
            </>
          ) : (
            "Counting …"
          )}
        </p>
      ) : (
        <p>
          <strong>{count(ids.length)}</strong> selected {ids.length === 1 ? "job" : "jobs"}:{" "}
          {ids.slice(0, 3).join(", ")}
          {ids.length > 3 ? " …" : ""}
        </p>
      )}
      {action === "reprioritise" && (
        <label class="field">
          <span>Priority within the class, -1000 to 1000</span>
          <input
            type="number"
            min={-1000}
            max={1000}
            value={priority}
            onInput={(event) => setPriority(event.currentTarget.value)}
          />
        </label>
      )}
      <Problem error={error} />
      <div class="actions">
        <button type="button" onClick={() => close(false)}>
          Back
        </button>
        <button
          type="button"
          class={action === "cancel" ? "danger" : "primary"}
          disabled={isBusy || !number}
          onClick={run}
        >
          {title} {number ? count(number) : ""} {number === 1 ? "job" : "jobs"}
        </button>
      </div>
    </Dialog>
  );
}

const AT_ONCE = 6;

/** Acts on jobs one by one, a few at once, and says how many were changed. */
async function each(ids: string[], action: Action, patch: { patch?: { priority: number } }): Promise<void> {
  const left = [...ids];
  let done = 0;
  const problems: string[] = [];
  const work = async () => {
    for (let id = left.pop(); id !== undefined; id = left.pop()) {
      const path = `/v1/jobs/${encodeURIComponent(id)}`;
      try {
        if (action === "reprioritise") await call("PATCH", path, { body: patch.patch });
        else await call("POST", `${path}/${action}`, { body: action === "cancel" ? {} : undefined });
        done += 1;
      } catch (problem) {
        if (problem instanceof ApiError) problems.push(problem.message);
      }
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, work));
  say(
    `${count(done)} of ${count(ids.length)} jobs changed${problems.length ? `: ${problems[0]}` : ""}`,
    problems.length > 0,
  );
}
