//! The process to run a program in: its state, its memory and its mappings.

use std::fs;
use std::io::{IoSlice, IoSliceMut};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::uio::{RemoteIoVec, process_vm_readv, process_vm_writev};
use nix::unistd::Pid;

use crate::error::{CommandError, Result};

/// Path of the setting of Linux's security module Yama that restricts which processes may be read.
const PTRACE_SCOPE: &str = "/proc/sys/kernel/yama/ptrace_scope";

/// Another process on this machine, whose memory can be read and written.
#[derive(Debug)]
pub(super) struct TargetProcess {
    pid: Pid,
    /// Time of the process's start in clock ticks since boot. With the id, it identifies the
    /// process.
    start_time: u64,
    uid: u32,
    gid: u32,
}

/// A range of a process's address space.
#[derive(Debug)]
pub(super) struct Mapping {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) is_writable: bool,
    pub(super) is_executable: bool,
    /// Offset in the file, in bytes.
    pub(super) offset: u64,
    /// The mapped file, or a name such as `[heap]`; empty for anonymous memory.
    pub(super) path: PathBuf,
}

impl TargetProcess {
    /// Finds the process with the id `pid`; fails if there is none, or if it runs in another
    /// container.
    pub(super) fn find(pid: u32) -> Result<Self> {
        let no_process = || CommandError::new(format_args!("there is no process {pid}"));
        let raw = i32::try_from(pid).ok().filter(|pid| *pid > 0).ok_or_else(no_process)?;
        let status = fs::read_to_string(format!("/proc/{pid}/status")).map_err(|_| no_process())?;
        let group: u32 = status_number(&status, "Tgid").unwrap_or(pid);
        if group != pid {
            return Err(CommandError::new(format_args!(
                "{pid} is a thread of process {group}: use {group} as the process id"
            )));
        }
        if pid == std::process::id() {
            return Err(CommandError::new(format_args!("process {pid} is this vramscope command")));
        }
        let start_time = start_time(pid).ok_or_else(no_process)?;
        let owner = effective_id(&status, "Uid").zip(effective_id(&status, "Gid"));
        let (uid, gid) = owner.ok_or_else(no_process)?;
        for (name, kind) in [("mnt", "files"), ("net", "network"), ("pid", "process ids")] {
            let namespace = |id: &str| fs::read_link(format!("/proc/{id}/ns/{name}")).ok();
            let (own, other) = (namespace("self"), namespace(&pid.to_string()));
            if own.is_some() && other.is_some() && own != other {
                return Err(CommandError::new(format_args!(
                    "process {pid} runs in another container, with its own {kind}: run this command in that container"
                )));
            }
        }
        Ok(Self { pid: Pid::from_raw(raw), start_time, uid, gid })
    }

    /// Returns the process's id.
    pub(super) fn pid(&self) -> Pid {
        self.pid
    }

    /// Returns the effective ids of the process's user and group.
    pub(super) fn owner(&self) -> (u32, u32) {
        (self.uid, self.gid)
    }

    /// Returns true while the process runs.
    pub(super) fn is_running(&self) -> bool {
        start_time(self.pid.as_raw().unsigned_abs()) == Some(self.start_time)
    }

    /// Returns the process's mappings in order of address.
    pub(super) fn mappings(&self) -> Result<Vec<Mapping>> {
        let maps = fs::read_to_string(format!("/proc/{}/maps", self.pid));
        let maps = maps.map_err(|error| match error.kind() {
            std::io::ErrorKind::PermissionDenied => self.permission_error(),
            _ => CommandError::new(format_args!("process {} has ended", self.pid)),
        })?;
        Ok(maps.lines().filter_map(parse_mapping).collect())
    }

    /// Returns the bytes at `address`.
    pub(super) fn read(&self, address: u64, len: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        let remote = [RemoteIoVec { base: address as usize, len }];
        match process_vm_readv(self.pid, &mut [IoSliceMut::new(&mut bytes)], &remote) {
            Ok(read) if read == len => Ok(bytes),
            Ok(_) => Err(self.memory_error("read", address, Errno::EFAULT)),
            Err(error) => Err(self.memory_error("read", address, error)),
        }
    }

