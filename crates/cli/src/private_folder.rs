//! Folders in which no other user can create, replace or remove a file.
//!
//! Files in a private folder belong to this user or root, also if the folder is deleted and created
//! again: another user cannot write to a folder above it either.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Folder in which only root can create files.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
const ROOT_RUNTIME: &str = "/run";
/// Environment variable with a folder for files that a user's processes share until logout.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
const RUNTIME: &str = "XDG_RUNTIME_DIR";
/// Environment variable with a folder for a user's data.
const DATA: &str = if cfg!(windows) { "LOCALAPPDATA" } else { "XDG_DATA_HOME" };
/// The folder for a user's data below the home folder, if [`DATA`] is not set.
const DATA_BELOW_HOME: &str = ".local/share";
/// Name of vramscope's folder in the folder for a user's data.
const OWN_NAME: &str = "vramscope";

/// Permission bit that lets a folder's group write to it.
#[cfg(unix)]
const GROUP_WRITE: u32 = 0o020;
#[cfg(unix)]
/// Permission bit that lets all users write to a folder.
const ALL_WRITE: u32 = 0o002;
/// Permission bit that lets all users reach the files in a folder.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
const ALL_SEARCH: u32 = 0o001;
/// Permission bit that lets only the owner of an entry rename or remove it, as in `/tmp`.
#[cfg(unix)]
const STICKY: u32 = 0o1000;

/// Returns an error that names the folder if a user other than this one and root can write to
/// the file or folder `path` or to a folder above it.
pub(crate) fn check_private(path: &Path) -> io::Result<()> {
    check_writers(path, false)
}

/// Returns an error that names the folder if another user can remove or replace files that this
/// user creates in `path`. `/tmp` passes: there, other users can only create a file of an equal
/// name after this user has removed it.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub(crate) fn check_temporary(path: &Path) -> io::Result<()> {
    check_writers(path, true)
}

/// Returns an error that names the folder if another user can write to the file or folder `path` or
/// to a folder above it. With `is_sticky_allowed`, accepts folders with the sticky bit.
#[cfg(unix)]
fn check_writers(path: &Path, is_sticky_allowed: bool) -> io::Result<()> {
    use std::os::unix::fs::MetadataExt as _;

    let writers = Writers::of_users([nix::unistd::geteuid().as_raw()]);
    for folder in fs::canonicalize(path)?.ancestors() {
        // The path is canonical, so no part of it is a symbolic link.
        let status = fs::symlink_metadata(folder)?;
        let is_sticky = is_sticky_allowed && status.mode() & STICKY != 0;
        writers.check(folder, &status, is_sticky)?;
    }
    Ok(())
}

/// Returns an error that names the folder if the Python package in the folder `package`, or a
/// folder between it and `prefix`, can be written by a user who cannot replace the program
/// `command`. Root, this user, the program's owner and the group that may write to its folder can
/// replace it.
#[cfg(unix)]
pub(crate) fn check_package(command: &Path, package: &Path, prefix: &Path) -> io::Result<()> {
    use std::os::unix::fs::MetadataExt as _;

    let owner = fs::metadata(command)?.uid();
    let mut writers = Writers::of_users([nix::unistd::geteuid().as_raw(), owner]);
    let folder = fs::metadata(command.parent().ok_or(io::ErrorKind::NotFound)?)?;
    if folder.mode() & GROUP_WRITE != 0 {
        writers.groups.push(folder.gid());
    }
    for folder in package.ancestors().take_while(|ancestor| *ancestor != prefix) {
        let status = fs::symlink_metadata(folder)?;
        // The mode of a symbolic link has no effect; only its owner can replace it.
        writers.check(folder, &status, status.is_symlink())?;
        writers.check(folder, &fs::metadata(folder)?, false)?;
    }
    Ok(())
}

/// The users who may write to a folder.
#[cfg(unix)]
struct Writers {
    users: Vec<u32>,
    groups: Vec<u32>,
}

#[cfg(unix)]
impl Writers {
    /// Returns root and `users`, and the groups that only they belong to.
    fn of_users<const N: usize>(users: [u32; N]) -> Self {
        // Containers that run as arbitrary users let the group of root write.
        let groups = users.into_iter().filter_map(private_group).chain([0]).collect();
        Self { users: users.into_iter().chain([0]).collect(), groups }
    }

    /// Returns an error that names the folder if other users can write to it. With `any_mode`, only
    /// its owner counts.
    fn check(&self, folder: &Path, status: &fs::Metadata, any_mode: bool) -> io::Result<()> {
        use std::os::unix::fs::MetadataExt as _;

        let refused = |reason: &str| Err(io::Error::other(format!("{} {reason}", folder.display())));
        if !self.users.contains(&status.uid()) {
            return refused(&format!("belongs to the user with id {}", status.uid()));
        }
        let others = if self.groups.contains(&status.gid()) { ALL_WRITE } else { ALL_WRITE | GROUP_WRITE };
        if status.mode() & others != 0 && !any_mode {
            return refused("can be written by other users (chmod go-w removes the permission)");
        }
        Ok(())
    }
}

/// Returns the id of a user's private group, which by convention has the user's name and no other
/// member. Systems with private groups let them write to users' folders (umask 002).
#[cfg(unix)]
fn private_group(uid: u32) -> Option<u32> {
    use nix::unistd::{Group, Uid, User};

    let user = User::from_uid(Uid::from_raw(uid)).ok()??;
    let group = Group::from_gid(user.gid).ok()??;
    let is_private = group.name == user.name && group.mem.iter().all(|member| *member == user.name);
    is_private.then(|| group.gid.as_raw())
}

