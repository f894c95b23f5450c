//! Stores that fail, stores that two servers write, and tampered archives.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    ObjectStoreExt as _, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

use super::harness::*;
use crate::archive::layout::{MANIFEST, recording_part_name};
use crate::archive::manifest::Manifest;
use crate::archive::store::ArchiveStore;
use crate::archive::{ArchiveError, ArchiveOptions, ArchiveReader, ArchiveWriter};

/// A store in memory whose writes fail at times.
#[derive(Debug, Default)]
struct FailingStore {
    objects: InMemory,
    /// True while every write fails.
    is_down: AtomicBool,
    /// Every write whose number is divisible by this number fails; 0: no write fails.
    failing: u64,
    /// True if a failing write is stored, and only its answer is lost.
    loses_answers: bool,
    writes: AtomicU64,
}

impl fmt::Display for FailingStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("failing store")
    }
}

#[async_trait]
impl ObjectStore for FailingStore {
    async fn put_opts(&self, path: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        let number = self.writes.fetch_add(1, Ordering::Relaxed) + 1;
        let fails = self.failing > 0 && number.is_multiple_of(self.failing);
        if self.is_down.load(Ordering::Relaxed) || fails {
            if self.loses_answers {
                self.objects.put_opts(path, payload, options).await?;
            }
            return Err(Error::Generic { store: "failing", source: "the connection was lost".into() });
        }
        self.objects.put_opts(path, payload, options).await
    }

    async fn put_multipart_opts(&self, _: &Path, _: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        unimplemented_operation()
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        self.objects.get_opts(path, options).await
    }

    async fn get_ranges(&self, path: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.objects.get_ranges(path, ranges).await
    }

    fn delete_stream(&self, paths: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.objects.delete_stream(paths)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.objects.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.objects.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        unimplemented_operation()
    }
}

fn unimplemented_operation<T>() -> Result<T> {
    Err(Error::NotImplemented { operation: "the operation".to_owned(), implementer: "failing store".to_owned() })
}

#[test]
fn failed_writes_are_repeated() {
    for loses_answers in [false, true] {
        let failing = Arc::new(FailingStore { failing: 5, loses_answers, ..FailingStore::default() });
        let store = ArchiveStore::new(failing.clone(), "failing".to_owned());
        let writer = writer(&store, small_parts());
        let mut program = Program::new(0);
        let archive = writer.process(&program.process).expect("a valid process");
        let chunks = program.run(8_000);
        archive.push(&program.bytes(chunks)).expect("valid chunks");
        let summary = writer.finish().expect("everything is stored");
        assert_eq!(summary.lost_objects, 0);
        assert!(failing.writes.load(Ordering::Relaxed) >= 5);
        let reader = reader(&store);
        let numbers: Vec<_> = reader.ranks()[0].parts.iter().map(|part| part.object.name.clone()).collect();
        let expected = (1..=numbers.len() as u32).map(|number| recording_part_name(Some(0), &identity(1), number));
        assert_eq!(numbers, expected.collect::<Vec<_>>());
        assert_eq!(reader.ranks()[0].parts.iter().map(|part| part.events).sum::<u64>(), 8_000);
    }
}

#[test]
fn unreachable_store_delays_no_push_and_losses_are_counted() {
    let failing = Arc::new(FailingStore::default());
    let store = ArchiveStore::new(failing.clone(), "failing".to_owned());
    let writer = writer(&store, ArchiveOptions { pending_bytes: 40 << 10, ..small_parts() });
    failing.is_down.store(true, Ordering::Relaxed);
    let mut program = Program::new(0);
    let archive = writer.process(&program.process).expect("a valid process");
    let chunks = program.run(40_000);
    let (sender, pushed) = mpsc::channel();
    let bytes = program.bytes(chunks);
    std::thread::spawn(move || {
        let result = archive.push(&bytes);
        drop(archive);
        sender.send(result)
    });
    // The store is down until the push has returned.
    pushed.recv_timeout(TIMEOUT).expect("a push waits for the store").expect("valid chunks");
    failing.is_down.store(false, Ordering::Relaxed);
    let summary = writer.finish().expect("the store is back");
    assert!(summary.lost_objects > 0, "{summary:?}");
    assert!(summary.bytes <= 60 << 10, "{summary:?}");
    let reader = reader(&store);
    let rank = &reader.ranks()[0];
    for part in &rank.parts {
        assert!(reader.recording_at(rank, part.object.start_unix_ms).expect("it opens").is_some());
    }
}

#[test]
fn second_writer_ends_the_first() {
    for_each_store(|store| {
        let first = writer(&store, ArchiveOptions::default());
        let second = writer(&store, ArchiveOptions::default());
        let mut program = Program::new(0);
        let chunks = program.run(200);
        for (writer, is_newest) in [(second, true), (first, false)] {
            let archive = writer.process(&program.process).expect("a valid process");
            archive.push(&program.bytes(chunks.clone())).expect("valid chunks");
            drop(archive);
            match (writer.finish(), is_newest) {
                (Ok(_), true) | (Err(ArchiveError::Conflict), false) => {}
                (result, _) => panic!("{result:?}"),
            }
        }
        assert_eq!(reader(&store).ranks()[0].parts.len(), 1);
    });
}

