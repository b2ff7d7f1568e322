/** One job: why it is where it is, its runs and members, output, events, use, and its specification. */
import { useEffect, useState } from "preact/hooks";
import { Link } from "wouter-preact";
import { stringify } from "yaml";
import { ApiError, call } from "../api/client.ts";
import { useResource } from "../api/resource.ts";
import type { EventView, JobReason, JobView, RunView } from "../api/types.ts";
import {
  Ago,
  Empty,
  JobLink,
  Lasting,
  Loading,
  Pairs,
  Problem,
  Scrolls,
  Section,
  State,
  Time,
  Title,
} from "../components/basics.tsx";
import { Dialog, say } from "../components/dialog.tsx";
import { Output } from "../components/output.tsx";
import { Tabs } from "../components/tabs.tsx";
import { UseOfJob } from "../components/use_of_job.tsx";
import { money } from "../format.ts";
import { may } from "../session.ts";

const OVER = ["succeeded", "failed", "cancelled"];
const WAITS = ["queued", "held", "dispatched"];
const COST_SECONDS = 30;

interface Member {
  role?: string;
  index?: number;
  state?: string;
  node?: string;
  exitCode?: number;
  message?: string;
}

export default function JobPage({ params }: { params: { job?: string } }) {
  const id = decodeURIComponent(params.job ?? "");
  const path = `/v1/jobs/${encodeURIComponent(id)}`;
  const topics = [`job:${id}`, "job:*"];
  const job = useResource<JobView>(path, {}, topics);
  const { data, reload } = job;
  const costsMore = !!data?.cost && ["dispatched", "running"].includes(data.state);
  useEffect(() => {
    if (!costsMore) return;
    const timer = setInterval(() => {
      if (!document.hidden) reload();
    }, COST_SECONDS * 1000);
    return () => clearInterval(timer);
  }, [costsMore, reload]);
  if (job.isLoading) return <Loading />;
  if (!job.data) {
    return (
      <>
        <Title text={id} />
        <Problem error={job.error} retry={job.reload} />
      </>
    );
  }
  const found = job.data;
  const isOver = OVER.includes(found.state);
  return (
    <>
      <Title text={found.id}>
        <State of={found.shownState} />
        <Actions job={found} reload={job.reload} />
      </Title>
      <Problem error={job.error} retry={job.reload} />
      {found.message && <p class={found.state === "failed" ? "problem" : "hint"}>{found.message}</p>}
      <Tabs
        label="Parts of the job"
        of={[
          {
            name: "overview",
            title: "Overview",
            body: () => <Overview job={found} path={path} topics={topics} />,
          },
          ...(may("jobs.read")
            ? [
                { name: "logs", title: "Logs", body: () => <Logs job={found} isOver={isOver} /> },
                { name: "events", title: "Events", body: () => <Events path={path} topics={topics} /> },
              ]
            : []),
          {
            name: "use",
            title: "Use",
            body: () => <UseOfJob path={path} since={found.startedAt} topics={topics} />,
          },
          { name: "spec", title: "Specification", body: () => <Spec job={found} /> },
        ]}
      />
    </>
  );
}

function Actions({ job, reload }: { job: JobView; reload: () => void }) {
  const [isCancelling, setCancelling] = useState(false);
  if (!may("jobs.change")) return null;
  const act = async (name: string, body?: unknown) => {
    try {
      await call("POST", `/v1/jobs/${encodeURIComponent(job.id)}/${name}`, { body });
      say(`${name}: ${job.id}`);
      reload();
    } catch (problem) {
      if (problem instanceof ApiError) say(problem.message, true);
    }
  };
  const isOver = OVER.includes(job.state);
  return (
    <>
      {!isOver && job.state !== "held" && (
        <button type="button" onClick={() => act("suspend")}>
          Suspend
        </button>
      )}
      {job.state === "held" && (
        <button type="button" onClick={() => act("resume")}>
          Resume
        </button>
      )}
      {isOver && job.state !== "succeeded" && (
        <button type="button" onClick={() => act("retry")}>
          Retry
        </button>
      )}
      {may("jobs.submit") && (
        <Link class="button" href={`/submit?from=${encodeURIComponent(job.id)}`}>
          Submit again with changes
        </Link>
      )}
      {!isOver && (
        <button type="button" class="danger" onClick={() => setCancelling(true)}>
          Cancel …
        </button>
      )}
      {isCancelling && (
        <Dialog title={`Cancel ${job.id}?`} close={() => setCancelling(false)}>
          <p>Its members are stopped, and it does not run again.</p>
          <div class="actions">
            <button type="button" onClick={() => setCancelling(false)}>
              Back
            </button>
            <button
              type="button"
              class="danger"
              onClick={() => {
                setCancelling(false);
                act("cancel", {});
              }}
            >
              Cancel the job
            </button>
          </div>
        </Dialog>
      )}
    </>
  );
}

