import { expect, test } from "vitest";
import { pieces } from "../src/ansi.ts";

test("colours are pieces of text, and nothing else of a terminal has an effect", () => {
  expect(pieces("a\u001b[31;1mb\u001b[0mc")).toEqual([
    { text: "a" },
    { text: "b", colour: 1, isBold: true },
    { text: "c" },
  ]);
  expect(pieces("\u001b]8;;http://evil.example\u0007link\u001b]8;;\u0007\u001b[2J\u001b[1;1Hx")).toEqual([
    { text: "link" },
    { text: "x" },
  ]);
});

test("control characters, and those that turn the direction of text, are left out", () => {
  const text = pieces("a\u0000b\u202ec\u0007\td\n").map((one) => one.text);
  expect(text.join("")).toBe("abc\td\n");
});

test("HTML stays text", () => {
  expect(pieces("<script>alert(1)</script>")).toEqual([{ text: "<script>alert(1)</script>" }]);
});

test("of a line that was drawn over, the last state is shown", () => {
  expect(pieces("10%\r20%\r30%\n")).toEqual([{ text: "30%\n" }]);
});
