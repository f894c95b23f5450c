//! Recognizes files of libraries, whose directory the profiler leaves out.

use std::borrow::Cow;

/// Directories of Python packages that call PyTorch, or that PyTorch calls.
const PACKAGES: [&str; 66] = [
    "IPython",
    "PIL",
    "_pytest",
    "absl",
    "accelerate",
    "aiohttp",
    "anyio",
    "apex",
    "asyncio_mqtt",
    "axolotl",
    "bitsandbytes",
    "click",
    "cupy",
    "cv2",
    "dask",
    "datasets",
    "deepspeed",
    "diffusers",
    "einops",
    "fairscale",
    "fire",
    "flash_attn",
    "flax",
    "fsspec",
    "gradio",
    "h5py",
    "huggingface_hub",
    "hydra",
    "ignite",
    "ipykernel",
    "jax",
    "joblib",
    "lightning",
    "lightning_fabric",
    "matplotlib",
    "numba",
    "numpy",
    "nvidia",
    "omegaconf",
    "optimum",
    "pandas",
    "peft",
    "pluggy",
    "pydantic",
    "pytorch_lightning",
    "ray",
    "safetensors",
    "scipy",
    "sentence_transformers",
    "sklearn",
    "starlette",
    "tensorboard",
    "timm",
    "tokenizers",
    "torch",
    "torch_geometric",
    "torchaudio",
    "torchmetrics",
    "torchtext",
    "torchvision",
    "tornado",
    "tqdm",
    "transformers",
    "triton",
    "trl",
    "xformers",
];

/// Modules of Python's library that call functions of the program.
const STANDARD: [&str; 34] = [
    "abc.py",
    "ast.py",
    "asyncio",
    "cProfile.py",
    "codecs.py",
    "collections",
    "concurrent",
    "contextlib.py",
    "copy.py",
    "copyreg.py",
    "ctypes",
    "dataclasses.py",
    "enum.py",
    "functools.py",
    "gzip.py",
    "importlib",
    "inspect.py",
    "json",
    "logging",
    "multiprocessing",
    "pathlib.py",
    "pickle.py",
    "queue.py",
    "random.py",
    "re",
    "runpy.py",
    "selectors.py",
    "socketserver.py",
    "subprocess.py",
    "tempfile.py",
    "threading.py",
    "traceback.py",
    "typing.py",
    "weakref.py",
];

/// Returns the path of a file, with the directory that libraries are in: the profiler shows files
/// below a directory of `sys.path` without it, those of libraries like those of the program.
pub(super) fn recorded_path(file: &str) -> Cow<'_, str> {
    let first = file.split(['/', '\\']).next().unwrap_or(file);
    if PACKAGES.contains(&first) && first.len() < file.len() {
        Cow::Owned(format!("site-packages/{file}"))
    } else if STANDARD.contains(&first) {
        Cow::Owned(format!("lib/python/{file}"))
    } else {
        Cow::Borrowed(file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_libraries_get_their_directory() {
        for (file, expected) in [
            ("torch/nn/modules/module.py", "site-packages/torch/nn/modules/module.py"),
            ("typing.py", "lib/python/typing.py"),
            ("train.py", "train.py"),
            ("models/torch/net.py", "models/torch/net.py"),
            ("torch", "torch"),
            ("/home/me/torch/nn.py", "/home/me/torch/nn.py"),
            ("<string>", "<string>"),
        ] {
            assert_eq!(recorded_path(file), expected);
        }
    }
}
