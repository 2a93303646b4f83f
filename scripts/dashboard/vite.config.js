import { defineConfig } from "vite";

// Relative paths: the page is opened from wherever it is served.
export default defineConfig({
  base: "./",
  build: { target: "esnext", minify: false, outDir: "../../build/dashboard" },
  define: { "process.env": {}, global: "globalThis" },
  esbuild: { jsx: "automatic" },
});