    /// Writes `bytes` to `address`. The kernel checks the whole range before it writes a byte.
    pub(super) fn write(&self, address: u64, bytes: &[u8]) -> Result {
        let remote = [RemoteIoVec { base: address as usize, len: bytes.len() }];
        match process_vm_writev(self.pid, &[IoSlice::new(bytes)], &remote) {
            Ok(written) if written == bytes.len() => Ok(()),
            Ok(_) => Err(self.memory_error("write", address, Errno::EFAULT)),
            Err(error) => Err(self.memory_error("write", address, error)),
        }
    }

    /// Returns the 64-bit number at `address`.
    pub(super) fn read_u64(&self, address: u64) -> Result<u64> {
        let bytes = self.read(address, 8)?;
        Ok(u64::from_le_bytes(bytes.try_into().expect("8 bytes were read")))
    }

    /// Returns the 32-bit number at `address`.
    pub(super) fn read_i32(&self, address: u64) -> Result<i32> {
        let bytes = self.read(address, 4)?;
        Ok(i32::from_le_bytes(bytes.try_into().expect("4 bytes were read")))
    }

    /// Creates the error for a failed access to the process's memory.
    fn memory_error(&self, verb: &str, address: u64, error: Errno) -> CommandError {
        match error {
            Errno::EPERM | Errno::EACCES => self.permission_error(),
            Errno::ESRCH => CommandError::new(format_args!("process {} has ended", self.pid)),
            _ => CommandError::new(format_args!(
                "cannot {verb} the memory of process {} at {address:#x}: {}",
                self.pid,
                error.desc()
            )),
        }
    }

    /// Creates the error for a missing permission, which says how to get the permission.
    pub(super) fn permission_error(&self) -> CommandError {
        let own_uid = fs::read_to_string("/proc/self/status").ok().and_then(|status| status_number(&status, "Uid"));
        let scope = fs::read_to_string(PTRACE_SCOPE).ok().and_then(|text| text.trim().parse().ok());
        let advice = permission_advice(self.uid, own_uid.unwrap_or(self.uid), scope);
        CommandError::new(format_args!("no permission to attach to process {}: {advice}", self.pid))
    }

    /// Returns true if the process is suspended, as by Ctrl-Z.
    pub(super) fn is_suspended(&self) -> bool {
        self.threads().iter().any(|&(thread, state)| thread == self.pid && state == 'T')
    }

    /// Returns the id of the process that traces this one, such as a debugger.
    pub(super) fn tracer(&self) -> Option<u32> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).ok()?;
        status_number(&status, "TracerPid").filter(|tracer| *tracer != 0)
    }

    /// Returns the ids of the process's threads and their states, such as `S`, as the kernel shows
    /// them.
    pub(super) fn threads(&self) -> Vec<(Pid, char)> {
        let entries = fs::read_dir(format!("/proc/{}/task", self.pid)).into_iter().flatten().flatten();
        let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let with_state = |thread: i32| {
            let stat = fs::read_to_string(format!("/proc/{}/task/{thread}/stat", self.pid)).ok()?;
            Some((Pid::from_raw(thread), stat_fields(&stat)?.next()?.chars().next()?))
        };
        ids.filter_map(with_state).collect()
    }
}

/// Returns the first number in the field `name` of the text of `/proc/PID/status`.
fn status_number<T: std::str::FromStr>(status: &str, name: &str) -> Option<T> {
    status_field(status, name)?.next()?.parse().ok()
}

/// Returns the effective id of a process's user or group: the second number in the field `Uid` or
/// `Gid`. Files that the process creates belong to this user and group.
fn effective_id(status: &str, name: &str) -> Option<u32> {
    status_field(status, name)?.nth(1)?.parse().ok()
}

/// Iterates over the values in the field `name` of the text of `/proc/PID/status`.
fn status_field<'a>(status: &'a str, name: &str) -> Option<std::str::SplitWhitespace<'a>> {
    let value = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(value.split_whitespace())
}

/// Iterates over the fields of `/proc/PID/stat` from the state on. The field before it, the
/// program's name, may contain any characters.
fn stat_fields(stat: &str) -> Option<impl Iterator<Item = &str>> {
    stat.rsplit_once(')').map(|(_, fields)| fields.split_whitespace())
}

