import { gzipSync } from "node:zlib";
import type { Plugin } from "vite";

/** Writes a compressed copy beside each text file, which the api sends to browsers that take it. */
export function gzipped(): Plugin {
  return {
    name: "gzipped",
    apply: "build",
    enforce: "post",
    generateBundle(_, bundle) {
      for (const [name, file] of Object.entries(bundle)) {
        const source = file.type === "chunk" ? file.code : file.source;
        if (/\.(js|css|html|svg|json|webmanifest)$/.test(name)) {
          this.emitFile({ type: "asset", fileName: `${name}.gz`, source: gzipSync(source, { level: 9 }) });
        }
      }
    },
  };
}
