import { expect, test } from "vitest";
import { completionsAt, lineOf, type Models, placeAt, schemasAt } from "../src/schema_paths.ts";

const MODELS: Models = {
  JobSpec: {
    properties: {
      name: { type: "string", description: "Name of the job." },
      roles: { type: "array", items: { $ref: "#/components/schemas/Role" } },
      labels: { additionalProperties: { type: "string" } },
    },
  },
  Role: {
    properties: {
      name: { type: "string" },
      template: { anyOf: [{ $ref: "#/components/schemas/Template" }, { type: "null" }] },
    },
  },
  Template: { properties: { command: { type: "array" }, restart: { enum: ["never", "always"] } } },
};
const ROOT = MODELS.JobSpec ?? {};

function at(text: string) {
  const place = placeAt(text, text.length);
  return completionsAt(ROOT, place, MODELS).map((one) => one.label);
}

test("fields of the document", () => {
  expect(at("na")).toEqual(["name", "roles", "labels"]);
});

test("fields of an entry of a list, also where it begins at the column of its key", () => {
  expect(at("roles:\n  - na")).toEqual(["name", "template"]);
  expect(at("roles:\n  - name: main\n    te")).toEqual(["name", "template"]);
  expect(at("roles:\n- name: main\n  te")).toEqual(["name", "template"]);
});

test("fields further down, through references and alternatives", () => {
  expect(at("name: x\nroles:\n  - name: main\n    template:\n      co")).toEqual(["command", "restart"]);
  expect(at("roles:\n  - name: main\n    template:\n      restart: ")).toEqual(["never", "always"]);
});

test("what no schema knows has no fields", () => {
  expect(at("unknown:\n  x")).toEqual([]);
  expect(schemasAt(ROOT, ["labels", "team"], MODELS)).toEqual([{ type: "string" }]);
});

test("the line of a mistake", () => {
  const text = "name: x\nroles:\n  - name: main\n    template:\n      command: [a]\n";
  expect(lineOf(text, "roles[0].template.command")).toBe(5);
  expect(lineOf(text, "roles[0].template.gpus")).toBe(5);
  expect(lineOf(text, "nowhere")).toBe(1);
});
