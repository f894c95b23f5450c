//! Scripts that measure inside the page. Each returns a list of milliseconds unless noted.

/// Opens the file repeatedly: from the call to the frame after its promise.
pub(crate) const OPEN: &str = "
    const frame = () => new Promise(requestAnimationFrame);
    const times = [];
    for (let i = 0; i < arguments[0]; i++) {
        await frame();
        const start = performance.now();
        await window.vramscope.open(window.benchFile);
        await frame();
        times.push(performance.now() - start);
    }
    return times;";

/// Drops the file: until the whole recording is usable.
pub(crate) const DROP: &str = "
    const dataTransfer = new DataTransfer();
    dataTransfer.items.add(window.benchFile);
    const target = document.elementFromPoint(innerWidth / 2, innerHeight / 2);
    const frame = () => new Promise(requestAnimationFrame);
    const start = performance.now();
    for (const type of ['dragenter', 'dragover', 'drop']) {
        target.dispatchEvent(new DragEvent(type, { dataTransfer, bubbles: true, cancelable: true, composed: true }));
    }
    const name = window.benchFile.name.split('.')[0];
    const isOpen = state => state.source.includes(name) && state.events === arguments[0];
    while (!isOpen(window.vramscope.state())) await frame();
    await frame();
    return [performance.now() - start];";

/// Seeks to random events in sequence: from the call to its promise, when the moment is shown.
/// Returns `[times, frames]`, where `frames` are the durations of the engine's own work.
pub(crate) const SEEK: &str = "
    const events = window.vramscope.state().events;
    const times = [], frames = [];
    let random = 1;
    for (let i = 0; i < arguments[0]; i++) {
        random = (random * 48271) % 2147483647;
        const event = random % (events + 1);
        const start = performance.now();
        await window.vramscope.seek(event);
        times.push(performance.now() - start);
        frames.push(window.vramscope.state().frame_ms);
        if (window.vramscope.state().event !== event) throw new Error(`asked for ${event}`);
    }
    return [times, frames];";

/// Drags the pointer along the timeline's axis and back, a step every frame: `[gaps, frames]`, the
/// time between frames and the engine's own work a frame.
pub(crate) const SCRUB: &str = "
    const timeline = document.getElementById('timeline');
    const box = timeline.getBoundingClientRect();
    const frame = () => new Promise(requestAnimationFrame);
    const point = (type, part) => timeline.dispatchEvent(new PointerEvent(type, {
        clientX: box.left + 1 + (box.width - 2) * part, clientY: box.bottom - 5,
        pointerId: 1, button: 0, buttons: 1, isPrimary: true, bubbles: true, cancelable: true, composed: true,
    }));
    const gaps = [], frames = [];
    const moments = new Set();
    // Small files are analyzed when they are opened; scrubbing is measured after that.
    while (document.querySelector('.findings')?.textContent.includes('Looking for problems')) await frame();
    point('pointerdown', 0);
    const start = await frame();
    let before = start;
    // A busy machine draws few frames and moments: it goes on until there are enough of them.
    while (before - start < arguments[0] || frames.length < 20 || moments.size < 5) {
        const turn = (before - start) / arguments[0] * 2 % 2;
        point('pointermove', turn < 1 ? turn : 2 - turn);
        const now = await frame();
        gaps.push(now - before);
        before = now;
        moments.add(window.vramscope.state().event);
        frames.push(window.vramscope.state().frame_ms);
    }
    point('pointerup', 0);
    return [gaps, frames];";

/// Opens the page's own recording by URL repeatedly, over the loopback interface: from the call to
/// the frame after its promise, when timeline and map are shown.
pub(crate) const OPEN_URL: &str = "
    const url = new URLSearchParams(location.search).get('trace');
    const frame = () => new Promise(requestAnimationFrame);
    const times = [];
    for (let i = 0; i < arguments[0]; i++) {
        await frame();
        const start = performance.now();
        await window.vramscope.open(url);
        await frame();
        times.push(performance.now() - start);
    }
    return times;";

/// Opens the page's own recording by URL, shows every view once and waits for its first rows.
/// Returns `[name, time]` for the opening, for each view, and for all together.
pub(crate) const VIEWS: &str = "
    const url = new URLSearchParams(location.search).get('trace');
    const begin = performance.now();
    await window.vramscope.open(url);
    const times = [['open', performance.now() - begin]];
    for (const name of window.vramscope.views()) {
        const start = performance.now();
        await window.vramscope.show(name);
        // A view that needs a second recording says so.
        await window.vramscope.rows(name, { limit: 20 }).catch(() => []);
        times.push([name, performance.now() - start]);
    }
    return [...times, ['all', performance.now() - begin]];";

/// Sorts the allocations by each of several columns, then filters them: `[sorted, filtered]`.
pub(crate) const SORT: &str = "
    const ask = async query => {
        const start = performance.now();
        await window.vramscope.rows('list', { mode: 'all', limit: 50, ...query });
        return performance.now() - start;
    };
    const sorted = [], filtered = [];
    await ask({});
    for (let i = 0; i < arguments[0]; i++) {
        for (const sort of ['bytes', 'lifetime', 'allocated_at']) sorted.push(await ask({ sort }));
        for (const filter of ['>100MiB', '>1KiB', 'train']) filtered.push(await ask({ filter }));
    }
    return [sorted, filtered];";