function Overview({ job, path, topics }: { job: JobView; path: string; topics: string[] }) {
  const waits = WAITS.includes(job.state);
  const why = useResource<JobReason>(
    may("jobs.read") ? `${path}/why` : null,
    {},
    waits ? [...topics, "jobs"] : topics,
  );
  return (
    <>
      <Section title="Why">
        <Problem error={why.error} />
        {why.data && <Why reason={why.data} />}
      </Section>
      <Section title="Facts">
        <Pairs
          of={[
            ["Queue", <Link href={`/queues?queue=${encodeURIComponent(job.queue)}`}>{job.queue}</Link>],
            [
              "User",
              job.submittedThrough ? `${job.submittedBy}, through ${job.submittedThrough}` : job.submittedBy,
            ],
            ["Class", `${job.priorityClass}, priority ${job.priority}`],
            ["Cluster", job.cluster],
            ["Submitted", <Time at={job.submittedAt} />],
            ["Started", job.startedAt && <Time at={job.startedAt} />],
            ["Ended", job.endedAt && <Time at={job.endedAt} />],
            ["Waited", <Lasting from={job.submittedAt} to={job.startedAt ?? job.endedAt} />],
            ["Ran", job.startedAt && <Lasting from={job.startedAt} to={job.endedAt} />],
            [OVER.includes(job.state) ? "Cost" : "Cost so far", job.cost && <Cost of={job.cost} />],
            ["Deadline", job.deadline && <Time at={job.deadline} />],
            ["Attempts", job.attempt ? `${job.attempt}, ${job.retriesUsed} retries used` : ""],
            [
              "Group",
              job.group && <Link href={`/jobs?group=${encodeURIComponent(job.group)}`}>{job.group}</Link>,
            ],
            [
              "Labels",
              Object.entries(job.labels ?? {})
                .map(([name, value]) => `${name}=${value}`)
                .join(", "),
            ],
            ["Array", job.elementOf && <JobLink id={job.elementOf.job} />],
            ["Elements", job.elements && JSON.stringify(job.elements)],
            ["Results", job.results && <pre class="code">{JSON.stringify(job.results, null, 2)}</pre>],
          ]}
        />
      </Section>
      <Section title="Runs">
        <Runs runs={job.runs ?? []} />
      </Section>
    </>
  );
}

function Cost({ of: { cost, charge, currency } }: { of: NonNullable<JobView["cost"]> }) {
  const [words, charged] = [money(cost, currency), money(charge, currency)];
  return (
    <>
      {words}
      {charged !== words && <span class="muted">, charged {charged}</span>}
    </>
  );
}

