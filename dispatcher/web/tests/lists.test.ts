import { expect, test } from "vitest";
import { stacked } from "../src/components/chart.tsx";
import { sortedRows } from "../src/components/table.tsx";
import { topicsOf } from "../src/live.ts";
import { bulkFilter, queryOf } from "../src/pages/jobs.tsx";
import { rowsOf } from "../src/pages/queues.tsx";
import { linesOf, sumsOf } from "../src/pages/usage.tsx";

test("filters of the page are the query of the list and the filter of an action on all that match", () => {
  const values = {
    name: ["train*"],
    state: ["queued", "running"],
    label: ["team=vision", "a=b=c"],
    since: ["2037-01-01T00:00"],
  };
  const since = new Date("2037-01-01T00:00").toISOString();
  expect(queryOf(values)).toEqual({ ...values, since: [since], until: [] });
  expect(bulkFilter(values)).toEqual({
    name: "train*",
    states: ["queued", "running"],
    labels: { team: "vision", a: "b=c" },
    since,
  });
  expect(bulkFilter({ name: [] })).toEqual({});
});

test("rows are sorted by numbers as numbers, and back", () => {
  const columns = [{ name: "n", heading: "N", cell: () => null, sortBy: (row: { n: number }) => row.n }];
  const rows = [{ n: 10 }, { n: 9 }, { n: 100 }];
  expect(sortedRows(rows, columns, { name: "n", isDown: false }).map((one) => one.n)).toEqual([9, 10, 100]);
  expect(sortedRows(rows, columns, { name: "n", isDown: true }).map((one) => one.n)).toEqual([100, 10, 9]);
  expect(sortedRows(rows, columns, null)).toBe(rows);
});

test("topics of changes", () => {
  expect(topicsOf({ jobs: [{ id: "a-1", queue: "q" }], queues: ["q"], kinds: ["BurstPolicy"] })).toEqual([
    "jobs",
    "job:a-1",
    "queues",
    "BurstPolicy",
  ]);
  expect(topicsOf({ more: true })).toEqual(["jobs", "job:*"]);
  expect(topicsOf({})).toEqual([]);
});

test("jobs of a queue are those of all below it", () => {
  const queues = [
    { path: "org/b", jobs: { running: 2 } },
    { path: "org", jobs: {} },
    { path: "org/a", jobs: { running: 1, queued: 3 } },
    { path: "orgs", jobs: { running: 9 } },
  ];
  const rows = rowsOf(queues as unknown as Parameters<typeof rowsOf>[0]);
  expect(rows.map((one) => [one.queue.path, one.depth, one.jobs.running ?? 0])).toEqual([
    ["org", 0, 3],
    ["org/a", 1, 1],
    ["org/b", 1, 2],
    ["orgs", 0, 9],
  ]);
});

const ROW = { runs: 1, cpu: 1, memory: 0, devices: { gpu: 2 }, members: 1, charge: null };

test("usage is added up by its dimensions, and drawn by time", () => {
  const rows = [
    { ...ROW, since: "2037-01-01T00:00:00Z", of: { queue: "a" }, cost: "1" },
    { ...ROW, since: "2037-01-02T00:00:00Z", of: { queue: "a" }, cost: "2" },
    { ...ROW, since: "2037-01-02T00:00:00Z", of: { queue: "b" }, cost: "5" },
  ];
  expect(sumsOf(rows, ["queue"]).map((one) => [one.of.queue, Number(one.cost), one.devices.gpu])).toEqual([
    ["b", 5, 2],
    ["a", 3, 4],
  ]);
  const [times, lines] = linesOf(rows, ["queue"], "cost");
  expect(times).toHaveLength(2);
  expect(lines).toEqual([
    { name: "b", values: [0, 5] },
    { name: "a", values: [1, 2] },
  ]);
  expect(stacked(lines)[1]?.values).toEqual([1, 7]);
});
