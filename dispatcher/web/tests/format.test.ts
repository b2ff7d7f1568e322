import { expect, test } from "vitest";
import { bytes, duration, money, percent, quantity, wholeAmount } from "../src/format.ts";

test.each([
  [0.34, "0.3s"],
  [9, "9s"],
  [45.4, "45s"],
  [5400, "1h30m"],
  [90_061, "1d1h"],
  [-3, "0s"],
])("a duration of %d seconds is %s, as the command line writes it", (seconds, text) => {
  expect(duration(seconds)).toBe(text);
});

test("what is not known is no amount", () => {
  expect([duration(null), duration(Number.NaN), bytes(undefined), money(null, "EUR"), percent(1, 0)]).toEqual(
    ["-", "-", "-", "-", "-"],
  );
});

test("amounts are those of the API", () => {
  expect(bytes(1.5 * 2 ** 30)).toBe("1.5Gi");
  expect([quantity("250m"), quantity("2Gi"), quantity("16"), quantity("nothing")]).toEqual([
    0.25,
    2 ** 31,
    16,
    0,
  ]);
  expect([
    wholeAmount("cpu", 1500),
    wholeAmount("memory", 2 ** 20),
    wholeAmount("nvidia.com/gpu", 8),
  ]).toEqual(["1.5", "1Mi", "8"]);
});

test("money has two digits, and more for less than a cent", () => {
  expect([money("1234.5", "EUR"), money(0.0042, "EUR"), money(0, "EUR")]).toEqual([
    "1,234.50 EUR",
    "0.0042 EUR",
    "0.00 EUR",
  ]);
});
