// Runs the engine in a worker: it gets the compiled viewer and its end of the channel.
import init, { start_engine } from "./pkg/vramscope_viewer.js";

// Start workers for long computations, which the engine ends: one that converts a file of another
// format, and one that computes over the whole recording.
const starter = script => () => new Worker(new URL(script, self.location.href), { type: "module" });
self.startImporter = starter("./importer.js");
self.startAnalyzer = starter("./analyzer.js");

onmessage = async ({ data: { module, port } }) => {
  await init({ module_or_path: module });
  start_engine(port);
};
