/** A table of any length: only the rows in sight are in the document. */
import { elementScroll, observeElementOffset, observeElementRect, Virtualizer } from "@tanstack/virtual-core";
import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useReducer, useRef, useState } from "preact/hooks";

export interface Column<Row> {
  name: string;
  /** The text of the heading. */
  heading: string;
  cell: (row: Row) => ComponentChildren;
  /** By what rows are sorted; without it they are not by this column. */
  sortBy?: (row: Row) => string | number;
  /** Right-aligned, with digits of one width. */
  isNumber?: boolean;
  /** The width in a grid: fractions, or characters such as 12ch. */
  width?: string;
  /** The widest one on narrow screens. */
  isMain?: boolean;
  /** Left out on narrow screens. */
  isMinor?: boolean;
}

interface Selection {
  chosen: ReadonlySet<string>;
  choose: (chosen: ReadonlySet<string>) => void;
}

interface TableTerms<Row> {
  label: string;
  columns: Column<Row>[];
  rows: Row[];
  keyOf: (row: Row) => string;
  /** What the row is called, for its check box. */
  nameOf?: (row: Row) => string;
  selection?: Selection;
  /** Called as the end of the rows comes into sight. */
  reachEnd?: () => void;
  /** The height of the table in the window, such as 70vh; without it, that of all rows. */
  height?: string;
  empty?: ComponentChildren;
}

const ROW_HEIGHT = 36;
const OVERSCAN = 12;

function useVirtualRows(count: number, root: { current: HTMLDivElement | null }) {
  const [, draw] = useReducer((turn: number) => turn + 1, 0);
  const [virtualizer] = useState(
    () =>
      new Virtualizer<HTMLDivElement, Element>({
        count,
        getScrollElement: () => root.current,
        estimateSize: () => ROW_HEIGHT,
        overscan: OVERSCAN,
        observeElementRect,
        observeElementOffset,
        scrollToFn: elementScroll,
        onChange: () => draw(0),
        initialRect: { width: 800, height: 600 },
      }),
  );
  virtualizer.setOptions({ ...virtualizer.options, count, getScrollElement: () => root.current });
  useEffect(() => virtualizer._didMount(), [virtualizer]);
  useLayoutEffect(() => virtualizer._willUpdate());
  return virtualizer;
}

export function Table<Row>(terms: TableTerms<Row>) {
  const { columns, rows, keyOf, selection, height, reachEnd } = terms;
  const root = useRef<HTMLDivElement>(null);
  const [sorted, setSorted] = useState<{ name: string; isDown: boolean } | null>(null);
  const shown = sortedRows(rows, columns, sorted);
  const virtualizer = useVirtualRows(shown.length, root);
  const items = height
    ? virtualizer.getVirtualItems()
    : shown.map((_, index) => ({ index, start: index * ROW_HEIGHT, key: index }));
  const lastInSight = items.at(-1)?.index ?? 0;
  useEffect(() => {
    if (reachEnd && shown.length > 0 && lastInSight >= shown.length - OVERSCAN) reachEnd();
  }, [lastInSight, shown.length, reachEnd]);

  const grid = [
    ...(selection ? ["2.5rem"] : []),
    ...columns.map((one) => one.width ?? "minmax(8ch, 1fr)"),
  ].join(" ");
  const every = shown.map(keyOf);
  const areAllChosen = every.length > 0 && every.every((key) => selection?.chosen.has(key));
  const last = useRef<number | null>(null);
  const choose = (index: number, isRange: boolean) => {
    if (!selection) return;
    const next = new Set(selection.chosen);
    const from = isRange && last.current !== null ? last.current : index;
    const on = !next.has(every[index] ?? "");
    for (let at = Math.min(from, index); at <= Math.max(from, index); at += 1) {
      const key = every[at];
      if (key !== undefined) on ? next.add(key) : next.delete(key);
    }
    last.current = index;
    selection.choose(next);
  };

  return (
    <div
      class="table"
      ref={root}
      style={height ? { height } : undefined}
      tabIndex={height ? 0 : undefined}
      role="region"
      aria-label={terms.label}
    >
      <div role="table" aria-label={terms.label} aria-rowcount={shown.length + 1} class="rows">
        <div role="row" aria-rowindex={1} class="row head" style={{ gridTemplateColumns: grid }}>
          {selection && (
            <span role="columnheader" class="choice">
              <input
                type="checkbox"
                aria-label="Select all rows"
                checked={areAllChosen}
                onChange={() => selection.choose(areAllChosen ? new Set() : new Set(every))}
              />
            </span>
          )}
          {columns.map((column) => (
            <Heading key={column.name} column={column} sorted={sorted} sort={setSorted} />
          ))}
        </div>
        <div role="rowgroup" style={{ height: `${shown.length * ROW_HEIGHT}px` }} class="body">
          {items.map(({ index, start }) => {
            const row = shown[index];
            if (row === undefined) return null;
            const key = keyOf(row);
            const isChosen = selection?.chosen.has(key) ?? false;
            return (
              <div
                role="row"
                key={key}
                aria-rowindex={index + 2}
                aria-selected={selection ? isChosen : undefined}
                class={isChosen ? "row chosen" : "row"}
                style={{
                  gridTemplateColumns: grid,
                  transform: `translateY(${start}px)`,
                  height: `${ROW_HEIGHT}px`,
                }}
              >
                {selection && (
                  <span role="cell" class="choice">
                    <input
                      type="checkbox"
                      aria-label={`Select ${terms.nameOf?.(row) ?? key}`}
                      checked={isChosen}
                      onClick={(event) => choose(index, event.shiftKey)}
                    />
                  </span>
                )}
                {columns.map((column) => (
                  <span role="cell" key={column.name} class={classOf(column)}>
                    {column.cell(row)}
                  </span>
                ))}
              </div>
            );
          })}
        </div>
      </div>
      {shown.length === 0 && terms.empty}
    </div>
  );
}

function classOf<Row>(column: Column<Row>): string {
  return [column.isNumber && "number", column.isMinor && "minor", column.isMain && "main"]
    .filter(Boolean)
    .join(" ");
}

function Heading<Row>({
  column,
  sorted,
  sort,
}: {
  column: Column<Row>;
  sorted: { name: string; isDown: boolean } | null;
  sort: (by: { name: string; isDown: boolean } | null) => void;
}) {
  const isMine = sorted?.name === column.name;
  const next = !isMine
    ? { name: column.name, isDown: false }
    : sorted?.isDown
      ? null
      : { name: column.name, isDown: true };
  return (
    <span
      role="columnheader"
      class={classOf(column)}
      aria-sort={isMine ? (sorted?.isDown ? "descending" : "ascending") : undefined}
    >
      {column.sortBy ? (
        <button type="button" class="sort" onClick={() => sort(next)}>
          {column.heading}
          <span aria-hidden="true">{isMine ? (sorted?.isDown ? " ↓" : " ↑") : ""}</span>
        </button>
      ) : (
        column.heading
      )}
    </span>
  );
}

/** Returns rows in the order of a column; equal ones stay in theirs. */
export function sortedRows<Row>(
  rows: Row[],
  columns: Column<Row>[],
  sorted: { name: string; isDown: boolean } | null,
): Row[] {
  const by = columns.find((one) => one.name === sorted?.name)?.sortBy;
  if (!by || !sorted) return rows;
  const sign = sorted.isDown ? -1 : 1;
  return [...rows].sort((one, other) => {
    const [a, b] = [by(one), by(other)];
    return (
      sign * (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b)))
    );
  });
}