#[test]
fn names_of_unlisted_objects_are_not_used_again() {
    let objects = Arc::new(InMemory::new());
    let taken = recording_part_name(Some(0), &identity(1), 1);
    block_on(objects.put(&Path::from(taken.as_str()), "left by a killed server".into())).expect("memory");
    let store = ArchiveStore::new(objects, "memory".to_owned());
    let writer = writer(&store, ArchiveOptions::default());
    let mut program = Program::new(0);
    let chunks = program.run(200);
    writer.process(&program.process).expect("a valid process").push(&program.bytes(chunks)).expect("valid chunks");
    writer.finish().expect("everything is stored");
    assert_eq!(reader(&store).ranks()[0].parts[0].object.name, recording_part_name(Some(0), &identity(1), 2));
}

#[test]
fn archives_of_other_runs_are_not_continued() {
    let store = memory();
    assert!(matches!(ArchiveReader::with_store(store.clone()), Err(ArchiveError::NoArchive(_))));
    writer(&store, ArchiveOptions::default()).finish().expect("an empty archive");
    let other = ArchiveWriter::with_store(store.clone(), "other", ArchiveOptions::default());
    assert!(matches!(other, Err(ArchiveError::OtherRun(run)) if run == "run"));
    let reader = reader(&store);
    assert_eq!((reader.run(), reader.ranks().len()), ("run", 0));
}

/// An archive with one part, whose objects a test changes.
struct Tampered {
    objects: Arc<InMemory>,
    store: ArchiveStore,
    part: String,
}

impl Tampered {
    fn new() -> Self {
        let objects = Arc::new(InMemory::new());
        let store = ArchiveStore::new(objects.clone(), "memory".to_owned());
        let writer = writer(&store, ArchiveOptions::default());
        let mut program = Program::new(0);
        let chunks = program.run(400);
        writer.process(&program.process).expect("a valid process").push(&program.bytes(chunks)).expect("valid chunks");
        writer.finish().expect("everything is stored");
        Self { objects, store, part: recording_part_name(Some(0), &identity(1), 1) }
    }

    fn put(&self, name: &str, bytes: Vec<u8>) {
        block_on(self.objects.put(&Path::from(name), bytes.into())).expect("memory");
    }

    fn get(&self, name: &str) -> Vec<u8> {
        block_on(async { self.objects.get(&Path::from(name)).await?.bytes().await }).expect("it exists").into()
    }

    /// Changes the manifest.
    fn change_manifest(&self, change: impl FnOnce(&mut Manifest)) {
        let mut manifest = Manifest::parse(&self.get(MANIFEST)).expect("it is valid");
        change(&mut manifest);
        self.put(MANIFEST, manifest.to_json());
    }

    /// Opens the part by its index, and separately reads all of it. Both must fail; returns both
    /// errors.
    fn errors(&self) -> [String; 2] {
        let text = |error: Option<ArchiveError>| error.map(|error| error.to_string()).unwrap_or_default();
        let reader = match ArchiveReader::with_store(self.store.clone()) {
            Ok(reader) => reader,
            Err(error) => return [error.to_string(), error.to_string()],
        };
        let rank = &reader.ranks()[0];
        let whole = block_on(self.store.read_whole(&rank.parts[0].object));
        [text(reader.recording_at(rank, 0).err()), text(whole.err())]
    }
}

#[test]
fn tampered_archives_are_refused() {
    type Change = fn(&Tampered);
    // The error of opening by the index, and that of reading everything.
    let cases: [(&str, Change, [&str; 2]); 9] = [
        ("nothing", |_| {}, ["", ""]),
        (
            "truncated object",
            |tampered| {
                let mut bytes = tampered.get(&tampered.part);
                bytes.pop();
                tampered.put(&tampered.part, bytes);
            },
            ["bytes, not", "bytes, not"],
        ),
        (
            "longer object",
            |tampered| {
                let mut bytes = tampered.get(&tampered.part);
                bytes.push(0);
                tampered.put(&tampered.part, bytes);
            },
            ["bytes, not", "bytes, not"],
        ),
        (
            "other bytes in the middle",
            |tampered| {
                let mut bytes = tampered.get(&tampered.part);
                let middle = bytes.len() / 4;
                bytes[middle] ^= 1;
                tampered.put(&tampered.part, bytes);
            },
            ["", "its SHA-256 hash is another"],
        ),
        (
            "other bytes at the end",
            |tampered| {
                let mut bytes = tampered.get(&tampered.part);
                let last = bytes.len() - 1;
                bytes[last] ^= 1;
                tampered.put(&tampered.part, bytes);
            },
            ["its SHA-256 hash is another", "its SHA-256 hash is another"],
        ),
        (
            "another hash",
            |tampered| {
                tampered.change_manifest(|manifest| manifest.ranks[0].parts[0].object.sha256 = "0".repeat(64));
            },
            ["", "its SHA-256 hash is another"],
        ),
        (
            "missing object",
            |tampered| block_on(tampered.objects.delete(&Path::from(tampered.part.as_str()))).expect("memory"),
            ["not found", "not found"],
        ),
        (
            "path out of the archive",
            |tampered| {
                tampered.change_manifest(|manifest| {
                    manifest.ranks[0].parts[0].object.name = "ranks/../../secret/000001.vram".to_owned();
                });
            },
            ["is not that of an object of an archive", "is not that of an object of an archive"],
        ),
        (
            "no JSON",
            |tampered| tampered.put(MANIFEST, vec![0xff]),
            ["manifest.json is invalid", "manifest.json is invalid"],
        ),
    ];
    for (what, change, expected) in cases {
        let tampered = Tampered::new();
        change(&tampered);
        for (error, expected) in tampered.errors().into_iter().zip(expected) {
            let is_expected = if expected.is_empty() { error.is_empty() } else { error.contains(expected) };
            assert!(is_expected, "{what}: {error:?} instead of {expected:?}");
        }
    }
}
