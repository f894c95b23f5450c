// Caches the files of the page, so that the page opens without its server. While the server
// answers, its files are used; recordings and everything else are left to the browser.

// The version of the page: the build replaces it by a checksum of the page's files.
const VERSION = "development";
const PREFIX = "vramscope-";
const FILES = [
  "analyzer.js",
  "dom.js",
  "gallery.css",
  "gallery.js",
  "icon.svg",
  "importer.js",
  "index.html",
  "main.js",
  "manifest.webmanifest",
  "panels.css",
  "pkg/vramscope_analyzer.js",
  "pkg/vramscope_analyzer_bg.wasm",
  "pkg/vramscope_importer.js",
  "pkg/vramscope_importer_bg.wasm",
  "pkg/vramscope_viewer.js",
  "pkg/vramscope_viewer_bg.wasm",
  "pkg/vramscope_viewer_later_bg.wasm",
  "start.js",
  "style.css",
  "worker.js",
];
// The gallery's list of recordings, and the folder that contains the list and the recordings. A
// server may have no gallery.
const GALLERY = "examples/gallery.json";
const GALLERY_FOLDER = "examples/";
// The folder of the page on the server.
const folder = new URL("./", self.location).href;

self.addEventListener("install", event => {
  self.skipWaiting();
  // Either all files of this version are cached, or none.
  event.waitUntil(caches.open(PREFIX + VERSION).then(cache =>
    cache.addAll(FILES).then(() => addGallery(cache).catch(() => {}))));
});

// Adds the gallery's list and recordings to a cache.
const addGallery = async cache => {
  await cache.add(GALLERY);
  const { recordings } = await (await cache.match(GALLERY)).json();
  const files = recordings.flatMap(({ files }) => files.map(file => `${GALLERY_FOLDER}${file}.vram`));
  await Promise.allSettled(files.map(file => cache.add(file)));
};

self.addEventListener("activate", event => {
  const isOld = name => name.startsWith(PREFIX) && name !== PREFIX + VERSION;
  event.waitUntil(caches.keys()
    .then(names => Promise.all(names.filter(isOld).map(name => caches.delete(name))))
    .then(() => self.clients.claim()));
});

// Returns true for files that are cached: the page's and the gallery's.
const isKept = file => FILES.includes(file) || file?.startsWith(GALLERY_FOLDER);

self.addEventListener("fetch", event => {
  const { request } = event;
  // Without parameters, which may contain a token or the name of a recording.
  const url = request.url.split(/[?#]/)[0];
  const name = url.startsWith(folder) ? url.slice(folder.length) : undefined;
  const file = name === "" && request.mode === "navigate" ? "index.html" : name;
  if (request.method !== "GET" || !isKept(file)) return;
  event.respondWith(fetch(request).catch(async error => {
    const kept = await caches.match(folder + file, { cacheName: PREFIX + VERSION, ignoreVary: true });
    if (!kept) throw error;
    return kept;
  }));
});
