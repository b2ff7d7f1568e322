/** Interactive sessions: jobs that people work in, with links to their ports. */
import { ApiError, call } from "../api/client.ts";
import { useResource } from "../api/resource.ts";
import { Ago, Empty, JobLink, Loading, Problem, Scrolls, State, Time, Title } from "../components/basics.tsx";
import { say } from "../components/dialog.tsx";
import { type Field, Filters, useFilters } from "../components/filters.tsx";
import { identity, may } from "../session.ts";

interface Session {
  job: string;
  queue: string;
  state: string;
  user?: string;
  cluster?: string;
  beganAt?: string;
  activeAt?: string;
  idleEndsAt?: string;
  lifeEndsAt?: string;
  ports?: { name: string; port: number }[];
}

const FIELDS: Field[] = [
  { name: "queue", label: "Queue" },
  { name: "user", label: "User" },
];

export default function SessionsPage() {
  const [values, change] = useFilters(FIELDS);
  const found = useResource<{ sessions: Session[] }>("/v1/sessions", values, ["jobs"]);
  const sessions = found.data?.sessions ?? [];
  return (
    <>
      <Title text="Sessions" />
      <Filters fields={FIELDS} values={values} change={change} label="Filters of sessions" />
      <div class="toolbar">
        <button type="button" onClick={() => change({ user: [identity.value?.name ?? ""] })}>
          Mine
        </button>
      </div>
      <Problem error={found.error} retry={found.reload} />
      {found.isLoading && <Loading />}
      {!found.isLoading && sessions.length === 0 && (
        <Empty>
          No session is open. <code>trainmaster jupyter</code>, <code>vscode</code> and <code>shell</code>{" "}
          begin one.
        </Empty>
      )}
      {sessions.length > 0 && (
        <Scrolls label="Sessions">
          <table class="plain">
            <thead>
              <tr>
                {[
                  "Session",
                  "State",
                  "User",
                  "Queue",
                  "Cluster",
                  "Used",
                  "Ends when idle",
                  "Ends at last",
                  "Open",
                ].map((one) => (
                  <th scope="col" key={one}>
                    {one}
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {sessions.map((one) => (
                <tr key={one.job}>
                  <td>
                    <JobLink id={one.job} />
                  </td>
                  <td>
                    <State of={one.state} />
                  </td>
                  <td>{one.user ?? "-"}</td>
                  <td>{one.queue}</td>
                  <td>{one.cluster ?? "-"}</td>
                  <td>
                    <Ago at={one.activeAt} />
                  </td>
                  <td>
                    <Time at={one.idleEndsAt} />
                  </td>
                  <td>
                    <Time at={one.lifeEndsAt} />
                  </td>
                  <td>
                    {may("jobs.connect") &&
                      one.ports?.map((port) => (
                        <button type="button" key={port.name} onClick={() => openPort(one.job, port.name)}>
                          {port.name}
                        </button>
                      ))}
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </Scrolls>
      )}
    </>
  );
}

/** Opens a port of a session in a new window, by a link that counts once. */
async function openPort(job: string, port: string): Promise<void> {
  const opened = window.open("about:blank", "_blank");
  try {
    const link = await call<{ url: string }>("POST", `/v1/jobs/${encodeURIComponent(job)}/session-links`, {
      body: { port },
    });
    if (opened) {
      opened.opener = null;
      opened.location.href = link.url;
    }
  } catch (problem) {
    opened?.close();
    if (problem instanceof ApiError) say(problem.message, true);
  }
}
