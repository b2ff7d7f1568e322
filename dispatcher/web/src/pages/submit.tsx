/** A new job: by a form or as YAML, with what the dispatcher would do with it before it is sent. */
import { useEffect, useState } from "preact/hooks";
import { useLocation, useSearchParams } from "wouter-preact";
import { parse, stringify } from "yaml";
import { ApiError, call } from "../api/client.ts";
import { useResource } from "../api/resource.ts";
import type { JobView, QueueList } from "../api/types.ts";
import { Pairs, Problem, Section, Title } from "../components/basics.tsx";
import { say } from "../components/dialog.tsx";
import { Editor } from "../components/editor.tsx";
import { Tabs } from "../components/tabs.tsx";

type Spec = Record<string, unknown>;

interface Trial {
  couldRun?: boolean;
  startsNow?: boolean;
  why?: string;
  cluster?: string;
  runsEnded?: number;
  fitsEmpty?: string[];
  fitsNow?: string[];
  place?: { position?: number; jobsInQueue?: number };
}

interface TriedJob {
  name: string;
  queue: string;
  held?: boolean;
  holdCause?: string;
  count?: number;
  trial?: Trial;
}

interface Tried {
  live: boolean;
  jobs: TriedJob[];
  warnings?: { message: string }[];
}

const FIRST = `name: hello
queue: default
roles:
  - name: main
    replicas: 1
    template:
      command: ["sh", "-c", "echo hello from $(hostname)"]
      resources: {cpu: 100m, memory: 64Mi}
`;

/** Fields of a specification that are of one job alone, and not of the next. */
const OWN = ["kind"];

export default function SubmitPage() {
  const [search] = useSearchParams();
  const [, navigate] = useLocation();
  const from = search.get("from");
  const earlier = useResource<JobView>(from ? `/v1/jobs/${encodeURIComponent(from)}` : null);
  const [text, setText] = useState(FIRST);
  const [error, setError] = useState<ApiError>();
  const [tried, setTried] = useState<Tried>();
  const [isBusy, setBusy] = useState(false);
  useEffect(() => {
    if (!earlier.data?.spec) return;
    const spec = Object.fromEntries(
      Object.entries(earlier.data.spec).filter(([name]) => !OWN.includes(name)),
    );
    setText(stringify(spec));
  }, [earlier.data]);
  const change = (next: string) => {
    setText(next);
    setTried(undefined);
  };
  const send = async (isDry: boolean) => {
    setBusy(true);
    setError(undefined);
    try {
      const body = read(text);
      if (isDry) {
        setTried(await call<Tried>("POST", "/v1/jobs", { body, query: { dryRun: true } }));
      } else {
        const made = await call<{ id?: string; jobs?: { id: string }[] }>("POST", "/v1/jobs", { body });
        const id = made.id ?? made.jobs?.[0]?.id ?? "";
        say(`Submitted ${id}`);
        navigate(`/jobs/${encodeURIComponent(id)}`);
      }
    } catch (problem) {
      setTried(undefined);
      if (problem instanceof ApiError) setError(problem);
    }
    setBusy(false);
  };
  return (
    <>
      <Title text={from ? `Submit ${from} again` : "Submit a job"} />
      <Problem error={earlier.error} />
      <Tabs
        label="Ways to write the job"
        of={[
          { name: "form", title: "Form", body: () => <Form text={text} change={change} /> },
          {
            name: "yaml",
            title: "YAML",
            body: () => (
              <Editor
                label="Specification of the job"
                value={text}
                change={change}
                model="JobSpec"
                mistakes={error?.mistakes ?? []}
              />
            ),
          },
        ]}
      />
      <div class="toolbar">
        <button type="button" disabled={isBusy} onClick={() => send(true)}>
          Check
        </button>
        <button type="button" class="primary" disabled={isBusy} onClick={() => send(false)}>
          Submit
        </button>
        <a class="muted" href="/docs">
          All fields
        </a>
      </div>
      <Problem error={error} />
      {tried && <Answer tried={tried} />}
    </>
  );
}

/** Returns the specification that a text is. Throws ApiError. */
export function read(text: string): Spec {
  let found: unknown;
  try {
    found = parse(text);
  } catch (problem) {
    throw new ApiError(0, "malformed-yaml", problem instanceof Error ? problem.message : "This is no YAML.");
  }
  if (typeof found !== "object" || found === null || Array.isArray(found)) {
    throw new ApiError(0, "malformed-yaml", "A job is a mapping: name, queue, roles and more.");
  }
  return found as Spec;
}

function Answer({ tried }: { tried: Tried }) {
  return (
    <Section title="What the dispatcher would do">
      {!tried.live && (
        <p class="hint">
          The leading scheduler did not answer: the job is valid, and where it would go is not known.
        </p>
      )}
      {tried.warnings?.map((one) => (
        <p class="hint" key={one.message}>
          {one.message}
        </p>
      ))}
      {tried.jobs.map((job) => (
        <div class="card" key={job.name}>
          <h3>
            {job.name} in {job.queue}
          </h3>
          {job.held && <p>It would be held at first: {job.holdCause}</p>}
          {job.trial && <TrialOf trial={job.trial} />}
        </div>
      ))}
    </Section>
  );
}

