//! CUDA C++ as data.

use std::path::{Path, PathBuf};

use atomr_cuda_core::{GpuError, Result};
use serde::{Deserialize, Serialize};

/// CUDA C++ with everything that decides what it compiles to. Plain data with builder methods.
///
/// ```
/// use atomr_cuda_nvrtc::Source;
///
/// let source = Source::new("scale.cu", r#"
///     #include "factor.h"
///     template <typename T, int N> __global__ void scale(T* x) { x[threadIdx.x] *= T(N * FACTOR); }
/// "#)
/// .header("factor.h", "#define FACTOR 2")
/// .option("--use_fast_math")
/// .name_expression("scale<float, 4>");
/// assert!(source.check().is_ok());
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    pub(crate) name: String,
    pub(crate) code: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) include_dirs: Vec<PathBuf>,
    pub(crate) toolkit_headers: bool,
    pub(crate) options: Vec<String>,
    pub(crate) name_expressions: Vec<String>,
}

impl Source {
    /// `name` is what errors call it (`saxpy.cu`), `code` is the text.
    pub fn new(name: impl Into<String>, code: impl Into<String>) -> Self {
        Source {
            name: name.into(),
            code: code.into(),
            headers: Vec::new(),
            include_dirs: Vec::new(),
            toolkit_headers: false,
            options: Vec::new(),
            name_expressions: Vec::new(),
        }
    }

    /// A header that `#include` finds under `name`, without a file.
    pub fn header(mut self, name: impl Into<String>, text: impl Into<String>) -> Self {
        self.headers.push((name.into(), text.into()));
        self
    }

    /// A folder that `#include` searches, on the machine that compiles. What the files in it are
    /// (their sizes and times) is part of the key under which the result is cached.
    pub fn include_dir(mut self, path: impl AsRef<Path>) -> Self {
        self.include_dirs.push(path.as_ref().to_path_buf());
        self
    }

    /// Lets `#include` find the CUDA toolkit's headers (`cuda_fp16.h`, `mma.h`, `cuda/std/...`),
    /// wherever they are on the machine that compiles: `CUDA_HOME`, `CUDA_PATH`, beside NVRTC,
    /// `/usr/local/cuda`.
    pub fn toolkit_headers(mut self) -> Self {
        self.toolkit_headers = true;
        self
    }

    /// An option of NVRTC: `-DTILE=64`, `--std=c++20`, `--use_fast_math`. The architecture is not one;
    /// it is given when the source is compiled.
    pub fn option(mut self, option: impl Into<String>) -> Self {
        self.options.push(option.into());
        self
    }

    /// A kernel to instantiate and to find under this name: `scale<float, 4>`, `name_space::kernel`.
    /// Kernels declared `extern "C"` need none.
    pub fn name_expression(mut self, expression: impl Into<String>) -> Self {
        self.name_expressions.push(expression.into());
        self
    }

    /// The name that errors use.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Checks what can be known without compiling.
    ///
    /// # Errors
    /// [`GpuError::InvalidArgument`] for empty code or names, NUL bytes, and options that are not the
    /// source's to give.
    pub fn check(&self) -> Result<()> {
        text("name", &self.name)?;
        text("code", &self.code)?;
        for (name, header) in &self.headers {
            text("header", name)?;
            no_nul("header", header)?;
        }
        for option in &self.options {
            text("option", option)?;
            let key = option.trim_start_matches('-').split(['=', ' ']).next().unwrap_or_default();
            if matches!(key, "arch" | "gpu-architecture") {
                return Err(invalid(
                    "option",
                    format!("`{option}`: the architecture is the device's, not the source's"),
                ));
            }
        }
        self.name_expressions.iter().try_for_each(|expression| text("name_expression", expression))
    }
}

/// Not empty, no NUL bytes.
fn text(argument: &str, value: &str) -> Result<()> {
    if value.trim().is_empty() {
        return Err(invalid(argument, "it is empty".into()));
    }
    no_nul(argument, value)
}

fn no_nul(argument: &str, value: &str) -> Result<()> {
    match value.bytes().position(|byte| byte == 0) {
        Some(at) => Err(invalid(argument, format!("there is a NUL byte at {at}"))),
        None => Ok(()),
    }
}

pub(super) fn invalid(argument: &str, reason: String) -> GpuError {
    GpuError::invalid("nvrtc.compile", argument, reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_compiled_is_refused() {
        let sound = || Source::new("a.cu", "x");
        let refused = [
            (Source::new("", "x"), "name"),
            (Source::new("a\0b", "x"), "name"),
            (Source::new("a.cu", " \n"), "code"),
            (Source::new("a.cu", "x\0y"), "code"),
            (sound().header("", "x"), "header"),
            (sound().header("a.h", "\0"), "header"),
            (sound().option(""), "option"),
            (sound().option("--gpu-architecture=sm_90"), "option"),
            (sound().option("-arch sm_90"), "option"),
            (sound().name_expression("k\0"), "name_expression"),
        ];
        for (source, expected) in refused {
            match source.check() {
                Err(GpuError::InvalidArgument { argument, .. }) => assert_eq!(argument, expected),
                other => panic!("{source:?}: {other:?}"),
            }
        }
        sound().header("empty.h", "").option("-Darch=1").check().expect("sound");
    }
}
