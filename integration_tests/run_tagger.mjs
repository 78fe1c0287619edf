// node run_tagger.mjs TAGGER_MODULE FILE < sentences > tags: one JSON list per line.
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";
import * as ort from "onnxruntime-web";

const [modulePath, file] = process.argv.slice(2);
const { Tagger } = await import(pathToFileURL(modulePath));
ort.env.wasm.numThreads = 1;
const tagger = await Tagger.load(ort, new Uint8Array(readFileSync(file)));
for (const line of readFileSync(0, "utf8").split("\n").slice(0, -1)) {
  console.log(JSON.stringify(await tagger.tag(line)));
}
process.exit(0); // the runtime keeps its workers