/// Returns when a process started, in clock ticks since boot; `None` if it has ended.
pub(super) fn start_time(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat_fields(&stat)?;
    let has_ended = ["Z", "X"].contains(&fields.next()?);
    // The start time is field 22 of the file and the state field 3.
    fields.nth(18)?.parse().ok().filter(|_| !has_ended)
}

/// Parses a line of `/proc/PID/maps`.
fn parse_mapping(line: &str) -> Option<Mapping> {
    let mut rest = line;
    let mut field = || {
        let (field, after) = rest.split_once(' ').unwrap_or((rest, ""));
        rest = after.trim_start();
        field
    };
    let (range, access, offset, _device, _inode) = (field(), field(), field(), field(), field());
    let (start, end) = range.split_once('-')?;
    let hex = |text| u64::from_str_radix(text, 16).ok();
    Some(Mapping {
        start: hex(start)?,
        end: hex(end)?,
        is_writable: access.contains('w'),
        is_executable: access.contains('x'),
        offset: hex(offset)?,
        path: Path::new(rest).to_owned(),
    })
}

/// Returns a text that says why a process of the user `own_uid` may not read a process of the user
/// `uid`, and what to do. `scope` is the value of [`PTRACE_SCOPE`].
fn permission_advice(uid: u32, own_uid: u32, scope: Option<u8>) -> String {
    if own_uid != 0 && own_uid != uid {
        return format!("it belongs to the user with id {uid}: run this command as that user or as root");
    }
    let run = "start the program with vramscope run";
    match scope {
        Some(3) => format!("kernel.yama.ptrace_scope=3 forbids it until the next boot: {run}"),
        Some(scope) if scope > 0 && own_uid != 0 => {
            format!(
                "kernel.yama.ptrace_scope is {scope}: run this command as root, \
                 allow it with sysctl kernel.yama.ptrace_scope=0, or {run}"
            )
        }
        _ => format!(
            "it needs the capability CAP_SYS_PTRACE (in Docker: --cap-add SYS_PTRACE; in Kubernetes: \
             securityContext.capabilities.add), or {run}"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_proc_maps_are_parsed() {
        let line = "7f00-8000 rw-p 0001f000 08:01 1234    /opt/a b/libpython3.12.so (deleted)";
        let mapping = parse_mapping(line).expect("a valid line");
        assert_eq!((mapping.start, mapping.end, mapping.offset), (0x7f00, 0x8000, 0x1f000));
        assert_eq!((mapping.is_writable, mapping.is_executable), (true, false));
        assert_eq!(mapping.path, Path::new("/opt/a b/libpython3.12.so (deleted)"));
        let anonymous = parse_mapping("1000-2000 r-xp 00000000 00:00 0 ").expect("a valid line");
        assert_eq!((anonymous.is_executable, anonymous.path.as_os_str().len()), (true, 0));
        assert!(parse_mapping("no mapping").is_none());
    }

    #[test]
    fn missing_permission_names_the_remedy() {
        let check = |uid, own_uid, scope, expected: &str| {
            let advice = permission_advice(uid, own_uid, scope);
            assert!(advice.contains(expected), "{advice}");
        };
        check(1000, 1001, Some(1), "run this command as that user or as root");
        check(1000, 1000, Some(1), "sysctl kernel.yama.ptrace_scope=0");
        check(1000, 1000, Some(3), "until the next boot");
        check(1000, 0, Some(1), "CAP_SYS_PTRACE");
        check(1000, 1000, None, "--cap-add SYS_PTRACE");
        check(1000, 1000, Some(0), "vramscope run");
    }

    #[test]
    fn own_state_is_read_from_proc() {
        let status = fs::read_to_string("/proc/self/status").expect("Linux has /proc");
        assert_eq!(status_number(&status, "Tgid"), Some(std::process::id()));
        assert!(start_time(std::process::id()).is_some());
        let error = TargetProcess::find(std::process::id()).expect_err("a process cannot stop itself");
        assert!(error.to_string().contains("is this vramscope command"), "{error}");
    }
}
