/** Burst policies: what they have spent, and edits with a preview of what would go to public clusters. */
import { useState } from "preact/hooks";
import { parse, stringify } from "yaml";
import { ApiError, call } from "../api/client.ts";
import { useResource } from "../api/resource.ts";
import {
  Bar,
  Empty,
  JobLink,
  Loading,
  Pairs,
  Problem,
  Section,
  State,
  Title,
} from "../components/basics.tsx";
import { Dialog, say } from "../components/dialog.tsx";
import { Editor } from "../components/editor.tsx";
import { money } from "../format.ts";
import { may } from "../session.ts";

interface Standing {
  per?: string;
  queue?: string;
  limit?: string | number;
  spent?: string | number;
  committed?: string | number;
  forecast?: string | number;
  left?: string | number;
}

interface Policy {
  name: string;
  queues: string[];
  paused?: boolean;
  description?: string;
  shared?: boolean;
  open?: boolean;
  status?: {
    jobs: number;
    nodes: number;
    resources?: Record<string, string>;
    budgets?: Standing[];
    closed?: string;
    utilisation?: number;
  };
  [field: string]: unknown;
}

interface Previewed {
  job: string;
  jobs: number;
  queue: string;
  policy: string;
  goes: boolean;
  cluster?: string;
  pricePerHour?: string;
  atMost?: string;
  sentence: string;
}

const BESIDE = ["status", "shared", "open"];
const FIRST = `kind: BurstPolicy
name: overflow
queues: [default]
when: {after: 15m}
atMost: {jobs: 20}
budget: {day: "50", job: "5"}
timeLimit: 8h
paused: true
`;

export default function PoliciesPage() {
  const found = useResource<{ live: boolean; currency: string; burstPolicies: Policy[] }>(
    "/v1/burst-policies",
    {},
    ["burst-policies", "jobs"],
  );
  const [edited, setEdited] = useState<string | null>(null);
  const policies = found.data?.burstPolicies ?? [];
  const currency = found.data?.currency ?? "";
  return (
    <>
      <Title text="Policies">
        {may("policies.write") && (
          <button type="button" class="primary" onClick={() => setEdited(FIRST)}>
            New policy …
          </button>
        )}
      </Title>
      <Problem error={found.error} retry={found.reload} />
      {found.isLoading && <Loading />}
      {!found.isLoading && policies.length === 0 && (
        <Empty>No burst policy is declared: jobs stay on private and edge clusters.</Empty>
      )}
      {policies.map((one) => (
        <Section title={one.name} key={one.name}>
          <PolicyCard policy={one} currency={currency} edit={(text) => setEdited(text)} />
        </Section>
      ))}
      {edited !== null && (
        <Edit
          first={edited}
          currency={currency}
          close={(isDone) => {
            setEdited(null);
            if (isDone) found.reload();
          }}
        />
      )}
    </>
  );
}

function PolicyCard({
  policy,
  currency,
  edit,
}: {
  policy: Policy;
  currency: string;
  edit: (text: string) => void;
}) {
  const declared = Object.fromEntries(Object.entries(policy).filter(([name]) => !BESIDE.includes(name)));
  const status = policy.status;
  return (
    <>
      <Pairs
        of={[
          ["State", <State of={policy.paused ? "held" : status?.closed ? "closed" : "open"} />],
          ["Queues", policy.queues.join(", ")],
          ["Closed", status?.closed],
          ["Jobs there", status ? `${status.jobs} on ${status.nodes} nodes` : ""],
          [
            "Utilisation",
            status?.utilisation === undefined || status.utilisation === null
              ? ""
              : `${Math.round(status.utilisation * 100)}% of private clusters`,
          ],
          ["Description", policy.description],
        ]}
      />
      {status?.budgets?.map((one) => (
        <Budget key={`${one.per} ${one.queue}`} of={one} currency={currency} />
      ))}
      {may("policies.write") && (
        <button type="button" onClick={() => edit(stringify(declared))}>
          Edit …
        </button>
      )}
    </>
  );
}

function Budget({ of, currency }: { of: Standing; currency: string }) {
  const [limit, spent, committed] = [of.limit, of.spent, of.committed].map((one) => Number(one ?? 0)) as [
    number,
    number,
    number,
  ];
  const forecast =
    of.forecast === undefined || of.forecast === null ? "" : `, forecast ${money(of.forecast, currency)}`;
  const text = `${money(spent, currency)} spent, ${money(committed, currency)} committed of ${money(limit, currency)}${forecast}`;
  return (
    <p>
      <strong>{of.per ?? "budget"}</strong> {of.queue} {text}
      <Bar
        label={text}
        whole={limit}
        parts={[
          { name: "spent", value: spent },
          { name: "committed", value: committed },
        ]}
      />
    </p>
  );
}

function Edit({
  first,
  currency,
  close,
}: {
  first: string;
  currency: string;
  close: (isDone: boolean) => void;
}) {
  const [text, setText] = useState(first);
  const [error, setError] = useState<ApiError>();
  const [previews, setPreviews] = useState<Previewed[]>();
  const attempt = async (work: () => Promise<void>) => {
    setError(undefined);
    try {
      await work();
    } catch (problem) {
      setError(problem instanceof ApiError ? problem : new ApiError(0, "malformed-yaml", String(problem)));
    }
  };
  const spec = () => ({ ...parse(text), kind: "BurstPolicy" });
  const preview = () =>
    attempt(async () => {
      const found = await call<{ previews: Previewed[] }>("POST", "/v1/burst-policies/preview", {
        body: { policies: [spec()] },
      });
      setPreviews(found.previews ?? []);
    });
  const save = () =>
    attempt(async () => {
      await call("PUT", `/v1/burst-policies/${encodeURIComponent(String(spec().name))}`, { body: spec() });
      say("The policy is saved");
      close(true);
    });
  return (
    <Dialog title="Burst policy" close={() => close(false)}>
      <Editor
        label="Declaration of the policy"
        value={text}
        change={setText}
        model="BurstPolicySpec"
        mistakes={error?.mistakes ?? []}
      />
      <Problem error={error} />
      {previews && (
        <div class="hint" role="status">
          {previews.length === 0 && <p>No job waits that the policy is for: nothing would go now.</p>}
          {previews.map((one) => (
            <p key={one.job}>
              <JobLink id={one.job} />
              {one.jobs > 1 ? ` and ${one.jobs - 1} equivalent jobs` : ""}:{" "}
              <strong>{one.goes ? `would go to ${one.cluster}` : "stays"}</strong>
              {one.pricePerHour
                ? `, ${money(one.pricePerHour, currency)} an hour, at most ${money(one.atMost, currency)}`
                : ""}
              . {one.sentence}
            </p>
          ))}
        </div>
      )}
      <div class="actions">
        <button type="button" onClick={() => close(false)}>
          Back
        </button>
        <button type="button" onClick={preview}>
          Preview
        </button>
        <button type="button" class="primary" onClick={save}>
          Save
        </button>
      </div>
    </Dialog>
  );
}
