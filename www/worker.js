// Runs the engine in a worker: it gets the compiled viewer and its end of the channel.
import init, { start_engine } from "./pkg/vramscope_viewer.js";

// Starts a worker that converts a file of another format, and is ended when the file is converted.
self.startImporter = () => new Worker(new URL("./importer.js", self.location.href), { type: "module" });

onmessage = async ({ data: { module, port } }) => {
  await init({ module_or_path: module });
  start_engine(port);
};
