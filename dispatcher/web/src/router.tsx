/** The pages by their addresses, each loaded when it is first opened. */
import type { ComponentType } from "preact";
import { useEffect, useState } from "preact/hooks";
import { Route, Switch } from "wouter-preact";
import { Loading, Title } from "./components/basics.tsx";
import { may, type Permission } from "./session.ts";

type Params = Record<string, string>;
type PageComponent = ComponentType<{ params: Params }>;

export interface PageEntry {
  /** The address, as wouter writes it. */
  path: string;
  /** The word in the navigation; without one it is not there. */
  title?: string;
  /** The key after `g` that opens it. */
  key?: string;
  needs?: Permission;
  load: () => Promise<{ default: PageComponent }>;
}

export const PAGES: PageEntry[] = [
  { path: "/", title: "Fleet", key: "f", needs: "clusters.read", load: () => import("./pages/fleet.tsx") },
  {
    path: "/queues",
    title: "Queues",
    key: "q",
    needs: "queues.read",
    load: () => import("./pages/queues.tsx"),
  },
  { path: "/jobs", title: "Jobs", key: "j", needs: "jobs.list", load: () => import("./pages/jobs.tsx") },
  { path: "/jobs/:job", needs: "jobs.list", load: () => import("./pages/job.tsx") },
  {
    path: "/submit",
    title: "Submit",
    key: "n",
    needs: "jobs.submit",
    load: () => import("./pages/submit.tsx"),
  },
  {
    path: "/sessions",
    title: "Sessions",
    key: "s",
    needs: "jobs.read",
    load: () => import("./pages/sessions.tsx"),
  },
  {
    path: "/policies",
    title: "Policies",
    key: "p",
    needs: "policies.read",
    load: () => import("./pages/policies.tsx"),
  },
  { path: "/usage", title: "Usage", key: "u", needs: "usage.read", load: () => import("./pages/usage.tsx") },
  { path: "/audit", title: "Audit", key: "a", needs: "audit.read", load: () => import("./pages/audit.tsx") },
  {
    path: "/simulations",
    title: "Simulations",
    key: "m",
    needs: "simulations.read",
    load: () => import("./pages/simulations.tsx"),
  },
];

function Lazy({ entry, params }: { entry: PageEntry; params: Params }) {
  const [Page, setPage] = useState<PageComponent | null>(null);
  const [error, setError] = useState("");
  useEffect(() => {
    setPage(null);
    entry.load().then(
      (module) => setPage(() => module.default),
      () =>
        setError(
          "This page could not be loaded: the dispatcher has another release by now. Load the page again.",
        ),
    );
  }, [entry]);
  if (error) return <p class="problem">{error}</p>;
  return Page ? <Page params={params} /> : <Loading />;
}

export function Pages() {
  return (
    <Switch>
      {PAGES.map((entry) => (
        <Route path={entry.path} key={entry.path}>
          {(params: Params) =>
            entry.needs && !may(entry.needs) ? (
              <NotYours needs={entry.needs} />
            ) : (
              <Lazy entry={entry} params={params} />
            )
          }
        </Route>
      ))}
      <Route>
        <Title text="Not found" />
        <p>There is no such page.</p>
      </Route>
    </Switch>
  );
}

function NotYours({ needs }: { needs: Permission }) {
  return (
    <>
      <Title text="Not for your role" />
      <p>
        This page needs the permission <code>{needs}</code>, which none of your roles has. An admin binds
        roles to people and groups.
      </p>
    </>
  );
}
