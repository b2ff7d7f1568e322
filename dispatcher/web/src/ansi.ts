/** Output of programs as text with colours: no other control sequence has an effect, and none is shown. */

export interface Piece {
  text: string;
  colour?: number;
  isBold?: boolean;
}

// biome-ignore lint/suspicious/noControlCharactersInRegex: control sequences begin with one
const SEQUENCE = /\u001b(?:\[([0-9;?]*)([@-~])|\][^\u0007\u001b]*(?:\u0007|\u001b\\)?|[@-Z\\^_])/g;
// biome-ignore lint/suspicious/noControlCharactersInRegex: those that have no meaning on a page
const CONTROL = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069]/g;

/** Returns pieces of text with the colours 0 to 15 that a terminal would give them. */
export function pieces(text: string): Piece[] {
  const found: Piece[] = [];
  let colour: number | undefined;
  let isBold = false;
  let at = 0;
  const add = (part: string) => {
    const clean = part
      .replace(/\r\n/g, "\n")
      .replace(/[^\n]*\r(?!\n)/g, "")
      .replace(CONTROL, "");
    if (clean)
      found.push({ text: clean, ...(colour !== undefined && { colour }), ...(isBold && { isBold }) });
  };
  for (const match of text.matchAll(SEQUENCE)) {
    add(text.slice(at, match.index));
    at = match.index + match[0].length;
    if (match[2] !== "m") continue;
    for (const code of (match[1] || "0").split(";").map(Number)) {
      if (code === 0) [colour, isBold] = [undefined, false];
      else if (code === 1) isBold = true;
      else if (code === 22) isBold = false;
      else if (code >= 30 && code <= 37) colour = code - 30;
      else if (code >= 90 && code <= 97) colour = code - 82;
      else if (code === 39) colour = undefined;
      else if (code === 38 || code === 48) break;
    }
  }
  add(text.slice(at));
  return found;
}