/// Zooms the timeline with the wheel, or moves it if the second argument is true: from the wheel
/// event until it is shown. Returns `[times, frames]`.
pub(crate) const ZOOM: &str = "
    const timeline = document.getElementById('timeline');
    const box = timeline.getBoundingClientRect();
    const frame = () => new Promise(requestAnimationFrame);
    const times = [], frames = [];
    for (let i = 0; i < arguments[0]; i++) {
        await frame();
        const start = performance.now();
        timeline.dispatchEvent(new WheelEvent('wheel', {
            clientX: box.left + box.width / 3, clientY: box.top + 9, deltaY: i % 20 < 10 ? -300 : 300,
            shiftKey: arguments[1], bubbles: true, cancelable: true,
        }));
        await window.vramscope.seek(window.vramscope.state().event);
        times.push(performance.now() - start);
        frames.push(window.vramscope.state().frame_ms);
    }
    return [times, frames];";

/// Zooms the map of the device with the wheel: from the wheel event until it is shown. Returns
/// `[times, frames]`.
pub(crate) const MAP_ZOOM: &str = "
    const isMap = side => document.querySelector(`#controls-${side} select`)?.value === 'device';
    const map = document.getElementById(`picture-${['left', 'right'].find(isMap)}`);
    const box = map.getBoundingClientRect();
    const frame = () => new Promise(requestAnimationFrame);
    const times = [], frames = [];
    for (let i = 0; i < arguments[0]; i++) {
        await frame();
        const start = performance.now();
        map.dispatchEvent(new WheelEvent('wheel', {
            clientX: box.left + box.width / 3, clientY: box.top + box.height / 2, deltaY: i % 20 < 10 ? -300 : 300,
            bubbles: true, cancelable: true,
        }));
        await window.vramscope.seek(window.vramscope.state().event);
        times.push(performance.now() - start);
        frames.push(window.vramscope.state().frame_ms);
    }
    return [times, frames];";

/// Moves the pointer from one element that stands for memory to the next: until its memory is lit
/// in all pictures. Returns `[times, frames]`.
pub(crate) const HOVER: &str = "
    const linked = [...document.querySelectorAll('[data-light]')];
    const texts = new Set(linked.map(element => element.dataset.light));
    if (texts.size < 2) throw new Error(`${texts.size} elements stand for memory`);
    const frame = () => new Promise(requestAnimationFrame);
    const over = element => element.dispatchEvent(new PointerEvent('pointerover', { bubbles: true, composed: true }));
    const times = [], frames = [];
    let last;
    for (let i = 0; times.length < arguments[0]; i++) {
        const now = document.querySelectorAll('[data-light]');
        const element = now[i % now.length];
        if (element.dataset.light === last) continue;
        last = element.dataset.light;
        await frame();
        const start = performance.now();
        const lit = new Promise(done => new MutationObserver((_, observer) => {
            if (!document.querySelector(`.lit[data-light='${last}']`)) return;
            observer.disconnect();
            done();
        }).observe(document.body, { attributeFilter: ['class'], subtree: true }));
        over(element);
        await lit;
        times.push(performance.now() - start);
        frames.push(window.vramscope.state().frame_ms);
    }
    over(document.getElementById('timeline-section'));
    return [times, frames];";

/// Begins to record tasks of 50 ms and more on the main thread, with those since the page opened.
pub(crate) const WATCH_TASKS: &str = "
    window.benchTasks = [];
    new PerformanceObserver(list => list.getEntries().forEach(entry => window.benchTasks.push(entry.duration)))
        .observe({ type: 'longtask', buffered: true });
    return [];";

/// Returns the tasks recorded since the last call.
pub(crate) const TASKS: &str = "
    await new Promise(resolve => setTimeout(resolve, 200));
    const tasks = window.benchTasks;
    window.benchTasks = [];
    return tasks;";

/// Memory in bytes of the page's scripts and of the engine's wasm.
pub(crate) const MEMORY: &str = "
    return [performance.memory.usedJSHeapSize, window.vramscope.state().memory_bytes];";

/// Measures the wasm module without a page; the loader `wasm_bindgen` must precede this script.
/// Arguments: the module's bytes, the number of opens, the number of seeks.
pub(crate) const WASM: &str = "
    const bytes = text => Uint8Array.from(text, character => character.charCodeAt(0));
    const exports = await wasm_bindgen({ module_or_path: bytes(arguments[0]) });
    const recording = new Uint8Array(await window.benchFile.arrayBuffer());
    const it = new wasm_bindgen.Measured(recording);
    const time = (count, action) => Array.from({ length: count }, () => {
        const start = performance.now();
        action();
        return performance.now() - start;
    });
    let events = 0, read = 0;
    const decoded = time(arguments[1], () => { events = it.take_in(); });
    const played = time(arguments[1], () => it.play());
    const opened = time(arguments[1], () => { read = it.open(); });
    let random = 1;
    const seeks = time(arguments[2], () => {
        random = (random * 48271) % 2147483647;
        it.seek(random % (events + 1));
    });
    return { events, read, decoded, played, opened, seeks, memory: exports.memory.buffer.byteLength };";