/// Accepts every package: outside of Unix, access control lists protect folders.
#[cfg(not(unix))]
pub(crate) fn check_package(_command: &Path, _package: &Path, _prefix: &Path) -> io::Result<()> {
    Ok(())
}

/// Accepts every folder: outside of Unix, access control lists protect folders.
#[cfg(not(unix))]
fn check_writers(_path: &Path, _is_sticky_allowed: bool) -> io::Result<()> {
    Ok(())
}

/// Returns vramscope's folder for this user's data, and creates it if necessary.
pub(crate) fn data_folder() -> io::Result<PathBuf> {
    let data = std::env::var_os(DATA).map(PathBuf::from).filter(|folder| folder.is_absolute());
    let data = match data.or_else(|| Some(std::env::home_dir()?.join(DATA_BELOW_HOME))) {
        Some(data) if data.is_absolute() => data,
        _ => return Err(io::Error::other(format!("neither {DATA} nor a home folder is set"))),
    };
    create_private(&data.join(OWN_NAME))
}

/// Creates a folder that only this user can read, and the folders above it, if necessary. Returns
/// its canonical path.
pub(crate) fn create_private(folder: &Path) -> io::Result<PathBuf> {
    // Checks the existing part of the path first, so that nothing is created in a folder of
    // another user.
    let existing = folder.ancestors().find(|ancestor| ancestor.exists());
    check_private(existing.ok_or(io::ErrorKind::NotFound)?)?;
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)?;
    check_private(folder)?;
    fs::canonicalize(folder)
}

/// Returns the folders for files that are soon deleted, the best one first: folders in which no
/// other user can create a file, then the temporary folder, in which other users can create a file
/// in place of a deleted one. The user with the id `uid` can reach all of them.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub(crate) fn short_lived_folders(uid: u32) -> Vec<PathBuf> {
    let runtime = if nix::unistd::geteuid().is_root() {
        Some(PathBuf::from(ROOT_RUNTIME))
    } else {
        std::env::var_os(RUNTIME).map(PathBuf::from).filter(|folder| folder.is_absolute())
    };
    let runtime = runtime.filter(|folder| check_private(folder).is_ok());
    let private = runtime.or_else(|| data_folder().ok());
    let temporary = std::env::temp_dir();
    private.into_iter().filter(|folder| can_reach(uid, folder)).chain([temporary]).collect()
}

/// Returns true if the user with the id `uid` can reach the files in a folder: root and this user
/// always can, another user only if all users can. On many systems, `/root` is closed to others.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn can_reach(uid: u32, folder: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;

    let is_open = |folder: &Path| fs::metadata(folder).is_ok_and(|metadata| metadata.mode() & ALL_SEARCH != 0);
    let own_uid = nix::unistd::geteuid().as_raw();
    uid == 0 || uid == own_uid || fs::canonicalize(folder).is_ok_and(|folder| folder.ancestors().all(is_open))
}

#[cfg(all(test, target_os = "linux", target_arch = "x86_64"))]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("the folder is ours");
    }

    #[test]
    fn folders_writable_by_other_users_are_refused() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let folder = fs::canonicalize(folder.path()).expect("it exists");
        // The mode of the temporary folder on most systems.
        set_mode(&folder, 0o1777);
        let (outer, inner) = (folder.join("outer"), folder.join("outer/inner"));
        fs::create_dir_all(&inner).expect("the folder is writable");
        set_mode(&inner, 0o700);
        // The temporary folder itself is writable for all users.
        let check = |mode, is_temporary: bool| {
            set_mode(&outer, mode);
            check_temporary(&inner).is_ok() == is_temporary
        };
        assert!(check(0o755, true));
        assert!(check(0o1777, true));
        assert!(check(0o777, false));
        assert!(check(0o775, nix::unistd::getegid().as_raw() == 0));
        set_mode(&outer, 0o777);
        let error = check_private(&inner).expect_err("others can write to the outer folder").to_string();
        assert!(error.contains("outer can be written by other users"), "{error}");
        set_mode(&outer, 0o755);
        let error = check_private(&inner).expect_err("others can write to the temporary folder").to_string();
        assert!(error.contains("can be written by other users"), "{error}");
        assert!(create_private(&outer.join("new")).is_err());
        assert!(!outer.join("new").exists());
    }

    #[test]
    fn folders_that_a_user_cannot_reach_are_not_used_for_that_user() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (outer, inner) = (folder.path().join("outer"), folder.path().join("outer/inner"));
        fs::create_dir_all(&inner).expect("the folder is writable");
        set_mode(folder.path(), 0o711);
        let own_uid = nix::unistd::geteuid().as_raw();
        for (mode, others) in [(0o711, true), (0o755, true), (0o700, false), (0o770, false)] {
            set_mode(&outer, mode);
            assert_eq!(can_reach(own_uid + 1, &inner), others, "{mode:o}");
            assert!(can_reach(own_uid, &inner) && can_reach(0, &inner), "{mode:o}");
        }
    }

    #[test]
    fn links_are_checked_at_their_targets() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (target, link) = (folder.path().join("target"), folder.path().join("link"));
        fs::create_dir(&target).expect("the folder is writable");
        symlink(&target, &link).expect("the folder is writable");
        set_mode(&target, 0o777);
        let error = check_temporary(&link).expect_err("others can write to the target").to_string();
        assert!(error.contains("target can be written by other users"), "{error}");
    }

    #[test]
    fn folders_of_root_are_private() {
        assert!(check_private(Path::new("/proc")).is_ok() && check_private(Path::new("/")).is_ok());
        assert!(check_private(Path::new("/tmp")).is_err());
    }
}
