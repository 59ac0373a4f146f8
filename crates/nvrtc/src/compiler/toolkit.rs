//! Where the CUDA toolkit's headers are.

use std::path::{Path, PathBuf};

use atomr_cuda_core::{GpuError, Result};

/// A header that every toolkit has.
const MARK: &str = "cuda_fp16.h";

/// The folder of the toolkit's headers.
///
/// # Errors
/// [`GpuError::LibraryMissing`] with the folders that were searched.
pub(crate) fn headers() -> Result<PathBuf> {
    let candidates = candidates(std::env::var_os("CUDA_HOME"), std::env::var_os("CUDA_PATH"), nvrtc_file());
    match candidates.iter().find(|folder| folder.join(MARK).is_file()) {
        Some(folder) => Ok(folder.clone()),
        None => Err(GpuError::LibraryMissing {
            library: "CUDA headers".into(),
            searched: candidates.iter().map(|folder| folder.join(MARK).display().to_string()).collect(),
            reason: "install the CUDA toolkit, or set CUDA_HOME to the folder that has `include`".into(),
        }),
    }
}

/// The folders where C++ standard headers for the GPU (`cuda/std/...`) lie inside a toolkit's.
pub(crate) fn include_dirs(headers: &Path) -> Vec<PathBuf> {
    let inner = headers.join("cccl");
    if inner.is_dir() { vec![headers.to_path_buf(), inner] } else { vec![headers.to_path_buf()] }
}

fn candidates(
    home: Option<std::ffi::OsString>,
    path: Option<std::ffi::OsString>,
    nvrtc: Option<PathBuf>,
) -> Vec<PathBuf> {
    let roots = [home, path].into_iter().flatten().filter(|root| !root.is_empty()).map(PathBuf::from);
    let mut folders: Vec<PathBuf> = roots.map(|root| root.join("include")).collect();
    // The library of the toolkit's package, and of a distribution, lies in `lib` or `lib64` beside
    // `include`, or two below it; of Python's wheels for CUDA 12 in `nvidia/cuda_nvrtc/lib`.
    for beside in nvrtc.iter().flat_map(|file| file.ancestors().skip(2).take(3)) {
        folders.push(beside.join("include"));
        folders.push(beside.join("cuda_runtime/include"));
    }
    folders.push("/usr/local/cuda/include".into());
    folders.push("/opt/cuda/include".into());
    folders.push("/usr/include".into());
    folders.dedup();
    folders
}

/// The file of the NVRTC library that is loaded.
fn nvrtc_file() -> Option<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let path = maps.lines().find_map(|line| {
        let path = Path::new(line.get(line.find('/')?..)?);
        let name = path.file_name()?.to_str()?;
        name.starts_with("libnvrtc.so").then(|| path.to_path_buf())
    })?;
    Some(std::fs::canonicalize(&path).unwrap_or(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_comes_first_then_what_lies_beside_the_library() {
        let folders = candidates(Some("/a".into()), None, Some("/site/nvidia/cu13/lib/libnvrtc.so.13".into()));
        assert_eq!(folders[0], Path::new("/a/include"));
        assert_eq!(folders[1], Path::new("/site/nvidia/cu13/include"));
        let older = candidates(None, Some("".into()), Some("/site/nvidia/cuda_nvrtc/lib/libnvrtc.so.12".into()));
        assert!(older.contains(&"/site/nvidia/cuda_runtime/include".into()), "{older:?}");
        assert!(folders.contains(&"/usr/local/cuda/include".into()));
    }
}
