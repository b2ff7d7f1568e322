/** Lines over time, with a table that says the same. */
import { useEffect, useRef, useState } from "preact/hooks";
import { Scrolls } from "./basics.tsx";
import "uplot/dist/uPlot.min.css";
import uPlot from "uplot";
import { theme } from "../theme.ts";

export interface Line {
  name: string;
  values: (number | null)[];
}

const HEIGHT = 240;

/** Draws lines; `times` are seconds since 1970. With `isStacked`, areas are on top of each other. */
export function Chart({
  title,
  times,
  lines,
  unit,
  format,
  isStacked = false,
  isBars = false,
}: {
  title: string;
  times: number[];
  lines: Line[];
  unit: string;
  format: (value: number) => string;
  isStacked?: boolean;
  /** One bar for each time, as for sums of a day. */
  isBars?: boolean;
}) {
  const root = useRef<HTMLDivElement>(null);
  const [isTable, setTable] = useState(false);
  const shade = theme.value;
  useEffect(() => {
    const box = root.current;
    if (!box || isTable || times.length === 0) return;
    const css = getComputedStyle(document.documentElement);
    const colour = (name: string) => css.getPropertyValue(name).trim();
    // Of stacked areas the highest is drawn first, and those below over it.
    const drawn = isStacked ? stacked(lines).reverse() : lines;
    const placeOf = (index: number) => (isStacked ? drawn.length - 1 - index : index);
    const axis = {
      stroke: colour("--muted"),
      grid: { stroke: colour("--line") },
      ticks: { stroke: colour("--line") },
    };
    const plot = new uPlot(
      {
        width: Math.max(260, box.clientWidth - 16),
        height: HEIGHT,
        legend: { live: true },
        scales: { x: { range: (_, low, high) => padded(low, high, times) } },
        axes: [
          axis,
          { ...axis, size: 70, values: (_, each) => each.map((one) => (one === null ? "" : format(one))) },
        ],
        series: [
          {},
          ...drawn.map((line, index) => ({
            label: line.name,
            stroke: colour(`--part-${placeOf(index) % 6}`),
            fill: isBars || isStacked ? colour(`--part-${placeOf(index) % 6}`) : undefined,
            width: isBars ? 0 : 2,
            paths: isBars ? uPlot.paths.bars?.({ size: [0.7, 60] }) : undefined,
            points: { show: !isBars && times.length < 3 },
            value: (_: uPlot, __: number | null, ___: number, at: number | null) => {
              const value = at === null ? null : lines[placeOf(index)]?.values[at];
              return value === null || value === undefined ? "-" : `${format(value)} ${unit}`;
            },
          })),
        ],
      },
      [times, ...drawn.map((one) => one.values)] as uPlot.AlignedData,
      box,
    );
    const watch = new ResizeObserver(() =>
      plot.setSize({ width: Math.max(260, box.clientWidth - 16), height: HEIGHT }),
    );
    watch.observe(box);
    return () => {
      watch.disconnect();
      plot.destroy();
    };
  }, [times, lines, shade, isTable, isStacked, isBars]);
  return (
    <figure class="figure">
      <figcaption class="toolbar">
        <span>{unit ? `${title}, ${unit}` : title}</span>
        <button type="button" class="quiet" onClick={() => setTable(!isTable)}>
          {isTable ? "Show the chart" : "Show a table"}
        </button>
      </figcaption>
      {isTable ? (
        <Numbers times={times} lines={lines} format={format} />
      ) : (
        <div class="chart" ref={root} role="img" aria-label={`${title}: ${summary(lines, format, unit)}`}>
          {times.length === 0 && <p class="empty">There is nothing to show for this time yet.</p>}
        </div>
      )}
    </figure>
  );
}

function Numbers({
  times,
  lines,
  format,
}: {
  times: number[];
  lines: Line[];
  format: (value: number) => string;
}) {
  return (
    <Scrolls label="Values of the chart" isTall>
      <table class="plain">
        <thead>
          <tr>
            <th scope="col">Time</th>
            {lines.map((one) => (
              <th scope="col" class="number" key={one.name}>
                {one.name}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {times.map((at, index) => (
            <tr key={at}>
              <th scope="row">{new Date(at * 1000).toLocaleString("sv")}</th>
              {lines.map((one) => {
                const value = one.values[index];
                return (
                  <td class="number" key={one.name}>
                    {value === null || value === undefined ? "-" : format(value)}
                  </td>
                );
              })}
            </tr>
          ))}
        </tbody>
      </table>
    </Scrolls>
  );
}

/** Returns the times at the ends of the chart: half a step beyond the first and the last one. */
function padded(low: number, high: number, times: number[]): [number, number] {
  const step = times.length > 1 ? ((times.at(-1) ?? 0) - (times[0] ?? 0)) / (times.length - 1) : 86_400;
  return [low - step / 2, high + step / 2];
}

/** Returns lines of which each is on top of those before it. */
export function stacked(lines: Line[]): Line[] {
  const sums: number[] = [];
  const found = lines.map((line) => ({
    name: line.name,
    values: line.values.map((value, index) => {
      sums[index] = (sums[index] ?? 0) + (value ?? 0);
      return sums[index] ?? 0;
    }),
  }));
  return found;
}

function summary(lines: Line[], format: (value: number) => string, unit: string): string {
  return lines
    .map((one) => {
      const last = one.values.findLast((value) => value !== null);
      return `${one.name} ${last === undefined || last === null ? "unknown" : `${format(last)} ${unit}`}`;
    })
    .join(", ");
}
