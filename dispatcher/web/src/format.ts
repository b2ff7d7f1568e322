/** Amounts, times and money as people read them: the same texts as those of the command line. */

const UNITS: [string, number][] = [
  ["d", 86400],
  ["h", 3600],
  ["m", 60],
  ["s", 1],
];

/** Returns a duration with at most two units: 1h30m, 45s, 0.3s. */
export function duration(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined || Number.isNaN(seconds)) return "-";
  if (seconds <= 0) return "0s";
  if (seconds < 10) return `${Number(seconds.toFixed(1))}s`;
  let rest = Math.round(seconds);
  const parts: string[] = [];
  for (const [unit, size] of UNITS) {
    if (rest >= size) {
      parts.push(`${Math.floor(rest / size)}${unit}`);
      rest %= size;
    }
  }
  return parts.slice(0, 2).join("");
}

/** Returns the seconds between two times, or until `now` where the second one is missing. */
export function secondsBetween(
  begin: string | undefined | null,
  end: string | undefined | null,
  now: number,
): number | null {
  if (!begin) return null;
  return ((end ? Date.parse(end) : now) - Date.parse(begin)) / 1000;
}

const STEPS: [string, number][] = [
  ["Ti", 2 ** 40],
  ["Gi", 2 ** 30],
  ["Mi", 2 ** 20],
  ["Ki", 2 ** 10],
];

/** Returns bytes as people read them: 2**30 is 1Gi. */
export function bytes(amount: number | null | undefined): string {
  if (amount === null || amount === undefined) return "-";
  for (const [unit, size] of STEPS) if (amount >= size) return `${Number((amount / size).toFixed(2))}${unit}`;
  return String(amount);
}

const SUFFIXES: Record<string, number> = {
  m: 1e-3,
  k: 1e3,
  M: 1e6,
  G: 1e9,
  T: 1e12,
  Ki: 2 ** 10,
  Mi: 2 ** 20,
  Gi: 2 ** 30,
  Ti: 2 ** 40,
};

/** Returns the number that a quantity is, such as 1.5Gi or 250m; 0 for what is none. */
export function quantity(text: string | number | null | undefined): number {
  if (text === null || text === undefined) return 0;
  const found = /^([0-9.]+)([a-zA-Z]*)$/.exec(String(text));
  return found ? Number(found[1]) * (SUFFIXES[found[2] ?? ""] ?? 1) : 0;
}

/** Returns an amount of a resource as people read it. */
export function amount(resource: string, value: number): string {
  return /^(memory|ephemeral-storage|hugepages)/.test(resource)
    ? bytes(value)
    : String(Number(value.toFixed(3)));
}

export function count(value: number): string {
  return new Intl.NumberFormat("en").format(value);
}

export function percent(part: number, whole: number): string {
  return whole > 0 ? `${Math.round((100 * part) / whole)}%` : "-";
}

/** Returns percent as people read them. */
export function percentText(value: number | null | undefined): string {
  return value === null || value === undefined ? "-" : `${Math.round(value)}%`;
}

/** Returns money with its currency: two digits, more for less than a cent. */
export function money(value: number | string | null | undefined, currency: string): string {
  if (value === null || value === undefined) return "-";
  const number = Number(value);
  const digits = number !== 0 && Math.abs(number) < 0.01 ? 4 : 2;
  return `${number.toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: digits })} ${currency}`;
}

/** Returns a time in the viewer's zone. */
export function moment(text: string | null | undefined): string {
  if (!text) return "-";
  const at = new Date(text);
  const sameDay = at.toDateString() === new Date().toDateString();
  const time = at.toLocaleTimeString([], {
    hour: "2-digit",
    minute: "2-digit",
    second: "2-digit",
    hour12: false,
  });
  return sameDay ? time : `${at.toLocaleDateString("sv")} ${time}`;
}

/** Returns a time in UTC, for titles. */
export function utc(text: string): string {
  return `${new Date(text).toISOString().replace("T", " ").slice(0, 19)} UTC`;
}

/** Returns an amount that the API has as a whole number: thousandths of CPU, bytes of memory. */
export function wholeAmount(resource: string, value: number): string {
  return resource === "cpu" || resource.startsWith("part:") ? String(value / 1000) : amount(resource, value);
}
