/** Filters of a list, which are kept in the address of the page. */
import { useEffect, useRef, useState } from "preact/hooks";
import { useSearchParams } from "wouter-preact";

export type Values = Record<string, string[]>;

export interface Field {
  name: string;
  label: string;
  /** Values to choose from; without any it is text. */
  choices?: string[];
  /** Several choices or texts, one after the other. */
  isMany?: boolean;
  hint?: string;
  /** The choice that counts where none is made. */
  usual?: string;
  /** Shown after a click alone. */
  isRare?: boolean;
  type?: "datetime-local";
}

const PAUSE_MILLISECONDS = 300;

/** Returns the filters of the page's address, and a function that changes some of them. */
export function useFilters(fields: Field[]): [Values, (changed: Values) => void] {
  const [search, setSearch] = useSearchParams();
  const values: Values = Object.fromEntries(
    fields.map((one) => [one.name, search.getAll(one.name).filter(Boolean)]),
  );
  const change = (changed: Values) => {
    setSearch(
      (before) => {
        const next = new URLSearchParams(before);
        for (const [name, each] of Object.entries(changed)) {
          next.delete(name);
          for (const one of each) if (one) next.append(name, one);
        }
        return next;
      },
      { replace: true },
    );
  };
  return [values, change];
}

export function Filters({
  fields,
  values,
  change,
  label,
}: {
  fields: Field[];
  values: Values;
  change: (changed: Values) => void;
  label: string;
}) {
  const rare = fields.filter((one) => one.isRare);
  const isSet = fields.some((one) => values[one.name]?.length);
  return (
    <search aria-label={label}>
      <form class="filters" onSubmit={(event) => event.preventDefault()}>
        {fields
          .filter((field) => !field.isRare)
          .map((field) => (
            <FilterField key={field.name} field={field} value={values[field.name] ?? []} change={change} />
          ))}
        {rare.length > 0 && (
          <details class="more" open={rare.some((one) => values[one.name]?.length)}>
            <summary>More filters</summary>
            <div class="filters">
              {rare.map((field) => (
                <FilterField
                  key={field.name}
                  field={field}
                  value={values[field.name] ?? []}
                  change={change}
                />
              ))}
            </div>
          </details>
        )}
        {isSet && (
          <button
            type="button"
            class="quiet"
            onClick={() => change(Object.fromEntries(fields.map((one) => [one.name, []])))}
          >
            Clear
          </button>
        )}
      </form>
    </search>
  );
}

function FilterField({
  field,
  value,
  change,
}: {
  field: Field;
  value: string[];
  change: (changed: Values) => void;
}) {
  if (field.choices && field.isMany) return <Choices field={field} value={value} change={change} />;
  if (field.choices) {
    return (
      <label class="field">
        <span>{field.label}</span>
        <select
          value={value[0] ?? ""}
          onChange={(event) => change({ [field.name]: [event.currentTarget.value] })}
        >
          <option value="">{field.usual ?? "any"}</option>
          {field.choices
            .filter((one) => one !== field.usual)
            .map((one) => (
              <option key={one} value={one}>
                {one}
              </option>
            ))}
        </select>
      </label>
    );
  }
  return <TextField field={field} value={value} change={change} />;
}

function Choices({
  field,
  value,
  change,
}: {
  field: Field;
  value: string[];
  change: (changed: Values) => void;
}) {
  return (
    <fieldset class="choices">
      <legend>{field.label}</legend>
      {field.choices?.map((one) => (
        <label key={one}>
          <input
            type="checkbox"
            checked={value.includes(one)}
            onChange={(event) =>
              change({
                [field.name]: event.currentTarget.checked
                  ? [...value, one]
                  : value.filter((other) => other !== one),
              })
            }
          />
          {one}
        </label>
      ))}
    </fieldset>
  );
}

/** Text of a filter; what is typed counts after a pause. */
function TextField({
  field,
  value,
  change,
}: {
  field: Field;
  value: string[];
  change: (changed: Values) => void;
}) {
  const joined = value.join(", ");
  const [text, setText] = useState(joined);
  const shown = useRef(joined);
  useEffect(() => {
    // What is typed before the page has drawn the first time stays.
    if (shown.current !== joined) setText(joined);
    shown.current = joined;
  }, [joined]);
  useEffect(() => {
    if (text === joined) return;
    const timer = setTimeout(() => {
      const parts = field.isMany ? text.split(",").map((one) => one.trim()) : [text.trim()];
      change({ [field.name]: parts.filter(Boolean) });
    }, PAUSE_MILLISECONDS);
    return () => clearTimeout(timer);
  }, [text]);
  return (
    <label class="field">
      <span>{field.label}</span>
      <input
        type={field.type ?? "search"}
        value={text}
        placeholder={field.hint}
        data-first={field.name === "search" ? "true" : undefined}
        onInput={(event) => setText(event.currentTarget.value)}
      />
    </label>
  );
}
