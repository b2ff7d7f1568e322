import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { gzipSync } from "node:zlib";
import type { Plugin } from "vite";

/** Writes a compressed copy beside each text file, which the api sends to browsers that take it. */
export function gzipped(): Plugin {
  return {
    name: "gzipped",
    apply: "build",
    // Once the files are written: until then, other plugins change them.
    writeBundle({ dir }, bundle) {
      for (const name of Object.keys(bundle)) {
        if (!dir || !/\.(js|css|html|svg|json|webmanifest)$/.test(name)) continue;
        const path = join(dir, name);
        writeFileSync(`${path}.gz`, gzipSync(readFileSync(path), { level: 9 }));
      }
    },
  };
}
