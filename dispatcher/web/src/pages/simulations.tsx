/** Simulations of a workload: their progress, and their cases side by side. */
import { useEffect, useState } from "preact/hooks";
import { useSearchParams } from "wouter-preact";
import { ApiError, call } from "../api/client.ts";
import { useResource } from "../api/resource.ts";
import {
  Ago,
  Bar,
  Empty,
  Lasting,
  Loading,
  Pairs,
  Problem,
  Scrolls,
  Section,
  State,
  Title,
} from "../components/basics.tsx";
import { say } from "../components/dialog.tsx";
import { duration } from "../format.ts";
import { may } from "../session.ts";

interface Simulation {
  id: number;
  title?: string;
  state: string;
  createdAt: string;
  createdBy?: string;
  startedAt?: string;
  endedAt?: string;
  progress?: { case: number; cases: number; jobsEnded: number; jobs: number };
  message?: string;
  result?: { workload?: unknown; leftOut?: unknown; cases?: Case[] };
}

interface Case {
  name: string;
  [figure: string]: unknown;
}

const LIVE = ["queued", "running", "waiting"];
const POLL_MILLISECONDS = 2000;

export default function SimulationsPage() {
  const [search, setSearch] = useSearchParams();
  const chosen = search.get("id");
  const list = useResource<{ simulations: Simulation[] }>("/v1/simulations");
  const found = list.data?.simulations ?? [];
  usePoll(
    found.some((one) => LIVE.includes(one.state)),
    list.reload,
  );
  return (
    <>
      <Title text="Simulations" />
      <p class="muted">
        <code>trainmaster simulate</code> begins one; so does "What if" of a queue's quotas.
      </p>
      <Problem error={list.error} retry={list.reload} />
      {list.isLoading && <Loading />}
      {!list.isLoading && found.length === 0 && <Empty>There is no simulation.</Empty>}
      {found.length > 0 && (
        <Scrolls label="Simulations">
          <table class="plain">
            <thead>
              <tr>
                {["Simulation", "State", "Progress", "By", "Created", "Took"].map((one) => (
                  <th scope="col" key={one}>
                    {one}
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {found.map((one) => (
                <tr key={one.id}>
                  <td>
                    <button type="button" class="link" onClick={() => setSearch({ id: String(one.id) })}>
                      {one.title || `Simulation ${one.id}`}
                    </button>
                  </td>
                  <td>
                    <State of={one.state} />
                  </td>
                  <td>{progress(one)}</td>
                  <td>{one.createdBy ?? "-"}</td>
                  <td>
                    <Ago at={one.createdAt} />
                  </td>
                  <td>{one.startedAt ? <Lasting from={one.startedAt} to={one.endedAt} /> : "-"}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </Scrolls>
      )}
      {chosen && <Details id={chosen} reload={list.reload} />}
    </>
  );
}

function usePoll(isOn: boolean, work: () => void): void {
  useEffect(() => {
    if (!isOn) return;
    const timer = setInterval(() => {
      if (!document.hidden) work();
    }, POLL_MILLISECONDS);
    return () => clearInterval(timer);
  }, [isOn, work]);
}

function progress(one: Simulation): string {
  const at = one.progress;
  return at?.jobs ? `case ${at.case} of ${at.cases}, ${at.jobsEnded} of ${at.jobs} jobs` : "-";
}

function Details({ id, reload }: { id: string; reload: () => void }) {
  const found = useResource<Simulation>(`/v1/simulations/${encodeURIComponent(id)}`);
  const [error, setError] = useState<ApiError>();
  const one = found.data;
  usePoll(one !== undefined && LIVE.includes(one.state), found.reload);
  const act = async (method: string, path: string) => {
    try {
      await call(method, path);
      say("Done");
      found.reload();
      reload();
    } catch (problem) {
      if (problem instanceof ApiError) setError(problem);
    }
  };
  if (!one) return found.error ? <Problem error={found.error} /> : <Loading />;
  const path = `/v1/simulations/${one.id}`;
  return (
    <Section title={one.title || `Simulation ${one.id}`}>
      <Problem error={error} />
      <Pairs
        of={[
          ["State", <State of={one.state} />],
          ["Progress", progress(one)],
          ["Message", one.message],
        ]}
      />
      <div class="toolbar">
        {one.state === "succeeded" && (
          <a class="button" href={`${path}/report`} target="_blank" rel="noreferrer">
            Report with charts
          </a>
        )}
        {may("simulations.run") && LIVE.includes(one.state) && (
          <button type="button" onClick={() => act("POST", `${path}/cancel`)}>
            Cancel
          </button>
        )}
      </div>
      {one.result?.cases && <Cases of={one.result.cases} />}
    </Section>
  );
}

/** The figures of each case beside those of the others; bars compare a figure over the cases. */
function Cases({ of }: { of: Case[] }) {
  const names = [...new Set(of.flatMap((one) => Object.keys(flat(one))))].filter((name) => name !== "name");
  const rows = names.map((name) => ({ name, values: of.map((one) => flat(one)[name]) }));
  return (
    <Scrolls label="Figures of the cases">
      <table class="plain">
        <thead>
          <tr>
            <th scope="col">Figure</th>
            {of.map((one) => (
              <th scope="col" key={one.name}>
                {one.name}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => {
            const numbers = row.values.map((value) => (typeof value === "number" ? value : 0));
            const most = Math.max(...numbers);
            return (
              <tr key={row.name}>
                <th scope="row">{row.name}</th>
                {row.values.map((value, index) => (
                  <td key={of[index]?.name}>
                    {figure(row.name, value)}
                    {typeof value === "number" && most > 0 && (
                      <Bar
                        label={`${row.name}: ${figure(row.name, value)}`}
                        whole={most}
                        parts={[{ name: "value", value }]}
                      />
                    )}
                  </td>
                ))}
              </tr>
            );
          })}
        </tbody>
      </table>
    </Scrolls>
  );
}

/** Returns the figures of nested objects by their paths; lists are left out. */
export function flat(of: Record<string, unknown>, before = ""): Record<string, unknown> {
  const found: Record<string, unknown> = {};
  for (const [name, value] of Object.entries(of)) {
    const path = before ? `${before}.${name}` : name;
    if (typeof value === "object" && value !== null && !Array.isArray(value))
      Object.assign(found, flat(value as Record<string, unknown>, path));
    else if (!Array.isArray(value)) found[path] = value;
  }
  return found;
}

function figure(name: string, value: unknown): string {
  if (typeof value !== "number") return value === null || value === undefined ? "-" : String(value);
  return /seconds|wait|makespan/i.test(name) ? duration(value) : String(Number(value.toFixed(3)));
}
