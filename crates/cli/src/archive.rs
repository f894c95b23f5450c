//! Opens the archive of a run in an object store for the page's server, and archives a run.

use std::sync::Arc;

use vramscope_collector::{RecordingBytes, ServedRecording};
use vramscope_fleet::FleetAddress;
use vramscope_fleet::archive::{
    ArchiveAddress, ArchiveError, ArchiveOptions, ArchiveReader, ArchiveWriter, RunArchiver, file_name,
};
use vramscope_trace::{ByteSize, Count};

use crate::error::{CommandError, Result};
use crate::terminal;

/// Returns true if a command's argument is the address of an archive, and not a file's path.
pub(crate) fn is_address(argument: &str) -> bool {
    ArchiveAddress::is_url(argument)
}

/// Opens an archive and reads its manifest. Returns it with its address for messages.
pub(crate) fn open(url: &str) -> Result<(ArchiveReader, ArchiveAddress)> {
    let address = ArchiveAddress::parse(url)
        .map_err(|error| CommandError::new(format_args!("the archive's address is invalid: {error}")))?;
    let reader = ArchiveReader::open(&address).map_err(|error| match error {
        ArchiveError::NoArchive(_) => CommandError::new(error),
        error => CommandError::new(format_args!("cannot open {address}: {error}")),
    })?;
    Ok((reader, address))
}

/// Opens an archive. Returns the recordings of all ranks, sorted by rank and time. The server reads
/// a recording from the object store when a viewer opens it.
pub(crate) fn open_recordings(url: &str) -> Result<Vec<ServedRecording>> {
    let (reader, address) = open(url)?;
    let mut ranks: Vec<_> = reader.ranks().iter().collect();
    ranks.sort_by_key(|rank| (rank.rank.is_none(), rank.rank));
    let mut recordings = Vec::new();
    for rank in ranks {
        for part in &rank.parts {
            let source = Arc::new(reader.part(part));
            let bytes = RecordingBytes::from_source(source, part.object.bytes);
            recordings.push(ServedRecording { name: file_name(rank, part), bytes, events: Some(part.events) });
        }
    }
    if recordings.is_empty() {
        return Err(CommandError::new(format_args!("{address} has no recordings yet")));
    }
    Ok(recordings)
}

/// Starts to archive `run`, which is read from a broker, at the address `archive`.
pub(crate) fn start(archive: &str, run: &FleetAddress) -> Result<RunArchiver> {
    let archive = &ArchiveAddress::parse(archive).map_err(CommandError::new)?;
    let writer = ArchiveWriter::open(archive, run.run(), ArchiveOptions::default());
    let writer = writer.map_err(|error| CommandError::new(format_args!("cannot write {archive}: {error}")))?;
    RunArchiver::start(run, writer).map_err(CommandError::new)
}

/// Ends an archive and prints how much data of the run was received. Fails if the archive lacks a
/// part of the received data.
pub(crate) fn finish(archiver: RunArchiver) -> Result {
    let summary = archiver.finish().map_err(CommandError::new)?;
    let (objects, bytes) = (Count(summary.objects).of("object", "objects"), ByteSize(summary.bytes));
    terminal::message(format_args!("archived {objects}, {bytes}"));
    if summary.unknown_summaries > 0 {
        let summaries = Count(summary.unknown_summaries).of("summary", "summaries");
        terminal::message(format_args!(
            "warning: left out {summaries} of processes that the broker has no description of"
        ));
    }
    if summary.lost_objects + summary.lost_summaries > 0 {
        let lost = Count(summary.lost_objects).of("object", "objects");
        let summaries = Count(summary.lost_summaries).of("summary", "summaries");
        return Err(CommandError::new(format_args!(
            "the archive lacks {lost} that did not fit or could not be written, and {summaries} that came too late"
        )));
    }
    Ok(())
}