function TrialOf({ trial }: { trial: Trial }) {
  const verdict = trial.startsNow
    ? `It would start now on ${trial.cluster}.`
    : trial.couldRun
      ? "It would wait."
      : "It could not run.";
  return (
    <>
      <p>
        <strong>{verdict}</strong> {trial.why}
      </p>
      <Pairs
        of={[
          ["Fits now on", trial.fitsNow?.join(", ")],
          ["Fits when empty on", trial.fitsEmpty?.join(", ")],
          ["Place", trial.place?.position && `${trial.place.position} of ${trial.place.jobsInQueue}`],
          ["Runs ended for it", trial.runsEnded || ""],
        ]}
      />
    </>
  );
}

interface Template {
  command?: string[];
  image?: string;
  resources?: Record<string, string>;
  env?: Record<string, string>;
}

/** The fields that most jobs have; all others of the text stay as they are. */
function Form({ text, change }: { text: string; change: (text: string) => void }) {
  const queues = useResource<QueueList>("/v1/queues");
  let spec: Spec;
  try {
    spec = read(text);
  } catch {
    return <p class="hint">The YAML has a mistake: mend it there first.</p>;
  }
  const roles = (Array.isArray(spec.roles) ? spec.roles : []) as {
    name?: string;
    replicas?: number;
    template?: Template;
  }[];
  const role = roles[0] ?? { name: "main", replicas: 1, template: {} };
  const template = role.template ?? {};
  const set = (fields: Spec) => change(stringify(clean({ ...spec, ...fields })));
  const setRole = (fields: Partial<typeof role>) =>
    set({ roles: [{ ...role, ...fields }, ...roles.slice(1)] });
  const setTemplate = (fields: Partial<Template>) => setRole({ template: { ...template, ...fields } });
  const setResource = (name: string, value: string) =>
    setTemplate({ resources: { ...template.resources, [name]: value } });
  const field = (label: string, value: unknown, put: (text: string) => void, hint = "", type = "text") => (
    <label class="field">
      <span>{label}</span>
      <input
        type={type}
        value={String(value ?? "")}
        placeholder={hint}
        onInput={(event) => put(event.currentTarget.value)}
      />
    </label>
  );
  const leaves = queues.data?.queues.filter((one) => one.isLeaf) ?? [];
  return (
    <>
      <div class="fields">
        {field("Name", spec.name, (value) => set({ name: value }))}
        <label class="field">
          <span>Queue</span>
          <select
            value={String(spec.queue ?? "")}
            onChange={(event) => set({ queue: event.currentTarget.value })}
          >
            <option value="">choose …</option>
            {leaves.map((one) => (
              <option key={one.path}>{one.path}</option>
            ))}
          </select>
        </label>
        {field(
          "Members",
          role.replicas ?? 1,
          (value) => setRole({ replicas: Number(value) || 1 }),
          "1",
          "number",
        )}
        {field("CPU of each", template.resources?.cpu, (value) => setResource("cpu", value), "1")}
        {field("Memory of each", template.resources?.memory, (value) => setResource("memory", value), "1Gi")}
        {field(
          "GPUs of each",
          template.resources?.["nvidia.com/gpu"],
          (value) => setResource("nvidia.com/gpu", value),
          "0",
        )}
        {field(
          "Image",
          template.image,
          (value) => setTemplate({ image: value }),
          "registry.example.org/train:1",
        )}
        {field("Time limit", spec.timeLimit, (value) => set({ timeLimit: value }), "4h")}
        {field("Priority class", spec.priorityClass, (value) => set({ priorityClass: value }))}
      </div>
      <CommandField command={template.command ?? []} put={(command) => setTemplate({ command })} />
      {roles.length > 1 && (
        <Pairs
          of={[
            [
              "Further roles",
              `${roles
                .slice(1)
                .map((one) => one.name)
                .join(", ")}: as in the YAML`,
            ],
          ]}
        />
      )}
    </>
  );
}

/** The arguments of a command, one on each line; empty lines are none. */
function CommandField({ command, put }: { command: string[]; put: (command: string[]) => void }) {
  const [text, setText] = useState(command.join("\n"));
  const argumentsOf = (lines: string) => lines.split("\n").filter(Boolean);
  const joined = command.join("\n");
  useEffect(() => {
    if (argumentsOf(text).join("\n") !== joined) setText(joined);
  }, [joined]);
  return (
    <label class="field">
      <span>Command, each argument on its own line</span>
      <textarea
        rows={4}
        value={text}
        onInput={(event) => {
          setText(event.currentTarget.value);
          put(argumentsOf(event.currentTarget.value));
        }}
      />
    </label>
  );
}

/** Returns a value without empty texts and empty mappings. */
function clean(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(clean);
  if (typeof value !== "object" || value === null) return value;
  const found = Object.entries(value)
    .map(([name, one]) => [name, clean(one)] as const)
    .filter(
      ([, one]) =>
        one !== "" &&
        one !== undefined &&
        !(typeof one === "object" && one !== null && !Array.isArray(one) && Object.keys(one).length === 0),
    );
  return Object.fromEntries(found);
}
