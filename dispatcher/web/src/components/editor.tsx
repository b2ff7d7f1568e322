/** An editor of YAML with completion by the API's schema, loaded when it is first shown. */
import { useEffect, useRef, useState } from "preact/hooks";
import { get, type Mistake } from "../api/client.ts";
import { completionsAt, lineOf, type Models, placeAt } from "../schema_paths.ts";

interface EditorHandle {
  set: (text: string) => void;
  mark: (mistakes: { line: number; message: string }[]) => void;
  destroy: () => void;
}

interface EditorTerms {
  label: string;
  value: string;
  change: (text: string) => void;
  /** The model of the document, such as JobSpec; a document with `kind` is of that model. */
  model: string;
  mistakes?: Mistake[];
}

let models: Promise<Models> | undefined;

function readModels(): Promise<Models> {
  models ??= get<{ components: { schemas: Models } }>("/openapi.json").then(
    (found) => found.components.schemas,
  );
  return models;
}

export function Editor({ label, value, change, model, mistakes = [] }: EditorTerms) {
  const root = useRef<HTMLDivElement>(null);
  const handle = useRef<EditorHandle | null>(null);
  const latest = useRef({ change, value, model });
  latest.current = { change, value, model };
  const [isPlain, setPlain] = useState(false);
  useEffect(() => {
    let isGone = false;
    if (!root.current) return;
    const box = root.current;
    import("./code_mirror.ts").then(
      async ({ open }) => {
        const known = await readModels().catch(() => ({}) as Models);
        if (isGone) return;
        handle.current = open(box, {
          label,
          value: latest.current.value,
          change: (text) => latest.current.change(text),
          complete: (text, at) => {
            const kind = /^kind:\s*(\w+)\s*$/m.exec(text)?.[1];
            const name = kind && known[`${kind}Spec`] ? `${kind}Spec` : latest.current.model;
            return completionsAt(known[name] ?? {}, placeAt(text, at), known);
          },
        });
      },
      () => setPlain(true),
    );
    return () => {
      isGone = true;
      handle.current?.destroy();
      handle.current = null;
    };
  }, [label]);
  useEffect(() => handle.current?.set(value), [value]);
  useEffect(() => {
    handle.current?.mark(
      mistakes.map((one) => ({ line: lineOf(value, one.path), message: `${one.path}: ${one.message}` })),
    );
  }, [mistakes]);
  if (isPlain) {
    return (
      <textarea
        class="editor"
        aria-label={label}
        value={value}
        onInput={(event) => change(event.currentTarget.value)}
      />
    );
  }
  return <div class="editor" ref={root} />;
}