function Why({ reason }: { reason: JobReason }) {
  return (
    <>
      <p>
        <strong>{reason.sentence}</strong>
      </p>
      {reason.advice && <p>{reason.advice}</p>}
      {reason.position !== undefined && reason.position !== null && (
        <p>
          Place {reason.position} of {reason.jobsInQueue ?? "?"} in {reason.queue}.{" "}
          {reason.forecast && (
            <>
              Half of such jobs start by <Time at={reason.forecast.halfBy} />, nine tenths by{" "}
              <Time at={reason.forecast.mostBy} />.
            </>
          )}
        </p>
      )}
      {reason.live === false && (
        <p class="muted">The leading scheduler did not answer: this is what was found last.</p>
      )}
      {reason.verdicts && reason.verdicts.length > 0 && (
        <Scrolls label="Verdict on each cluster">
          <table class="plain">
            <caption class="muted">Verdict on each cluster</caption>
            <thead>
              <tr>
                <th scope="col">Cluster</th>
                <th scope="col">Check</th>
                <th scope="col">Verdict</th>
                <th scope="col" class="number">
                  Score
                </th>
              </tr>
            </thead>
            <tbody>
              {reason.verdicts.map((one) => (
                <tr key={one.cluster}>
                  <td>{one.cluster}</td>
                  <td>{one.check}</td>
                  <td>{one.sentence}</td>
                  <td class="number">{one.score?.toFixed(2) ?? ""}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </Scrolls>
      )}
    </>
  );
}

function Runs({ runs }: { runs: RunView[] }) {
  if (runs.length === 0) return <Empty>It has not been sent to a cluster yet.</Empty>;
  return (
    <>
      {[...runs].reverse().map((run) => (
        <div key={run.id} class="card run">
          <h3>
            Attempt {run.attempt} on {run.cluster} <State of={run.state} />
          </h3>
          {run.message && <p>{run.message}</p>}
          {run.whyHere && <p class="muted">{run.whyHere}</p>}
          <Pairs
            of={[
              ["Decided", <Time at={run.leasedAt} />],
              ["Started", run.startedAt && <Time at={run.startedAt} />],
              ["Ended", run.endedAt && <Time at={run.endedAt} />],
              ["Ran", run.startedAt && <Lasting from={run.startedAt} to={run.endedAt} />],
              [
                "Failure",
                run.category &&
                  `${run.category}${run.exitCode === undefined || run.exitCode === null ? "" : `, exit code ${run.exitCode}`}`,
              ],
              ["Burst", run.burst && JSON.stringify(run.burst)],
              ["No contact since", run.silentSince && <Time at={run.silentSince} />],
            ]}
          />
          <Members of={(run.members ?? []) as Member[]} />
        </div>
      ))}
    </>
  );
}

function Members({ of }: { of: Member[] }) {
  if (of.length === 0) return null;
  return (
    <Scrolls label="Members">
      <table class="plain">
        <thead>
          <tr>
            <th scope="col">Member</th>
            <th scope="col">State</th>
            <th scope="col">Node</th>
            <th scope="col">Message</th>
          </tr>
        </thead>
        <tbody>
          {of.map((one) => (
            <tr key={`${one.role}-${one.index}`}>
              <td>
                {one.role}-{one.index}
              </td>
              <td>{one.state ? <State of={one.state} /> : "-"}</td>
              <td>{one.node ?? "-"}</td>
              <td>
                {one.message ?? ""}
                {one.exitCode !== undefined && one.exitCode !== null ? ` exit code ${one.exitCode}` : ""}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </Scrolls>
  );
}

function Logs({ job, isOver }: { job: JobView; isOver: boolean }) {
  const last = job.runs?.at(-1);
  const [attempt, setAttempt] = useState("");
  const [member, setMember] = useState("");
  const members = ((last?.members ?? []) as Member[]).map((one) => `${one.role}-${one.index}`);
  const split = member.lastIndexOf("-");
  const source = {
    ...(attempt && { attempt: Number(attempt) }),
    ...(member && { role: member.slice(0, split), index: Number(member.slice(split + 1)) }),
  };
  if (!job.runs?.length) return <Empty>It has not run yet.</Empty>;
  return (
    <>
      <div class="filters">
        {members.length > 1 && (
          <label class="field">
            <span>Member</span>
            <select value={member} onChange={(event) => setMember(event.currentTarget.value)}>
              <option value="">all</option>
              {members.map((one) => (
                <option key={one}>{one}</option>
              ))}
            </select>
          </label>
        )}
        {job.runs.length > 1 && (
          <label class="field">
            <span>Attempt</span>
            <select value={attempt} onChange={(event) => setAttempt(event.currentTarget.value)}>
              <option value="">the last one</option>
              {job.runs.map((one) => (
                <option key={one.attempt}>{one.attempt}</option>
              ))}
            </select>
          </label>
        )}
      </div>
      <Output job={job.id} source={source} isOver={isOver} />
    </>
  );
}

function Events({ path, topics }: { path: string; topics: string[] }) {
  const events = useResource<{ events: EventView[] }>(`${path}/events`, {}, topics);
  if (events.isLoading) return <Loading />;
  return (
    <>
      <Problem error={events.error} retry={events.reload} />
      <ol class="timeline">
        {[...(events.data?.events ?? [])].reverse().map((one) => (
          <li key={one.seq}>
            <span>
              <Time at={one.at} />{" "}
              <span class="muted">
                (<Ago at={one.at} />)
              </span>
            </span>
            <span>
              <strong>{one.kind}</strong> {one.cluster && `on ${one.cluster} `}
              {one.actor && `by ${one.actor} `}
              {one.states?.length ? <span class="muted">→ {one.states.join(", ")}</span> : null}
              {one.message && <div>{one.message}</div>}
            </span>
          </li>
        ))}
      </ol>
    </>
  );
}

function Spec({ job }: { job: JobView }) {
  const [isJson, setJson] = useState(false);
  const text = isJson ? JSON.stringify(job.spec, null, 2) : stringify(job.spec ?? {});
  return (
    <>
      <div class="toolbar">
        <label>
          <input
            type="checkbox"
            checked={isJson}
            onChange={(event) => setJson(event.currentTarget.checked)}
          />{" "}
          JSON
        </label>
        <button
          type="button"
          onClick={() =>
            navigator.clipboard.writeText(text).then(() => say("The specification is in the clipboard"))
          }
        >
          Copy
        </button>
      </div>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls has to be reached by the keyboard */}
      <pre class="code" tabIndex={0}>
        {text}
      </pre>
    </>
  );
}
