/** Running jobs whose GPUs do nothing, by the policy of their queue. */
import { useEffect } from "preact/hooks";
import { Link } from "wouter-preact";
import { addressOf } from "../api/client.ts";
import { useResource } from "../api/resource.ts";
import type { TopAnswer, TopJob } from "../api/types.ts";
import { count, percentText } from "../format.ts";
import { JobLink, Lasting, Problem, Section } from "./basics.tsx";
import { type Column, Table } from "./table.tsx";

const READ_SECONDS = 60;
/** As often as the leading scheduler looks at the jobs. */
const MOST = 200;

const COLUMNS: Column<TopJob>[] = [
  {
    name: "job",
    heading: "Job",
    isMain: true,
    width: "minmax(18ch, 2fr)",
    cell: (one) => <JobLink id={one.job} />,
    sortBy: (one) => one.job,
  },
  {
    name: "queue",
    heading: "Queue",
    isMinor: true,
    cell: (one) => <JobsOf field="queue" value={one.queue} />,
    sortBy: (one) => one.queue,
  },
  {
    name: "user",
    heading: "User",
    isMinor: true,
    cell: (one) => (one.user ? <JobsOf field="submittedBy" value={one.user} /> : "-"),
    sortBy: (one) => one.user ?? "",
  },
  {
    name: "cluster",
    heading: "Cluster",
    isMinor: true,
    cell: (one) => <JobsOf field="cluster" value={one.cluster} />,
    sortBy: (one) => one.cluster,
  },
  {
    name: "gpus",
    heading: "GPUs",
    width: "8ch",
    isNumber: true,
    cell: (one) => count(one.use.gpu?.requested ?? 0),
    sortBy: (one) => one.use.gpu?.requested ?? 0,
  },
  {
    name: "work",
    heading: "At work",
    width: "9ch",
    isNumber: true,
    isMinor: true,
    cell: (one) => percentText(one.use.gpu?.percent),
    sortBy: (one) => one.use.gpu?.percent ?? -1,
  },
  {
    name: "idle",
    heading: "Idle for",
    width: "11ch",
    isNumber: true,
    cell: (one) => <Lasting from={one.use.gpusIdleSince} />,
    sortBy: (one) => -Date.parse(one.use.gpusIdleSince ?? ""),
  },
];

/** The running jobs of a queue, a user or a cluster, in the list of jobs. */
function JobsOf({ field, value }: { field: string; value: string }) {
  return <Link href={addressOf("/jobs", { state: "running", [field]: value })}>{value}</Link>;
}

/** Shows the jobs where there are any: most fleets have none, or no queue with a policy. */
export function IdleGpus() {
  const { data, error, reload } = useResource<TopAnswer>("/v1/top", {
    gpusIdle: true,
    sort: "idle",
    limit: MOST,
  });
  useEffect(() => {
    const timer = setInterval(() => {
      if (!document.hidden) reload();
    }, READ_SECONDS * 1000);
    return () => clearInterval(timer);
  }, [reload]);
  const jobs = data?.jobs ?? [];
  if (!error && jobs.length === 0) return null;
  const gpus = jobs.reduce((sum, one) => sum + (one.use.gpu?.requested ?? 0), 0);
  return (
    <Section title="GPUs that do nothing">
      <Problem error={error} retry={reload} />
      {jobs.length > 0 && (
        <>
          <p>
            <strong>{count(gpus)}</strong> GPUs of {count(jobs.length)}
            {(data?.running ?? 0) > jobs.length && ` of ${count(data?.running ?? 0)}`} running{" "}
            {jobs.length === 1 ? "job" : "jobs"} are idle, by the policies of their queues.
          </p>
          <Table
            label="Jobs whose GPUs do nothing"
            columns={COLUMNS}
            rows={jobs}
            keyOf={(one) => one.job}
            height={jobs.length > 10 ? "40vh" : undefined}
          />
        </>
      )}
    </Section>
  );
}
