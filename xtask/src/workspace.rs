//! What cargo says about the workspace.

use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::Value;
use xshell::{Shell, cmd};

/// A member of the workspace.
#[derive(Debug)]
pub(crate) struct Package {
    pub name: String,
    /// Its folder, relative to the workspace.
    pub folder: PathBuf,
    pub features: Vec<String>,
}

impl Package {
    /// The folder's name, if the folder lies directly in `parent`.
    pub fn folder_in(&self, parent: &str) -> Option<&str> {
        self.folder.strip_prefix(parent).ok()?.to_str().filter(|name| !name.contains('/'))
    }
}

/// The members of the workspace, as `cargo metadata` lists them.
pub(crate) fn packages(shell: &Shell) -> anyhow::Result<Vec<Package>> {
    let text = cmd!(shell, "cargo metadata --no-deps --format-version 1").quiet().read()?;
    let metadata: Value = serde_json::from_str(&text)?;
    let root = metadata["workspace_root"].as_str().context("cargo metadata names no workspace")?;
    let packages = metadata["packages"].as_array().context("cargo metadata lists no packages")?;
    packages.iter().map(|package| read(package, Path::new(root))).collect()
}

fn read(package: &Value, root: &Path) -> anyhow::Result<Package> {
    let name = package["name"].as_str().context("a package without a name")?.to_string();
    let manifest = Path::new(package["manifest_path"].as_str().context("a package without a manifest")?);
    let folder = manifest.parent().and_then(|folder| folder.strip_prefix(root).ok());
    let folder = folder.with_context(|| format!("{name} lies outside the workspace"))?.to_path_buf();
    let features = package["features"].as_object().map(|features| features.keys().cloned().collect());
    Ok(Package { name, folder, features: features.unwrap_or_default() })
}
