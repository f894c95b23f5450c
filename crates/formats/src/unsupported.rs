//! Says what a file is that no reader reads, and what to do.

use crate::contained::is_archive;

/// Number of bytes in which the keys of a JSON text are searched.
const SEARCHED_BYTES: usize = 1 << 16;
/// Maximum number of keys of an unknown JSON text that are quoted.
const MAX_KEYS: usize = 4;
/// Number of bytes from a file's start that are quoted.
const QUOTED_BYTES: usize = 8;
/// The formats that are read.
const SUPPORTED: &str =
    "a vramscope recording, an HTML export of one, a PyTorch snapshot, a trace of its profiler or an RMM log";

/// Beginnings of files, what such a file is, and what to do with it.
const MAGIC: [(&[u8], &str, &str); 17] = [
    (b"\xfd7zXZ\0", "a file packed with xz", "unpack it with `xz -d`"),
    (b"BZh", "a file packed with bzip2", "unpack it with `bunzip2`"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive", "unpack it first"),
    (b"Rar!", "a RAR archive", "unpack it first"),
    (
        b"SQLite format 3\0",
        "an SQLite database",
        "vramscope does not read databases, such as exports of Nsight Systems, yet",
    ),
    (b"\x89HDF", "an HDF5 file", SNAPSHOT),
    (b"GGUF", "the weights of a model (GGUF)", SNAPSHOT),
    (b"\x93NUMPY", "an array of NumPy", SNAPSHOT),
    (b"\x7fELF", "a program", "start it with `vramscope run`, or record it"),
    (b"\x89PNG", "a picture (PNG)", SNAPSHOT),
    (b"%PDF", "a document (PDF)", SNAPSHOT),
    (b"ARROW1", "an Arrow file", SNAPSHOT),
    (b"PAR1", "a Parquet file", "open it with a data tool, or open the recording that it was exported from"),
    (b"QDSTRM", "an unfinished report of Nsight Systems", NSYS),
    (b"QDREP", "a report of Nsight Systems", NSYS),
    (b"NVTXT", "a text of NVTX ranges", SNAPSHOT),
    (b"RIFF", "a media file", SNAPSHOT),
];
const SNAPSHOT: &str = "record the program's memory, and open the recording";
const NSYS: &str = "export it with `nsys export --type sqlite`";

/// Ends of names of files, what such a file is, and what to do with it.
const NAMES: [(&str, &str, &str); 10] = [
    (".nsys-rep", "a report of Nsight Systems", NSYS),
    (".qdrep", "a report of Nsight Systems", NSYS),
    (".qdstrm", "an unfinished report of Nsight Systems", NSYS),
    (
        ".ncu-rep",
        "a report of Nsight Compute, which has no allocations",
        "profile the program with Nsight Systems, or record its memory",
    ),
    (".xplane.pb", "an XPlane profile of XLA", "save a memory profile with jax.profiler.save_device_memory_profile"),
    (".safetensors", "the weights of a model (safetensors)", SNAPSHOT),
    (".pftrace", "a Perfetto trace", "open it at ui.perfetto.dev, or open the recording that it was exported from"),
    (
        ".perfetto-trace",
        "a Perfetto trace",
        "open it at ui.perfetto.dev, or open the recording that it was exported from",
    ),
    (".npy", "an array of NumPy", SNAPSHOT),
    (".tfevents", "events of TensorBoard", SNAPSHOT),
];

/// Keys of JSON texts, what a text with such a key is, and what to do with it.
const KEYS: [(&str, &str, &str); 10] = [
    ("nbformat", "a Jupyter notebook", "run it, and record its memory with %vramscope"),
    (
        "memoryProfilePerAllocator",
        "a memory profile of TensorFlow's profiler",
        "record the program's memory with the profiler of JAX or PyTorch",
    ),
    (
        "maxHeapByAddress",
        "a memory profile of XLA's memory viewer",
        "save a memory profile with jax.profiler.save_device_memory_profile",
    ),
    (
        "maxHeap",
        "a memory profile of XLA's memory viewer",
        "save a memory profile with jax.profiler.save_device_memory_profile",
    ),
    (
        "rocprofiler-sdk-tool",
        "a report of rocprofv3, which has no owners of memory",
        "profile the program with torch.profiler.profile(profile_memory=True)",
    ),
    ("__metadata__", "the header of a model's weights (safetensors)", SNAPSHOT),
    ("architectures", "the configuration of a model", SNAPSHOT),
    ("model_type", "the configuration of a model", SNAPSHOT),
    ("weight_map", "the index of a model's weights", SNAPSHOT),
    ("traceEvents", "a trace without memory events", "record it with torch.profiler.profile(profile_memory=True)"),
];

/// Returns a sentence that says what a file is that no reader reads, and what to do. `head` are its
/// first bytes, unpacked, `name` is its name.
///
/// ```
/// use vramscope_formats::unsupported_file;
///
/// let sentence = unsupported_file(b"\x89PNG\r\n", "memory.png");
/// assert!(sentence.starts_with("this is a picture (PNG): "));
/// ```
#[must_use]
pub fn unsupported_file(head: &[u8], name: &str) -> String {
    if head.is_empty() {
        return "the file is empty; save or copy it again".to_owned();
    }
    let lowercase = name.to_ascii_lowercase();
    let sentence = |what: &str, remedy: &str| format!("this is {what}: {remedy}");
    if let Some((_, what, remedy)) = MAGIC.iter().find(|(magic, ..)| head.starts_with(magic)) {
        return sentence(what, remedy);
    }
    let has_name = |end: &str| lowercase.ends_with(end) || lowercase.contains(&format!("{end}."));
    if let Some((_, what, remedy)) = NAMES.iter().find(|(end, ..)| has_name(end)) {
        return sentence(what, remedy);
    }
    if is_archive(head) {
        return sentence("a ZIP archive", "unpack it first");
    }
    if head.get(257..262) == Some(b"ustar") {
        return sentence("a tar archive", "unpack it with `tar xf`, and open one of its files");
    }
    if is_safetensors(head) {
        return sentence("the weights of a model (safetensors)", SNAPSHOT);
    }
    let text = String::from_utf8_lossy(&head[..head.len().min(SEARCHED_BYTES)]);
    let start = text.trim_start_matches('\u{feff}').trim_start();
    match start.chars().next() {
        Some('{' | '[') => describe_json(start),
        Some('<') => describe_markup(start),
        _ if is_table_of_rocprof(start) => sentence(
            "a table of rocprof, which has no owners of memory",
            "profile the program with torch.profiler.profile(profile_memory=True)",
        ),
        _ => format!("not {SUPPORTED} (starts with {:?})", start.chars().take(QUOTED_BYTES).collect::<String>()),
    }
}

/// Returns true for the length of a JSON header and its beginning, as in safetensors.
fn is_safetensors(head: &[u8]) -> bool {
    let length = head.get(..8).and_then(|bytes| bytes.try_into().ok()).map(u64::from_le_bytes);
    length.is_some_and(|length| length < 1 << 30) && head.get(8..10) == Some(b"{\"")
}

/// Returns true for the first line of a table of rocprof.
fn is_table_of_rocprof(text: &str) -> bool {
    let line = text.lines().next().unwrap_or_default().replace('"', "");
    ["Index,KernelName", "Kind,Agent_Id", "Name,Calls,TotalDurationNs", "Domain,Function,Process_Id"]
        .iter()
        .any(|columns| line.starts_with(columns))
}

/// Says what an HTML or XML document is.
fn describe_markup(text: &str) -> String {
    match text.contains("GPU Memory Timeline") {
        true => "this is the picture of a memory timeline of PyTorch, without its numbers: export the timeline as \
                 .json, or the profile with export_chrome_trace"
            .to_owned(),
        false => "this is an HTML or XML document without a recording: open the recording itself".to_owned(),
    }
}

/// Says what a JSON text is.
fn describe_json(text: &str) -> String {
    let known = KEYS.iter().find(|(key, ..)| text.contains(&format!("\"{key}\"")));
    if let Some((_, what, remedy)) = known {
        return format!("this is {what}: {remedy}");
    }
    let keys = outer_keys(text);
    if keys.is_empty() {
        return format!("this is JSON of another program, not {SUPPORTED}");
    }
    format!("this is JSON of another program (it has {}), not {SUPPORTED}", keys.join(", "))
}

/// Returns the first keys of a JSON object, quoted.
fn outer_keys(text: &str) -> Vec<String> {
    let (mut keys, mut depth, mut in_string, mut is_escaped, mut start) = (Vec::new(), 0, false, false, 0);
    for (at, letter) in text.char_indices() {
        match letter {
            _ if is_escaped => is_escaped = false,
            '\\' if in_string => is_escaped = true,
            '"' if in_string => {
                in_string = false;
                if depth == 1 && text[at + 1..].trim_start().starts_with(':') && text.starts_with('{') {
                    keys.push(text[start..=at].to_owned());
                }
            }
            '"' => (in_string, start) = (true, at),
            '{' | '[' if !in_string => depth += 1,
            '}' | ']' if !in_string => depth -= 1,
            _ => {}
        }
        if keys.len() == MAX_KEYS {
            break;
        }
    }
    keys.retain(|key| key.len() < 40);
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_other_programs_name_themselves() {
        let notebook = br#"{"cells": [], "metadata": {}, "nbformat": 4}"#;
        let weights = [&20u64.to_le_bytes()[..], b"{\"a\": {\"dtype\""].concat();
        let mut tar = vec![b'a'; 300];
        tar[257..262].copy_from_slice(b"ustar");
        for (head, name, expected) in [
            (&b""[..], "a.pickle", "the file is empty"),
            (b"\xfd7zXZ\0", "a.pickle.xz", "this is a file packed with xz: unpack it with `xz -d`"),
            (b"anything", "train.nsys-rep", "this is a report of Nsight Systems: export it with `nsys export"),
            (b"\x0a\x05", "host.xplane.pb", "this is an XPlane profile of XLA: "),
            (b"x", "events.out.tfevents.123", "this is events of TensorBoard: "),
            (notebook, "a.ipynb", "this is a Jupyter notebook: "),
            (&weights, "model.bin", "this is the weights of a model (safetensors): "),
            (&tar, "a.tar", "this is a tar archive: "),
            (b"\"Index\",\"KernelName\",\"gpu-id\"\n", "results.csv", "this is a table of rocprof"),
            (b"<html><title>GPU Memory Timeline HTML</title>", "a.html", "this is the picture of a memory timeline"),
            (b"<!doctype html><p>", "a.html", "this is an HTML or XML document without a recording"),
            (
                br#"{"loss": [1, {"deep": 2}], "step": 3}"#,
                "log.json",
                r#"this is JSON of another program (it has "loss", "step"), "#,
            ),
            (b"[1, 2", "a.json", "this is JSON of another program, not a vramscope recording"),
            (b"hello world", "notes.txt", "not a vramscope recording"),
        ] {
            let sentence = unsupported_file(head, name);
            assert!(sentence.starts_with(expected), "{name}: {sentence}");
        }
    }
}
