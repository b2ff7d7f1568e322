import { defineConfig } from "vitest/config";
import { gzipped } from "./gzipped.ts";

/** The api that `npm run dev` passes calls to, and the key that it adds to them. */
const api = process.env.TRAINMASTER_URL ?? "http://127.0.0.1:8470";
const key = process.env.TRAINMASTER_API_KEY;
const calls = { target: api, headers: key ? { Authorization: `Bearer ${key}` } : undefined };

export default defineConfig({
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  plugins: [gzipped()],
  build: {
    outDir: "../trainmaster_dispatcher/web/assets",
    emptyOutDir: true,
    assetsDir: "static",
    // The policy for content lets no data addresses in but images: files stay files.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    target: "es2022",
  },
  server: { proxy: { "/v1": calls, "/docs": calls, "/openapi.json": calls } },
  test: { environment: "node", include: ["tests/**/*.test.ts"] },
});
