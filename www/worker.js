// Runs the engine in a worker. The worker's message has the compiled viewer and the engine's end of
// the channel to the page.
import init, { start_engine } from "./pkg/vramscope_viewer.js";

// These functions start workers for long computations: one that converts a file of another format,
// and one that computes over the whole recording. The engine ends the workers.
const starter = script => () => new Worker(new URL(script, self.location.href), { type: "module" });
self.startImporter = starter("./importer.js");
self.startAnalyzer = starter("./analyzer.js");

onmessage = async ({ data: { module, port } }) => {
  await init({ module_or_path: module });
  start_engine(port);
};
