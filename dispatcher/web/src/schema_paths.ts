/** Fields of the API's models by their places in a YAML document, for completion and for marks of mistakes. */
import { isNode, parseDocument } from "yaml";

export interface Schema {
  $ref?: string;
  type?: string | string[];
  description?: string;
  enum?: unknown[];
  const?: unknown;
  default?: unknown;
  properties?: Record<string, Schema>;
  additionalProperties?: boolean | Schema;
  items?: Schema;
  anyOf?: Schema[];
  allOf?: Schema[];
  oneOf?: Schema[];
}

export type Models = Record<string, Schema>;

const REF = "#/components/schemas/";

function alternatives(schema: Schema, models: Models): Schema[] {
  if (schema.$ref) {
    const found = models[schema.$ref.replace(REF, "")];
    return found ? alternatives(found, models) : [];
  }
  const parts = [...(schema.anyOf ?? []), ...(schema.allOf ?? []), ...(schema.oneOf ?? [])];
  return [schema, ...parts.flatMap((one) => alternatives(one, models))];
}

/** Returns the schemas of what is at a path of keys; a number is a place in a list. */
export function schemasAt(root: Schema, path: (string | number)[], models: Models): Schema[] {
  let found = alternatives(root, models);
  for (const step of path) {
    found = found.flatMap((one) => {
      const next =
        typeof step === "number"
          ? one.items
          : (one.properties?.[step] ??
            (typeof one.additionalProperties === "object" ? one.additionalProperties : undefined));
      return next ? alternatives(next, models) : [];
    });
  }
  return found;
}

interface Place {
  path: (string | number)[];
  /** The key whose value the cursor is in; empty where it is at a key. */
  key: string;
  /** What is typed of the word so far. */
  word: string;
}

const LINE = /^(\s*)((?:- +)*)([\w.@/${}-]*)(:?)\s*(.*)$/;

/** Returns where the cursor is in a YAML document, by the indentation of the lines above. */
export function placeAt(text: string, at: number): Place {
  const before = text.slice(0, at).split("\n");
  const current = before.at(-1) ?? "";
  const match = LINE.exec(current);
  const indent = (match?.[1]?.length ?? 0) + (match?.[2]?.length ?? 0);
  const isValue = match?.[4] === ":";
  const path: (string | number)[] = [];
  let limit = indent;
  if (match?.[2]) path.unshift(0);
  if (match?.[2]) limit = match[1]?.length ?? 0;
  for (let row = before.length - 2; row >= 0 && limit >= 0; row -= 1) {
    const above = LINE.exec(before[row] ?? "");
    if (!above || !(before[row] ?? "").trim() || (before[row] ?? "").trimStart().startsWith("#")) continue;
    const dashes = above[2]?.length ?? 0;
    const depth = (above[1]?.length ?? 0) + dashes;
    if (depth < limit && above[3] && above[4] && !above[5]) {
      path.unshift(above[3]);
      if (dashes) path.unshift(0);
      limit = dashes ? (above[1]?.length ?? 0) : depth;
    } else if (dashes && depth === limit && !match?.[2]) {
      // A further key of an entry of a list.
      path.unshift(0);
      limit = above[1]?.length ?? 0;
    } else if (
      depth === limit &&
      limit === (above[1]?.length ?? 0) &&
      above[3] &&
      above[4] &&
      !above[5] &&
      path[0] === 0
    ) {
      // Lists may begin at the column of their key.
      path.unshift(above[3]);
    }
  }
  return {
    path,
    key: isValue ? (match?.[3] ?? "") : "",
    word: isValue ? (match?.[5] ?? "") : (match?.[3] ?? ""),
  };
}

export interface Completion {
  label: string;
  detail: string;
  info: string;
}

/** Returns what may be written at a place: keys, or values of an enumeration. */
export function completionsAt(root: Schema, place: Place, models: Models): Completion[] {
  if (place.key) {
    const found = schemasAt(root, [...place.path, place.key], models);
    const values = found.flatMap((one) =>
      (one.enum ?? (one.const === undefined ? [] : [one.const])).map(String),
    );
    if (found.some((one) => one.type === "boolean")) values.push("true", "false");
    return [...new Set(values)].map((label) => ({ label, detail: "", info: "" }));
  }
  const fields = new Map<string, Completion>();
  for (const one of schemasAt(root, place.path, models)) {
    for (const [label, field] of Object.entries(one.properties ?? {})) {
      fields.set(label, { label, detail: typeOf(field), info: field.description ?? "" });
    }
  }
  return [...fields.values()];
}

function typeOf(schema: Schema): string {
  if (schema.$ref) return schema.$ref.replace(REF, "");
  if (schema.anyOf)
    return schema.anyOf
      .map(typeOf)
      .filter((one) => one && one !== "null")
      .join(" or ");
  return [schema.type ?? ""].flat().join(" or ");
}

/** Returns the line, from 1, of what a path such as roles[0].template.requests names; 1 where there is no such place. */
export function lineOf(text: string, path: string): number {
  const steps = [...path.matchAll(/\[(\d+)\]|([^.[\]]+)/g)].map((one) =>
    one[1] === undefined ? (one[2] ?? "") : Number(one[1]),
  );
  const document = parseDocument(text);
  for (let length = steps.length; length > 0; length -= 1) {
    const node = document.getIn(steps.slice(0, length), true);
    if (isNode(node) && node.range) return text.slice(0, node.range[0]).split("\n").length;
  }
  return 1;
}
